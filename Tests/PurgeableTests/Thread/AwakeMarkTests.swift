// SPDX-License-Identifier: MIT
// Forks beside the library's thread at work.

import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A source that keeps the library's thread at work.
private final class SlowSource: PressureSource {
  let name = "slow"
  let pollingInterval: Duration? = .milliseconds(10)
  let descriptors: [PressureDescriptor] = []
  let isInside = Atomic<Bool>(false)
  let isHeld = Atomic<Bool>(true)

  func level(ready: [PressureDescriptor]) -> PressureLevel {
    isInside.store(true, ordering: .sequentiallyConsistent)
    // Long enough for the fork to begin.
    usleep(20_000)
    while isHeld.load(ordering: .sequentiallyConsistent) { usleep(100) }
    isInside.store(false, ordering: .sequentiallyConsistent)
    return .normal
  }

  func reopen() {}
  func close() {}

  func awaitThread() { while !isInside.load(ordering: .sequentiallyConsistent) { sched_yield() } }
}

@Suite("forks beside the library's thread at work", .serialized)
struct AwakeMarkTests {
  @Test("a fork waits until the thread sleeps, so that a child finds no mutex of the runtime taken by it", .forks)
  func waits() async {
    await #expect(processExitsWith: .success) {
      endAfter(seconds: 300)
      Maintainer.shared.signal.awake.patience = 100_000_000_000
      let source = SlowSource()
      source.isHeld.store(false, ordering: .sequentiallyConsistent)
      let monitor = PressureMonitor(source: source)
      for round in 0..<3 {
        source.awaitThread()
        require(childSays { !source.isInside.load(ordering: .sequentiallyConsistent) }, "round \(round)")
      }
      require(monitor.level == .normal, "the parent's thread goes on")
    }
  }

  @Test("when the thread has reacted to pressure once, a fork waits for milliseconds only", .forks)
  func reacted() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let cache = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<2000 { cache[key] = [UInt8](repeating: 1, count: 1000) }
      let awake = Maintainer.shared.signal.awake
      let before = awake.patience
      source.set(.critical)
      // A reaction that gives nothing back, for want of room on this machine, may come first.
      let hasReacted = { PurgeableMemory.pressureStatistics.reactionCount > 0 && awake.patience < before / 10 }
      require(patiently { hasReacted() }, "reacts, and waits less")
      require(childSays { cache.isEmpty }, "the child is another process")
    }
  }

  @Test("a fork does not wait for ever: the child has a thread of its own all the same, and so has the parent", .forks)
  func endures() async {
    await #expect(processExitsWith: .success) {
      endAfter(seconds: 300)
      let awake = Maintainer.shared.signal.awake
      awake.patience = 1_000_000
      let source = SlowSource()
      let monitor = PressureMonitor(source: source)
      source.awaitThread()
      let isWell = childSays {
        let isInherited = source.isInside.exchange(false, ordering: .sequentiallyConsistent) && !hasLibraryThread()
        let own = FakeSource()
        let second = PressureMonitor(source: own)
        // The child's thread meets the parent's source as well.
        source.isHeld.store(false, ordering: .sequentiallyConsistent)
        own.set(.warning)
        guard patiently({ second.level == .warning }) else { return false }
        awake.patience = 100_000_000_000
        return isInherited && childSays { true }
      }
      require(isWell, "the child's thread works, and its forks wait for it")
      source.isHeld.store(false, ordering: .sequentiallyConsistent)
      require(patiently { !source.isInside.load(ordering: .sequentiallyConsistent) }, "the parent's thread goes on")
      require(monitor.level == .normal && childSays { true }, "and so do its forks")
    }
  }
}
