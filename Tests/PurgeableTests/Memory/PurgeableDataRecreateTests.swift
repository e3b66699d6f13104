// SPDX-License-Identifier: MIT
// PurgeableData: content that is made again by a closure; and discardable content in general.

import Synchronization
import Testing

@testable import Purgeable

/// Decides what a test's recreate closure does next.
final class Recipe: Sendable {
  struct Failure: Error {}
  let calls = Atomic<Int>(0)
  let next = Mutex<Result<[UInt8]?, Failure>>(.success([]))

  init(_ next: Result<[UInt8]?, Failure>) { self.next.withLock { $0 = next } }

  func make() throws -> [UInt8]? {
    calls.add(1, ordering: .relaxed)
    return try next.withLock { $0 }.get()
  }

  var callCount: Int { calls.load(ordering: .relaxed) }
}

@Suite("PurgeableData, recreating")
struct PurgeableDataRecreateTests {
  private func discarded(_ recipe: Recipe) throws -> PurgeableData {
    let data = try PurgeableData([1, 2, 3], name: "recreated") { try recipe.make() }
    data.endContentAccess()
    data.discardContentIfPossible()
    return data
  }

  @Test("a begin on discarded content recreates it and answers true", arguments: [0, 1, 50_000])
  func begin(count: Int) throws {
    let recipe = Recipe(.success(pattern(count)))
    let data = try discarded(recipe)
    #expect(data.isContentDiscarded)
    #expect(recipe.callCount == 0)
    #expect(data.beginContentAccess())
    #expect(data.accessCount == 1)
    #expect(!data.isContentDiscarded)
    #expect(data.count == count)
    #expect(data.beginContentAccess())
    #expect(recipe.callCount == 1)
    data.endContentAccess()
    data.endContentAccess()
    #expect(data.array() == pattern(count))
    #expect(recipe.callCount == 1)
  }

  @Test("withBytes recreates as well, and leaves no access behind")
  func scoped() throws {
    let recipe = Recipe(.success([4, 5]))
    let data = try discarded(recipe)
    #expect(data.array() == [4, 5])
    #expect(data.accessCount == 0)
    data.discardContentIfPossible()
    #expect(data.array() == [4, 5])
    #expect(recipe.callCount == 2)
  }

  @Test("a closure that throws or has nothing leaves the content discarded", arguments: [true, false])
  func failing(isThrowing: Bool) throws {
    let recipe = Recipe(isThrowing ? .failure(Recipe.Failure()) : .success(nil))
    let data = try discarded(recipe)
    #expect(!data.beginContentAccess())
    #expect(data.array() == nil)
    #expect(data.accessCount == 0)
    #expect(data.isContentDiscarded)
    #expect(recipe.callCount == 2)
    recipe.next.withLock { $0 = .success([9]) }
    #expect(data.array() == [9])
  }

  @Test("within its own recreating the content is not there yet")
  func recursion() throws {
    final class Holder: Sendable {
      let data = Mutex<PurgeableData?>(nil)
      let answers = Mutex<[String]>([])
    }
    let holder = Holder()
    let data = try PurgeableData([1], name: "asks itself") {
      let data = holder.data.withLock { $0 }
      let refusal: PurgeableError.Kind?
      do throws(PurgeableError) {
        try data?.refill(with: [1])
        refusal = nil
      } catch { refusal = error.kind }
      holder.answers.withLock {
        $0.append("\(data?.beginContentAccess() == true) \(data?.array() == nil) \(refusal.map(\.description) ?? "none")")
      }
      data?.discardContentIfPossible()
      return [7]
    }
    holder.data.withLock { $0 = data }
    data.endContentAccess()
    data.discardContentIfPossible()
    #expect(data.array() == [7])
    #expect(holder.answers.withLock { $0 } == ["false true busy"])
    #expect(data.accessCount == 0)
    holder.data.withLock { $0 = nil }
  }

  @Test("many threads that begin at once recreate once and share it")
  func onceForAll() throws {
    let expected = pattern(9000)
    for _ in 0..<30 {
      let recipe = Recipe(.success(expected))
      let data = try discarded(recipe)
      let wrong = Atomic<Int>(0)
      onThreads(6) { index in
        if index.isMultiple(of: 2) {
          if !data.beginContentAccess() || data.count != 9000 { wrong.add(1, ordering: .relaxed) }
        } else if data.array() != expected {
          wrong.add(1, ordering: .relaxed)
        }
      }
      #expect(wrong.load(ordering: .relaxed) == 0)
      #expect(recipe.callCount == 1)
      #expect(data.accessCount == 3)
    }
  }
}

@Suite("DiscardableContent")
struct DiscardableContentTests {
  /// The smallest conforming object.
  final class Plain: DiscardableContent {
    let state = Mutex<(count: Int, isDiscarded: Bool)>((1, false))
    func beginContentAccess() -> Bool {
      state.withLock { state in
        if !state.isDiscarded { state.count += 1 }
        return !state.isDiscarded
      }
    }
    func endContentAccess() { state.withLock { $0.count = max($0.count - 1, 0) } }
    func discardContentIfPossible() { state.withLock { if $0.count == 0 { $0.isDiscarded = true } } }
    var isContentDiscarded: Bool { state.withLock { $0.isDiscarded } }
    var count: Int { state.withLock { $0.count } }
  }

  struct Own: Error {}

  @Test("the guard holds an access for the length of a closure")
  func guarding() throws {
    let plain = Plain()
    #expect(plain.withContentAccess { $0.count } == 2)
    #expect(plain.count == 1)
    #expect(throws: Own.self) { try plain.withContentAccess { _ throws(Own) in throw Own() } }
    #expect(plain.count == 1)
    let data = try PurgeableData(pattern(10))
    data.endContentAccess()
    #expect(data.withContentAccess { $0.count } == 10)
    #expect(data.accessCount == 0)
  }

  @Test("the guard answers nil, without calling, when content was discarded")
  func guardingDiscarded() async {
    let plain = Plain()
    plain.endContentAccess()
    plain.discardContentIfPossible()
    #expect(plain.withContentAccess { _ in Issue.record("called on discarded content") } == nil)
    let answer: Int? = await plain.withContentAccess { content async in
      Issue.record("called on discarded content")
      return content.count
    }
    #expect(answer == nil)
    #expect(plain.count == 0)
  }

  @Test("the guard holds an access across suspensions")
  func guardingAsync() async throws {
    let data = try PurgeableData(pattern(10))
    data.endContentAccess()
    let count: Int? = await data.withContentAccess { data async in
      await Task.yield()
      data.discardContentIfPossible()
      return data.count
    }
    #expect(count == 10)
    #expect(data.accessCount == 0)
    await #expect(throws: Own.self) {
      try await data.withContentAccess { _ async throws(Own) in throw Own() }
    }
    #expect(data.accessCount == 0)
  }

  /// An actor with state of its own, which a closure changes without leaving the actor.
  actor Reader {
    var seen: [UInt8] = []

    func read(_ data: PurgeableData) async {
      await data.withContentAccess { data async in
        assertIsolated()
        await Task.yield()
        assertIsolated()
        seen = data.array() ?? []
      }
    }
  }

  @Test("the guard's async closure runs on the actor of its caller, also after a suspension")
  func guardingOnActor() async throws {
    let data = try PurgeableData(pattern(10))
    data.endContentAccess()
    let reader = Reader()
    await reader.read(data)
    #expect(await reader.seen == pattern(10))
    #expect(data.accessCount == 0)
  }

  @Test("the guard's async closure runs on the main actor where its caller does")
  @MainActor func guardingOnMainActor() async throws {
    let data = try PurgeableData(pattern(10))
    let count: Int? = await data.withContentAccess { data async in
      await Task.yield()
      MainActor.assertIsolated()
      return data.count
    }
    #expect(count == 10)
    #expect(data.accessCount == 1)
  }

  @Test("the guard ends its access when the task is cancelled")
  func guardingCancelled() async throws {
    let data = try PurgeableData(pattern(10))
    data.endContentAccess()
    let task = Task {
      try await data.withContentAccess { data async throws(CancellationError) in
        while !Task.isCancelled { await Task.yield() }
        data.discardContentIfPossible()
        if data.count == 10 { throw CancellationError() }
      }
    }
    task.cancel()
    await #expect(throws: CancellationError.self) { _ = try await task.value }
    #expect(data.accessCount == 0 && !data.isContentDiscarded)
  }

  @Test("works through the protocol alone")
  func existential() throws {
    let contents: [any DiscardableContent] = [try PurgeableData([1]), Plain()]
    for content in contents {
      content.endContentAccess()
      content.discardContentIfPossible()
      #expect(content.isContentDiscarded)
      #expect(!content.beginContentAccess())
    }
  }
}
