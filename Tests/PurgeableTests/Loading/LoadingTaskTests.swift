// SPDX-License-Identifier: MIT
// Loads in tasks: shared, cancelled, within each other, beside threads, for many keys.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

private enum Mark {
  @TaskLocal static var text = ""
}

@Suite("loading in tasks")
struct LoadingTaskTests {
  /// 50 tasks ask for each key several times, each in an order of its own.
  private func askAll(_ kind: CacheKind, tasks: Int, keys: Int, times: Int, pause: Duration?) async throws {
    let cache = try kind.make()
    let loads = LoadCounter()
    await withTaskGroup { group in
      for number in 0..<tasks {
        group.addTask {
          for round in 0..<times {
            for step in 0..<keys {
              let key = (step + number * 7 + round) % keys
              let value = await cache.value(forKey: key) {
                loads.next()
                if let pause { try? await Task.sleep(for: pause) } else { await Task.yield() }
                return [UInt8(truncatingIfNeeded: key)]
              }
              if value != [UInt8(truncatingIfNeeded: key)] { Issue.record("key \(key): \(value)") }
            }
          }
        }
      }
    }
    #expect(loads.value == keys && cache.statistics.loadCount == keys)
  }

  @Test("50 tasks that ask for the same keys make one load a key", arguments: CacheKind.allCases)
  func once(_ kind: CacheKind) async throws { try await askAll(kind, tasks: 50, keys: 40, times: 3, pause: nil) }

  @Test(
    "50 tasks that ask for 1,000 keys a hundred times make 1,000 loads of a millisecond", .fullRun, arguments: CacheKind.allCases)
  func onceOfMany(_ kind: CacheKind) async throws {
    try await askAll(kind, tasks: 50, keys: 1000, times: 100, pause: .milliseconds(1))
  }

  @Test("a closure that does not await takes the async form in async code; a hit calls no load", arguments: CacheKind.allCases)
  func forms(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    #expect(await cache.value(forKey: 1) { [1] } == [1])
    #expect(await cache.value(forKey: 1) { [2] } == [1])
    #expect(await cache.value(forKey: 2) { nil } == nil)
    #expect(await cache.values(forKeys: [1, 3]) { _ in [3: [3]] } == [[1], [3]])
    #expect(cache.statistics.loadCount == 3)
  }

  @Test("the load's task has the first asker's task-local values and priority", arguments: CacheKind.allCases)
  func inherits(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let task = Task(priority: .low) {
      await Mark.$text.withValue("here") {
        await cache.value(forKey: 1) {
          #expect(Mark.text == "here" && Task.basePriority == .low)
          return [1]
        }
      }
    }
    #expect(await task.value == [1])
  }

  @Test(
    "errors and nil are not kept; an error goes to those who could throw it, the others load by themselves",
    arguments: CacheKind.allCases)
  func errors(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let goes = Event()
    let first = Task { () throws(LoadError) in
      try await cache.value(forKey: 1) { () async throws(LoadError) -> [UInt8] in
        await goes.comes()
        throw LoadError(number: 1)
      }
    }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 1 })
    let second = Task { try await cache.value(forKey: 1) { () async throws -> [UInt8] in throw LoadError(number: 2) } }
    let third = Task { await cache.value(forKey: 1) { [3] } }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 3 })
    goes.happens()
    await #expect(throws: LoadError(number: 1)) { try await first.value }
    await #expect(throws: LoadError(number: 1)) { try await second.value }
    #expect(await third.value == [3])
    #expect(await cache.value(forKey: 2) { () async -> [UInt8]? in nil } == nil)
    #expect(cache.peekValue(forKey: 2) == nil)
    let statistics = cache.statistics
    #expect(statistics.loadCount == 3 && statistics.loadFailureCount == 1 && statistics.sharedLoadCount == 1)
  }

  // MARK: Cancellation

  @Test("an asker that is cancelled leaves, the load goes on for the others", arguments: CacheKind.allCases)
  func leaves(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let goes = Event()
    let load: @Sendable () async throws -> [UInt8] = {
      await goes.comes()
      #expect(!Task.isCancelled)
      return [1]
    }
    // The first asker, too, may leave.
    let tasks = (0..<3).map { _ in Task { try await cache.value(forKey: 1, loading: load) } }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 3 })
    for task in tasks[..<2] { task.cancel() }
    for task in tasks[..<2] { await #expect(throws: CancellationError.self) { try await task.value } }
    #expect(cache.loads.counts(of: 1).waiters == 1)
    goes.happens()
    #expect(try await tasks[2].value == [1])
    #expect(cache.statistics.loadCount == 1)
  }

  @Test("a load is cancelled when nobody waits for it; who asks then loads anew", arguments: CacheKind.allCases)
  func cancelled(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let (wasCancelled, goes) = (Event(), Event())
    let tasks = (0..<2).map { _ in
      Task {
        try await cache.value(forKey: 1) { () async throws -> [UInt8] in
          await TestRun.comes { Task.isCancelled } ? wasCancelled.happens() : ()
          await Task { _ = await goes.comes() }.value
          return [1]
        }
      }
    }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 2 })
    for task in tasks { task.cancel() }
    for task in tasks { await #expect(throws: CancellationError.self) { try await task.value } }
    #expect(await wasCancelled.comes())
    #expect(await cache.value(forKey: 1) { [2] } == [2])
    goes.happens()
    #expect(await TestRun.comes { cache.statistics.loadCount == 2 })
    #expect(cache.peekValue(forKey: 1) == [2], "the first to end is kept")
  }

  @Test(
    "what a cancelled load makes is not kept, nor that it found nothing", arguments: CacheKind.allCases, [[7] as [UInt8], nil])
  func cancelledResult(_ kind: CacheKind, _ made: [UInt8]?) async throws {
    let cache = try kind.make()
    let (began, goes) = (Event(), Event())
    let asker = Task {
      try await cache.value(forKey: 1, keepingNilFor: .seconds(3600)) { () async throws -> [UInt8]? in
        began.happens()
        await Task { _ = await goes.comes() }.value
        return made
      }
    }
    #expect(await began.comes())
    asker.cancel()
    await #expect(throws: CancellationError.self) { try await asker.value }
    goes.happens()
    #expect(await TestRun.comes { cache.statistics.loadCount == 1 && cache.loads.counts(of: 1).flights == 0 })
    #expect(cache.peekValue(forKey: 1) == nil)
    #expect(await cache.loadIfAnyInTask(1, nil) { [2] } == [2] && cache.peekValue(forKey: 1) == [2])
  }

  @Test("an asker that cannot throw the error of cancellation waits", arguments: CacheKind.allCases)
  func stays(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let goes = Event()
    let task = Task {
      try? await cache.value(forKey: 1) { () async throws(LoadError) -> [UInt8] in
        await goes.comes()
        #expect(!Task.isCancelled)
        return [1]
      }
    }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 1 })
    task.cancel()
    goes.happens()
    #expect(await task.value == [1])
  }

  @Test(
    "askers that come and are cancelled at any moment get the value or leave, and the load ends", arguments: CacheKind.allCases)
  func cancellationStorm(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    for round in 0..<300 / slowness {
      let tasks = (0..<6).map { number in
        Task {
          try await cache.value(forKey: round) { () async throws -> [UInt8] in
            for _ in 0..<round % 5 { await Task.yield() }
            return [1]
          }
        }
      }
      if round % 3 == 0 { await Task.yield() }
      for task in tasks[..<4] { task.cancel() }
      for task in tasks[..<4] {
        switch await task.result {
        case .success(let value): #expect(value == [1])
        case .failure(let error): #expect(error is CancellationError)
        }
      }
      for task in tasks[4...] { #expect(try await task.value == [1]) }
    }
  }

  // MARK: Threads and tasks

  @Test("a load that never returns harms its own key only, however many tasks wait for it", arguments: CacheKind.allCases)
  func never(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let goes = Event()
    let stuck = (0..<64).map { _ in
      Task {
        await cache.value(forKey: 1) {
          await goes.comes()
          return [1]
        }
      }
    }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 64 })
    for key in 2..<100 { #expect(await cache.value(forKey: key) { [UInt8(key)] } == [UInt8(key)]) }
    #expect(await cache.values(forKeys: [2, 200]) { _ in [200: [200]] } == [[2], [200]])
    goes.happens()
    for task in stuck { #expect(await task.value == [1]) }
  }

  /// A synchronous call in a task, which must not wait for another task.
  private func onThread(_ cache: any LoadingCache<Int>, _ load: () -> [UInt8]) -> [UInt8] {
    cache.value(forKey: 1, loading: load)
  }

  @Test("a thread does not wait for a task's load: it loads by itself, and who ends first is kept", arguments: CacheKind.allCases)
  func threadBesideTask(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let goes = Event()
    let task = Task {
      await cache.value(forKey: 1) {
        await goes.comes()
        return [1]
      }
    }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 1 })
    #expect(onThread(cache) { [2] } == [2])
    goes.happens()
    #expect(await task.value == [1], "its own value")
    #expect(cache.peekValue(forKey: 1) == [2])
  }

  @Test("a task waits for a thread's load without blocking a thread, and may leave", arguments: CacheKind.allCases)
  func taskBesideThread(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let held = HeldLoad(cache, 1, [1])
    #expect(await held.began.comes())
    let tasks = (0..<8).map { _ in Task { try await cache.value(forKey: 1) { () async throws -> [UInt8] in [2] } } }
    #expect(await TestRun.comes { cache.loads.counts(of: 1).waiters == 8 })
    tasks[0].cancel()
    await #expect(throws: CancellationError.self) { try await tasks[0].value }
    held.goesOn()
    for task in tasks[1...] { #expect(try await task.value == [1]) }
    #expect(held.join() == [1])
    #expect(cache.statistics.loadCount == 1)
  }

  @Test("loads that have ended are not kept by those that tasks of theirs begin")
  func enclosing() {
    var outer: EnclosingLoads?
    for _ in 0..<1000 {
      let call = LoadCall(thread: nil)
      outer = EnclosingLoads(call, outer)
      #expect(outer?.contains(call) == true)
      call.hasEnded.store(true, ordering: .relaxed)
    }
    #expect(outer?.calls.count == 1)
  }

  @Test("a load asks for its own key within, in its task or a child task, without waiting", arguments: CacheKind.allCases)
  func within(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    let value = await cache.value(forKey: 1) {
      let two = await cache.value(forKey: 2) {
        async let inner = cache.value(forKey: 1) { [1] }
        return await inner + [2]
      }
      return two + [3]
    }
    #expect(value == [1, 2, 3])
    #expect(cache.peekValue(forKey: 1) == [1] && cache.peekValue(forKey: 2) == [1, 2])
  }

  @Test("stores and removals during a task's load win over it", arguments: Overtaker.allCases, CacheKind.allCases)
  func overtaken(_ overtaker: Overtaker, _ kind: CacheKind) async throws {
    let cache = try kind.make()
    let (began, goes) = (Event(), Event())
    let task = Task {
      await cache.value(forKey: 1) {
        began.happens()
        await goes.comes()
        return [8]
      }
    }
    #expect(await began.comes())
    overtaker.act(on: cache, 1)
    goes.happens()
    #expect(await task.value == [8])
    #expect(cache.peekValue(forKey: 1) == overtaker.left)
  }

  // MARK: Many keys

  @Test(
    "many keys: one call for what is missing and nobody loads; a waiter for one key keeps it from being cancelled",
    arguments: CacheKind.allCases)
  func many(_ kind: CacheKind) async throws {
    let cache = try kind.make()
    cache[3] = [3]
    let (one, goes) = (Event(), Event())
    let single = Task {
      await cache.value(forKey: 1) {
        one.happens()
        await goes.comes()
        return [1]
      }
    }
    #expect(await one.comes())
    let group: @Sendable () async throws -> [[UInt8]?] = {
      try await cache.values(forKeys: [1, 2, 2, 3, 4, 5]) { missing async throws in
        #expect(missing == [2, 4, 5])
        await goes.comes()
        #expect(!Task.isCancelled)
        return [2: [2], 4: [4]]
      }
    }
    let leaver = Task { try await group() }
    #expect(await TestRun.comes { cache.loads.counts(of: 4).waiters == 1 })
    let joiner = Task { try await group() }
    #expect(await TestRun.comes { cache.loads.counts(of: 4).waiters == 2 && cache.loads.counts(of: 1).waiters == 3 })
    leaver.cancel()
    await #expect(throws: CancellationError.self) { try await leaver.value }
    goes.happens()
    #expect(try await joiner.value == [[1], [2], [2], [3], [4], nil])
    #expect(await single.value == [1])
    #expect(cache.statistics.loadCount == 2)
  }
}
