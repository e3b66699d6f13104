// SPDX-License-Identifier: MIT
// Each kind of call that starts the library's thread, alone in a process of its own.

import CPurgeablePressure
import Glibc
import Testing
import ToolSupport

@testable import Purgeable

@Suite("the library's thread: what starts it", .serialized)
struct ThreadStartTests {
  @Test("a monitor, in a process without any cache, and with the monitor the thread ends")
  func monitorAlone() async {
    await #expect(processExitsWith: .success) {
      require(!hasLibraryThread(), "none at first")
      let source = FakeSource()
      let monitor = PressureMonitor(source: source)
      require(patiently { hasLibraryThread() }, "starts")
      source.set(.warning)
      require(patiently { monitor.level == .warning }, "and hears")
      _ = consume monitor
      require(patiently { !hasLibraryThread() }, "ends")
    }
  }

  @Test("a region that becomes idle, which is then offered; the one after that is offered as well")
  func regionAlone() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      var first = try PurgeableRegion(byteCount: 1 << 20)
      _ = first.withMutableBytes { bytes in bytes.write([1]) }
      require(patiently { first.offeredBytes > 0 && PurgeableRegion.statistics.pendingCount == 0 }, "offered")
      require(Maintainer.shared.wakeUps.load(ordering: .relaxed) > 0, "by the thread")
      require(patiently { !WorkBell.isRung.load(ordering: .relaxed) }, "that hears the next one")
      var second = try PurgeableRegion(byteCount: 1 << 20)
      _ = second.withMutableBytes { bytes in bytes.write([2]) }
      require(patiently { second.offeredBytes > 0 && PurgeableRegion.statistics.pendingCount == 0 }, "and so on")
    }
  }

  @Test("a region in immediate mode too: what the last unlock's offer has skipped is offered once more")
  func immediateRegion() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      var region = try PurgeableRegion(byteCount: 1 << 20, offering: .immediate)
      _ = region.withMutableBytes { bytes in bytes.write([1]) }
      require(patiently { Maintainer.shared.wakeUps.load(ordering: .relaxed) > 0 }, "the thread")
      require(patiently { PurgeableRegion.statistics.pendingCount == 0 } && region.offeredBytes > 0, "offered")
    }
  }

  @Test("a look at a value, which takes it off offer: it is offered again")
  func lookedAt() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache.setValue([UInt8](repeating: 7, count: 100_000), forKey: 1)
      let isQuiet = { !cache.engine.heap.hasPending && !WorkBell.isRung.load(ordering: .relaxed) }
      require(patiently { isQuiet() }, "what was stored is on offer")
      let offered = cache.statistics.memory.offeredBytes
      require(offered > 100_000 - pageSize, "all of it")
      // While it is held, nobody can offer it.
      let left = cache.withBytes(forKey: 1) { _ in cache.statistics.memory.offeredBytes }
      require(left == 0, "is there, and off offer: \(left ?? -1)")
      require(patiently { isQuiet() && cache.statistics.memory.offeredBytes == offered }, "and is on offer again")
    }
  }

  @Test("an idle time, which may be all that there is to do")
  func idleTime() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      let (cache, objects) = (try PurgeableCache<Int, [UInt8]>(), try ObjectCache<Int, Int>())
      cache[1] = [1]
      objects[1] = 1
      func isCalled(by body: () throws -> Void) rethrows -> Bool {
        guard patiently({ !cache.engine.heap.hasPending && !WorkBell.isRung.load(ordering: .relaxed) }) else { return false }
        let before = Maintainer.shared.wakeUps.load(ordering: .relaxed)
        try body()
        return patiently { Maintainer.shared.wakeUps.load(ordering: .relaxed) > before }
      }
      require(try isCalled { try cache.setIdleTime(.seconds(3600)) }, "of bytes")
      try cache.setIdleTime(nil)
      require(try isCalled { try objects.setIdleTime(.seconds(3600)) }, "of objects")
    }
  }

  @Test("a cache only with what is stored; the last one that goes has the thread end")
  func cacheAlone() async {
    await #expect(processExitsWith: .success) {
      do {
        let cache = try PurgeableCache<Int, [UInt8]>()
        require(!hasLibraryThread() && cache.isEmpty, "nothing to do yet")
      }
      require(!hasLibraryThread() && !WorkBell.isRung.load(ordering: .relaxed), "its end starts none")
      var first: PurgeableCache<Int, [UInt8]>? = try PurgeableCache()
      let second = try PurgeableCache<Int, [UInt8]>()
      first?[1] = [1]
      require(patiently { hasLibraryThread() }, "starts")
      first = nil
      require(!ClientRoster.shared.isEmpty && second.isEmpty, "one is left")
      _ = consume second
      require(patiently { !hasLibraryThread() }, "ends")
    }
  }

  @Test("a thread that cannot be started is told of, and stores try again only after a pause; a monitor at once", .countsMemory)
  func refused() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let clock = SetClock()
      Maintainer.shared.clock = clock.monotonic
      let cache = try PurgeableCache<Int, [UInt8]>()
      require(PurgeableMemory.pressureStatistics.threadErrorNumber == 0, "not tried")
      let address = __rlimit_resource_t(RLIMIT_AS.rawValue)
      var limit = rlimit()
      require(unsafe getrlimit(address, &limit) == 0, "getrlimit")
      // No room for a stack.
      var none = rlimit(rlim_cur: 0, rlim_max: limit.rlim_max)
      require(unsafe setrlimit(address, &none) == 0, "setrlimit")
      WorkBell.ring()
      require(unsafe setrlimit(address, &limit) == 0, "setrlimit")
      require(!hasLibraryThread(), "refused")
      require(PurgeableMemory.pressureStatistics.threadErrorNumber == EAGAIN, "says why")
      // Room for an object, and for no stack.
      var watch: OpaquePointer?
      let pages = UInt64(SmallFile.text("/proc/self/statm")!.split(separator: " ")[0])!
      var little = rlimit(rlim_cur: rlim_t(pages * UInt64(pageSize) + 400 << 10), rlim_max: limit.rlim_max)
      require(unsafe setrlimit(address, &little) == 0, "setrlimit")
      let error = unsafe purgeable_pressure_watch({ _, _ in }, nil, &watch)
      require(unsafe setrlimit(address, &limit) == 0, "setrlimit")
      require(unsafe error == EAGAIN && watch == nil, "a watch that would hear of nothing: \(error)")
      require(Maintainer.shared.nextStart.load(ordering: .relaxed) > 0, "a pause")
      clock.advance(seconds: 0.9)
      for key in 0..<1000 { cache[key] = [1] }
      require(!hasLibraryThread(), "no store tries in the pause")
      require(PurgeableMemory.pressureStatistics.threadErrorNumber == EAGAIN, "which is told of")
      clock.advance(seconds: 0.1)
      cache[0] = [2]
      // The thread names itself.
      require(patiently { hasLibraryThread() }, "a store after the pause does")
      require(PurgeableMemory.pressureStatistics.threadErrorNumber == 0, "which is told of too")
      require(Maintainer.shared.nextStart.load(ordering: .relaxed) == 0, "no pause is left")
    }
    await #expect(processExitsWith: .success) {
      alarm(600)
      let clock = SetClock()
      Maintainer.shared.clock = clock.monotonic
      let address = __rlimit_resource_t(RLIMIT_AS.rawValue)
      var limit = rlimit()
      require(unsafe getrlimit(address, &limit) == 0, "getrlimit")
      // No room for a stack.
      var none = rlimit(rlim_cur: 0, rlim_max: limit.rlim_max)
      require(unsafe setrlimit(address, &none) == 0, "setrlimit")
      let monitor = PressureMonitor(source: FakeSource())
      require(unsafe setrlimit(address, &limit) == 0, "setrlimit")
      require(PurgeableMemory.pressureStatistics.threadErrorNumber == EAGAIN, "refused")
      _ = monitor.level
      require(!hasLibraryThread(), "no look tries in the pause")
      clock.advance(seconds: 1)
      _ = monitor.level
      require(patiently { hasLibraryThread() }, "a look after the pause does")
      withExtendedLifetime(monitor) {}
    }
    await #expect(processExitsWith: .success) {
      alarm(600)
      Maintainer.shared.nextStart.store(.max, ordering: .relaxed)
      let monitor = PressureMonitor(source: FakeSource())
      require(patiently { hasLibraryThread() } && monitor.level == .normal, "starts")
      require(Maintainer.shared.nextStart.load(ordering: .relaxed) == 0, "for stores as well")
    }
  }
}
