// SPDX-License-Identifier: MIT
// Filling content: by one of many threads, given up, cancelled, beside discards and forks. No reader ever sees half of it.

import CPurgeable
import CPurgeable.Testing
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("content being made")
struct PurgeableFillTests {
  /// A region that threads share.
  final class Shared: Sendable {
    let region: PurgeableRegion
    init(_ byteCount: Int, _ offering: OfferingMode = .deferred) throws {
      region = try PurgeableRegion(discardedByteCount: byteCount, offering: offering)
    }
  }

  static let failure = PurgeableError(.tooLarge, in: "test", explanation: "on purpose")

  /// The longest pattern that a test here needs, for each seed from 1 to 8. Made once, because that is slow in debug builds.
  static let patterns = (UInt8(0)...8).map { pattern(max(13_000, 3 * pageSize), seed: $0) }

  static func made(_ count: Int, seed: Int) -> [UInt8] { [UInt8](patterns[seed].prefix(count)) }

  /// Whether all bytes are of one and the same seed.
  static func isWhole(_ bytes: [UInt8]) -> Bool {
    patterns.dropFirst().contains { pattern in
      guard bytes.count <= pattern.count else { return false }
      // Safe: both hold so many bytes for the length of the closures.
      return unsafe pattern.withUnsafeBytes { all in
        unsafe bytes.withUnsafeBytes { unsafe memcmp(all.baseAddress!, $0.baseAddress!, $0.count) == 0 }
      }
    }
  }

  static func write(_ bytes: [UInt8], to span: inout MutableRawSpan) {
    // Safe: as above.
    unsafe span.withUnsafeMutableBytes { target in
      unsafe bytes.withUnsafeBytes { unsafe target.copyMemory(from: UnsafeRawBufferPointer(rebasing: $0.prefix(target.count))) }
    }
  }

  @Test("born discarded, filled by who asks first, and states on the way")
  func bornDiscarded() throws {
    var region = try PurgeableRegion(discardedByteCount: 5000)
    #expect(region.state == .discarded && region.isDiscarded && region.lockCount == 0)
    #expect(region.array() == nil)
    let seen = try region.withBytes(
      orRefilling: { span throws(PurgeableError) in
        #expect(span.bytes.array == [UInt8](repeating: 0, count: 5000))
        span.write(pattern(5000))
      },
      { bytes throws(PurgeableError) in bytes.array })
    #expect(seen == pattern(5000))
    #expect(region.state == .idle && region.lockCount == 0)
    region.withBytes { _ in #expect(region.state == .locked) }
    region.withMutableBytes { $0.write([7]) }
    let again = try region.withBytes(
      orRefilling: { _ throws(PurgeableError) in Issue.record("it is not discarded") },
      { bytes throws(PurgeableError) in bytes.array[0] })
    #expect(again == 7)
    #expect(throws: PurgeableError.self) { _ = try PurgeableRegion(discardedByteCount: 0) }
  }

  @Test("a fill that throws leaves it discarded, and is counted")
  func fillThrows() throws {
    let region = try PurgeableRegion(discardedByteCount: 5000)
    let before = PurgeableRegion.statistics.abandonedFillCount
    do throws(PurgeableError) {
      try region.withBytes(
        orRefilling: { span throws(PurgeableError) in
          span.write([1])
          throw Self.failure
        },
        { _ throws(PurgeableError) in Issue.record("lent half of it") })
      Issue.record("did not throw")
    } catch { #expect(error == Self.failure) }
    #expect(region.state == .discarded && region.lockCount == 0)
    #expect(PurgeableRegion.statistics.abandonedFillCount > before)
  }

  @Test("one of many threads fills, and all of them read it")
  func onceForAll() throws {
    for _ in 0..<100 {
      let shared = try Shared(9000)
      let fills = Atomic<Int>(0)
      let wrong = Atomic<Int>(0)
      onThreads(5) { _ in
        let seen = try? shared.region.withBytes(
          orRefilling: { span throws(PurgeableError) in
            fills.add(1, ordering: .relaxed)
            sched_yield()
            span.write(pattern(9000))
          },
          { bytes throws(PurgeableError) in bytes.array })
        if seen != pattern(9000) { wrong.add(1, ordering: .relaxed) }
      }
      #expect(fills.load(ordering: .relaxed) == 1)
      #expect(wrong.load(ordering: .relaxed) == 0)
      #expect(shared.region.lockCount == 0)
    }
  }

  @Test(
    "who waits for a fill that is given up is told discarded",
    .enabled(if: purgeable_testing_has_hooks(), "this build does not count who waits"))
  func waitsForFailure() async {
    // In a process of its own, where nobody else waits for a fill.
    await #expect(processExitsWith: .success) {
      let shared = try Shared(9000)
      let isFilling = Atomic<Bool>(false)
      let told = Atomic<Int>(0)
      onThreads(4) { index in
        if index == 0 {
          _ = try? shared.region.withBytes(
            orRefilling: { span throws(PurgeableError) in
              span.write([1, 2, 3])
              isFilling.store(true, ordering: .releasing)
              require(patiently { purgeable_testing_waited_fill_count() == 3 }, "nobody waits")
              throw PurgeableFillTests.failure
            }, { _ throws(PurgeableError) in })
          return
        }
        while !isFilling.load(ordering: .acquiring) { sched_yield() }
        let seen =
          index == 1
          ? shared.region.array()
          : try? shared.region.withBytes(
            orRefilling: { _ throws(PurgeableError) in require(false, "elected, though it waited") },
            { bytes throws(PurgeableError) in bytes.array })
        if seen == nil { told.add(1, ordering: .relaxed) }
      }
      require(told.load(ordering: .relaxed) == 3, "\(told.load(ordering: .relaxed)) were told")
      require(shared.region.state == .discarded, "it is not discarded")
    }
  }

  @Test("beside discards, offers and failures, from many threads: never half of it")
  func regionStorm() throws {
    try needRealDiscards()
    for offering in [OfferingMode.deferred, .immediate, .never] {
      let shared = try Shared(3 * pageSize, offering)
      let wrong = Atomic<Int>(0)
      let fills = Atomic<Int>(0)
      let rounds = (TestRun.isFull ? 200 : 20) * Self.scale
      onThreads(4) { index in
        var random = SplitMix64(seed: chosenSeed &+ UInt64(index))
        for _ in 0..<rounds {
          switch random.index(below: 8) {
          case 0: try? shared.region.discard()
          case 1: try? shared.region.offer()
          case 2: shared.region.withBytes { _ = PageRange(of: $0).advise(advicePageout) }
          case 3: if let seen = shared.region.array(), !Self.isWhole(seen) { wrong.add(1, ordering: .relaxed) }
          default:
            let seed = random.index(below: 8) + 1
            let seen = try? shared.region.withBytes(
              orRefilling: { span throws(PurgeableError) in
                fills.add(1, ordering: .relaxed)
                Self.write(Self.made(pageSize, seed: seed), to: &span)
                if random.index(below: 4) == 0 { throw Self.failure }
                Self.write(Self.made(3 * pageSize, seed: seed), to: &span)
              },
              { bytes throws(PurgeableError) in bytes.array })
            if let seen, !Self.isWhole(seen) { wrong.add(1, ordering: .relaxed) }
          }
        }
      }
      #expect(wrong.load(ordering: .relaxed) == 0, "seed \(chosenSeed)")
      // Born discarded: the first that asks fills.
      #expect(fills.load(ordering: .relaxed) > 0)
      #expect(shared.region.lockCount == 0)
    }
  }

  @Test("using a region within the closure that fills it stops the program, and says so")
  func nested() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let region = try PurgeableRegion(discardedByteCount: 10)
      _ = try region.withBytes(
        orRefilling: { _ throws(PurgeableError) in region.withBytes { _ in } }, { _ throws(PurgeableError) in })
    }
    let text = String(decoding: result?.standardErrorContent ?? [], as: UTF8.self)
    #expect(text.contains("withBytes within the closure that fills it"))
  }

  @Test("a forked child waits for nobody", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      let shared = try Shared(10_000)
      _ = try shared.region.withBytes(
        orRefilling: { span throws(PurgeableError) in
          span.write(pattern(10_000))
          let isWell = childSays {
            require(shared.region.state == .discarded && shared.region.array() == nil, "discarded in the child")
            let seen = try? shared.region.withBytes(
              orRefilling: { $0.write(pattern(10_000, seed: 2)) }, { bytes throws(PurgeableError) in bytes.array })
            require(seen == pattern(10_000, seed: 2), "filled in the child")
            return true
          }
          require(isWell, "the child found what it should")
        },
        { bytes throws(PurgeableError) in require(bytes.array == pattern(10_000), "the parent's content") })
      exit(0)
    }
  }

  // MARK: PurgeableData

  /// Makes content with a new seed each time, in two halves, and fails now and then.
  final class Maker: Sendable {
    let calls = Atomic<Int>(0)
    let atWork = Atomic<Int>(0)
    let atOnce = Atomic<Int>(0)
    let failsEach: Int
    init(failsEach: Int) { self.failsEach = failsEach }

    func make() throws -> [UInt8]? {
      let number = calls.add(1, ordering: .relaxed).newValue
      if atWork.add(1, ordering: .relaxed).newValue > 1 { atOnce.add(1, ordering: .relaxed) }
      defer { atWork.subtract(1, ordering: .relaxed) }
      sched_yield()
      if number % failsEach == 0 { throw CancellationError() }
      if number % failsEach == 1 { return nil }
      return PurgeableFillTests.made(5000 + number % 3 * 4000, seed: number % 8 + 1)
    }
  }

  final class Tally: Sendable {
    let wrong = Atomic<Int>(0)
    let seen = Atomic<Int>(0)
  }

  @Test("who waits for recreating that fails is told so, and does not repeat it")
  func recreatingFails() throws {
    let calls = Atomic<Int>(0)
    let isMaking = Atomic<Bool>(false)
    let told = Atomic<Int>(0)
    let made = Mutex<PurgeableData?>(nil)
    let data = try PurgeableData([1]) {
      calls.add(1, ordering: .relaxed)
      isMaking.store(true, ordering: .releasing)
      // This thread and three others.
      let othersWait = patiently { made.withLock { $0!.remakerCount } == 4 }
      #expect(othersWait)
      return nil
    }
    made.withLock { $0 = data }
    data.endContentAccess()
    data.discardContentIfPossible()
    onThreads(4) { index in
      if index > 0 { while !isMaking.load(ordering: .acquiring) { sched_yield() } }
      if index == 1 ? data.array() == nil : !data.beginContentAccess() { told.add(1, ordering: .relaxed) }
    }
    #expect(told.load(ordering: .relaxed) == 4)
    #expect(calls.load(ordering: .relaxed) == 1)
    #expect(data.accessCount == 0 && data.isContentDiscarded && data.remakerCount == 0)
    made.withLock { $0 = nil }
  }

  @Test("PurgeableData beside discards, changes, refills, failures and cancellation: never half of it")
  func dataStorm() async throws {
    try needRealDiscards()
    for offering in [OfferingMode.deferred, .immediate] {
      let maker = Maker(failsEach: 5)
      let data = try PurgeableData(Self.made(9000, seed: 1), name: "stormed", offering: offering) { try maker.make() }
      data.endContentAccess()
      let tally = Tally()
      let look: @Sendable () -> Void = {
        guard let bytes = data.array() else { return }
        tally.seen.add(1, ordering: .relaxed)
        if !bytes.isEmpty, !Self.isWhole(bytes) { tally.wrong.add(1, ordering: .relaxed) }
      }
      let rounds = (TestRun.isFull ? 150 : 20) * Self.scale
      // Tasks that are cancelled in the middle, beside threads.
      let tasks = (0..<4).map { number in
        Task {
          for _ in 0..<rounds where !Task.isCancelled {
            await data.withContentAccess { data in
              await Task.yield()
              if data.isContentDiscarded { tally.wrong.add(1, ordering: .relaxed) }
            }
            if number == 0 { try? await Task.sleep(nanoseconds: 1000) }
          }
        }
      }
      onThreads(4) { index in
        var random = SplitMix64(seed: chosenSeed &+ UInt64(index + 9))
        for round in 0..<rounds {
          switch random.index(below: 8) {
          case 0: data.discardContentIfPossible()
          case 1: _ = data.withBytes { PageRange(of: $0).advise(advicePageout) }
          case 2:
            // As after creation, an access has to be ended.
            if (try? data.refill(with: Self.made(7000, seed: round & 7 + 1))) != nil { data.endContentAccess() }
          case 3:
            if data.beginContentAccess() {
              try? data.replaceBytes(with: Self.made(6000, seed: round & 7 + 1))
              look()
              data.endContentAccess()
            }
          default: look()
          }
          if index == 3, round == rounds / 2 { for task in tasks.prefix(2) { task.cancel() } }
        }
      }
      for task in tasks { await task.value }
      #expect(tally.wrong.load(ordering: .relaxed) == 0, "seed \(chosenSeed)")
      if TestRun.isFull {
        #expect(tally.seen.load(ordering: .relaxed) > 0)
        #expect(maker.calls.load(ordering: .relaxed) > 0)
      }
      #expect(maker.atOnce.load(ordering: .relaxed) == 0)
    }
  }

  static let scale = max(1, Int(unsafe getenv("PURGEABLE_STORM").map { unsafe String(cString: $0) } ?? "1") ?? 1)
}
