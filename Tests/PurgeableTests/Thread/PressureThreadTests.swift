// SPDX-License-Identifier: MIT
// Reactions of the library's thread to pressure, and its sleep: a process for each test, since a process has one such thread.
// That it sleeps is seen by its doing nothing for seconds, which is for the full run; when each source is asked, and when caches
// react, by a clock that the test sets (SteppedThread), and by values that have the time given (PressureFeedTests,
// ReactionPaceTests).

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("pressure: the library's thread", .serialized)
struct PressureThreadTests {
  /// A cache with some content on offer.
  static func filled() throws -> PurgeableCache<Int, [UInt8]> {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for key in 0..<2000 { cache[key] = pattern(500) }
    return cache
  }

  /// As `filled`, with the sources of this machine open and the library's thread asleep.
  static func rested() throws -> PurgeableCache<Int, [UInt8]> {
    hearThisMachine()
    let cache = try filled()
    require(patiently { PurgeableMemory.pressureStatistics.sourceName != "" }, "watches")
    require(comesToRest(seconds: 2), "rest")
    return cache
  }

  /// The descriptors that the library's thread sleeps on.
  static var libraryDescriptors: [Int32] {
    let source = Maintainer.shared.state.withLock { $0.best }
    return (source?.descriptors.map(\.descriptor) ?? []) + [Maintainer.shared.signal.descriptor].compactMap { $0 }
  }

  static var wakeUps: Int { PurgeableMemory.pressureStatistics.wakeUpCount }

  /// Whether the thread at some time sleeps for so many seconds without a wake-up.
  static func comesToRest(seconds: UInt32) -> Bool {
    patiently {
      let before = wakeUps
      sleep(seconds)
      return wakeUps == before
    }
  }

  @Test("with events: not one wake-up while caches hold memory and nothing happens", .fullRun)
  func noWakeUps() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let cache = try Self.filled()
      require(Self.comesToRest(seconds: 3), "what was stored is on offer, and that was that")
      let before = Self.wakeUps
      let asked = source.askCount.load(ordering: .relaxed)
      sleep(4)
      require(Self.wakeUps == before, "asleep")
      require(source.askCount.load(ordering: .relaxed) == asked, "nobody asked")
      require(hasLibraryThread() && cache.count == 2000, "alive all the same")
      source.set(.warning)
      require(patiently { PurgeableMemory.pressureLevel == .warning }, "and wakes at the event")
    }
  }

  @Test("with the sources of this machine there is rest too, where all of them are events", .fullRun)
  func noWakeUpsHere() async throws {
    let probe = SystemPressureSource()
    defer { probe.close() }
    try #require(!probe.descriptors.isEmpty || probe.pollingInterval != nil)
    guard probe.pollingInterval == nil else { try Test.cancel("something has to be polled here: \(probe.name)") }
    await #expect(processExitsWith: .success) {
      hearThisMachine()
      let cache = try Self.filled()
      // Other processes on this machine may be short of memory meanwhile, hence the patience.
      require(Self.comesToRest(seconds: 3), "three seconds without a wake-up")
      require(cache.count > 0, "the cache lives")
    }
  }

  @Test("with polling: once a second, and only while a cache holds anything")
  func polling() async {
    await #expect(processExitsWith: .success) {
      let thread = SteppedThread()
      let source = FakeSource(hasEvents: false, pollingInterval: .milliseconds(10))
      PurgeableMemory.pressureSource = source
      let asked = { source.askCount.load(ordering: .relaxed) }
      let empty = try PurgeableCache<Int, [UInt8]>()
      var cache: PurgeableCache<Int, [UInt8]>? = try Self.filled()
      // Rounds, until no more are due.
      for _ in 0..<10 { thread.advance(seconds: 1) }
      require(cache?.engine.heap.hasPending == false && !WorkBell.isRung.load(ordering: .relaxed), "all is on offer")
      let before = asked()
      thread.advance(seconds: 0.9)
      require(asked() == before, "no sooner than a second later")
      thread.advance(seconds: 0.1)
      require(asked() == before + 1, "but then")
      require(cache?.count == 2000 && empty.isEmpty, "both live")
      cache = nil
      // What was noted before is done with.
      for _ in 0..<3 { thread.advance(seconds: 1) }
      let last = asked()
      for _ in 0..<5 { thread.advance(seconds: 10) }
      require(asked() == last && hasLibraryThread() && empty.isEmpty, "nothing is held, nobody asks")
    }
  }

  @Test("reacts when the level rises and while memory is short, and counts it")
  func reacting() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let cache = try Self.filled()
      require(patiently { PurgeableMemory.pressureStatistics.sourceName == "fake" }, "watches")
      source.set(.warning)
      require(patiently { PurgeableMemory.pressureStatistics.reactionCount >= 1 }, "reacts")
      let held = cache.byteCount
      source.set(.critical)
      require(patiently { cache.byteCount < held && PurgeableMemory.pressureLevel == .critical }, "gives back")
      require(patiently { PurgeableMemory.pressureStatistics.reactionCount >= 4 }, "again while it lasts")
      let numbers = PurgeableMemory.pressureStatistics
      require(numbers.warningCount == 1 && numbers.criticalCount == 1, "counts")
      require(numbers.lastOfferNanoseconds! <= numbers.lastReactionNanoseconds!, "and takes the time")
    }
  }

  @Test("reacts once a second while the source goes on saying so, and no more when the shortage has ended")
  func recovering() async {
    await #expect(processExitsWith: .success) {
      let thread = SteppedThread()
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let cache = try Self.filled()
      let reactions = { PurgeableMemory.pressureStatistics.reactionCount }
      source.set(.critical)
      require(patiently { reactions() >= 1 }, "reacts")
      for _ in 0..<3 {
        let before = reactions()
        thread.advance(seconds: 1)
        require(reactions() > before, "again")
      }
      let asked = source.askCount.load(ordering: .relaxed)
      source.set(.normal)
      require(patiently { source.askCount.load(ordering: .relaxed) > asked }, "hears of it before the clock moves")
      // Asked once a second: from the first good answer on, two seconds for each step down.
      for level in [PressureLevel.critical, .warning, .warning, .normal] {
        thread.advance(seconds: 1)
        require(PurgeableMemory.pressureLevel == level, "\(PurgeableMemory.pressureLevel) instead of \(level)")
        require(cache.statistics.pressure == level, "the cache has heard \(cache.statistics.pressure)")
      }
      let count = reactions()
      for _ in 0..<5 { thread.advance(seconds: 1) }
      require(reactions() == count && cache.count >= 0, "nothing to react to")
    }
  }

  @Test("what the source says less by than the level is no reason to lock more: caches hear of the level")
  func smoothed() async {
    await #expect(processExitsWith: .success) {
      let thread = SteppedThread()
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let cache = try Self.filled()
      let reactions = { PurgeableMemory.pressureStatistics.reactionCount }
      source.set(.critical)
      require(patiently { cache.statistics.pressure == .critical }, "hears")
      thread.advance(seconds: 0.5)
      let before = reactions()
      source.set(.warning)
      require(patiently { reactions() > before }, "reacts")
      require(
        cache.statistics.pressure == .critical && PurgeableMemory.pressureLevel == .critical, "\(cache.statistics.pressure)")
    }
  }

  @Test("a source that is given is the one that says the level, from that moment on")
  func atOnce() async {
    await #expect(processExitsWith: .success) {
      let (first, second) = (FakeSource(), FakeSource())
      PurgeableMemory.pressureSource = first
      let cache = try Self.filled()
      second.set(.warning)
      for _ in 0..<50 {
        first.set(.critical)
        require(patiently { cache.statistics.pressure == .critical }, "the first")
        PurgeableMemory.pressureSource = second
        require(PurgeableMemory.pressureLevel == .warning, "\(PurgeableMemory.pressureLevel)")
        PurgeableMemory.pressureSource = first
        require(PurgeableMemory.pressureLevel == .critical, "\(PurgeableMemory.pressureLevel)")
      }
    }
  }

  @Test("another source takes over at once; the one before is not closed")
  func replacing() async {
    await #expect(processExitsWith: .success) {
      let (first, second) = (FakeSource(), FakeSource())
      PurgeableMemory.pressureSource = first
      let monitor = PressureMonitor()
      let (cache, objects) = (try Self.filled(), try ObjectCache<Int, Int>())
      func hear(_ level: PressureLevel) -> Bool {
        patiently { cache.statistics.pressure == level && objects.statistics.pressure == level }
      }
      first.set(.critical)
      require(patiently { monitor.level == .critical } && hear(.critical), "the first")
      PurgeableMemory.pressureSource = second
      require(patiently { monitor.level == .normal }, "the second knows of none")
      require(hear(.normal), "caches hear of it")
      second.set(.warning)
      require(patiently { monitor.level == .warning }, "the second")
      PurgeableMemory.pressureSource = nil
      require(patiently { PurgeableMemory.pressureStatistics.sourceName != "fake" }, "the best")
      require(first.closeCount.load(ordering: .relaxed) + second.closeCount.load(ordering: .relaxed) == 0, "ours to close")
    }
  }

  @Test("a source that is replaced may use the library when it ends")
  func ending() async {
    await #expect(processExitsWith: .success) {
      let thread = TestThread {
        PurgeableMemory.pressureSource = LastWords()
        PurgeableMemory.pressureSource = nil
      }
      require(patiently { LastWords.hasEnded.load(ordering: .acquiring) }, "its end waits for a mutex")
      thread.join()
    }
  }

  @Test("no thread and no descriptor without cache and monitor; every descriptor is closed on exec")
  func nothingLeft() async {
    await #expect(processExitsWith: .success) {
      hearThisMachine()
      require(!hasLibraryThread() && Self.libraryDescriptors.isEmpty, "none at first")
      var cache: PurgeableCache<Int, [UInt8]>? = try Self.filled()
      require(patiently { PurgeableMemory.pressureStatistics.sourceName != "" }, "watches")
      require(hasLibraryThread() && cache != nil, "the thread")
      // Compared by kind and not by number: the concurrency runtime opens and closes some of its own at any time.
      var opened = Self.libraryDescriptors.compactMap { OwnedDescriptor($0) }
      require(!opened.isEmpty, "the eventfd to wake it, at least")
      for one in opened { require(fcntl(one.number, F_GETFD) & FD_CLOEXEC != 0, "\(one) stays open on exec") }
      cache = nil
      require(patiently { !hasLibraryThread() }, "ends with the cache")
      require(Self.libraryDescriptors.isEmpty && !opened.contains(where: \.isOurs), "left open: \(opened.filter(\.isOurs))")
      let monitor = PressureMonitor()
      require(patiently { hasLibraryThread() && !Self.libraryDescriptors.isEmpty }, "starts with a monitor")
      opened = Self.libraryDescriptors.compactMap { OwnedDescriptor($0) }
      _ = monitor.level
      _ = consume monitor
      require(patiently { !hasLibraryThread() && !opened.contains(where: \.isOurs) }, "and ends with it")
    }
  }

  @Test("a forked child has its own thread and its own registrations, and leaves the parent's alone", .forks)
  func forking() async {
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let cache = try Self.filled()
      let own = FakeSource()
      let monitor = PressureMonitor(source: own)
      let isAsked = { source.askCount.load(ordering: .relaxed) > 0 && own.askCount.load(ordering: .relaxed) > 0 }
      require(patiently { isAsked() && !cache.engine.heap.hasPending }, "both are watched, and all is on offer")
      let parents = source.descriptors
      let childIsWell = childSays {
        guard !hasLibraryThread() else { return false }
        cache[1] = [1, 2, 3]
        let counts = { source.reopenCount.load(ordering: .relaxed) + own.reopenCount.load(ordering: .relaxed) }
        guard patiently({ counts() == 2 && hasLibraryThread() }) else { return false }
        source.set(.critical)
        own.set(.warning)
        return patiently { PurgeableMemory.pressureLevel == .critical && monitor.level == .warning } && counts() == 2
      }
      require(childIsWell, "the child hears of pressure by itself")
      require(PurgeableMemory.pressureLevel == .normal && monitor.level == .normal, "and the parent does not")
      require(source.descriptors == parents && source.reopenCount.load(ordering: .relaxed) == 0, "the parent's are the parent's")
      source.set(.warning)
      require(patiently { PurgeableMemory.pressureLevel == .warning }, "and still work")
      let asksFirst = childSays {
        // A child that does nothing else with the library.
        PurgeableMemory.pressureLevel == .warning && source.reopenCount.load(ordering: .relaxed) == 1
      }
      require(asksFirst, "a child's first question comes after the source has been opened there")
      let secondIsWell = childSays {
        // The parent's mark that work was noted may still be set here.
        for key in 0..<100 { cache[key] = [1] }
        return patiently { hasLibraryThread() }
      }
      require(secondIsWell, "a child starts its thread whenever it was forked")
    }
  }

  @Test("a child that was forked with the sources of this machine open has descriptors of its own", .forks, .fullRun)
  func forkingHere() async {
    await #expect(processExitsWith: .success) {
      hearThisMachine()
      let cache = try Self.filled()
      require(patiently { PurgeableMemory.pressureStatistics.sourceName != "" }, "watches")
      let before = openDescriptors().count
      let childIsWell = childSays {
        for key in 0..<100 { cache[key] = [1] }
        guard patiently({ hasLibraryThread() }) else { return false }
        // The child has no more descriptors than the parent, since the copies were closed. Files that are open only for a moment
        // are waited for; the concurrency runtime may open a few of its own.
        return patiently { openDescriptors().count <= before + 3 }
      }
      require(childIsWell, "copies are closed")
      require(patiently { openDescriptors().count <= before + 3 }, "and the parent has what it had")
    }
  }

  @Test(
    "out of descriptors: what is idle is offered, nothing crashes, and sources are opened when there are descriptors again",
    .fullRun)
  func outOfDescriptors() async {
    await #expect(processExitsWith: .success) {
      hearThisMachine()
      let none = NoDescriptors()
      require(unsafe open("/dev/null", O_RDONLY) < 0, "none left")
      let cache = try Self.filled()
      let monitor = PressureMonitor()
      require(
        patiently { cache.engine.heap.hasPending == false && Maintainer.shared.wakeUps.load(ordering: .relaxed) > 2 }, "works")
      require(monitor.level == .normal && PurgeableMemory.pressureStatistics.sourceName != "", "watches as far as it goes")
      sleep(2)
      require(cache.count == 2000, "all there")
      let poor = PurgeableMemory.pressureStatistics.sourceName
      none.end()
      let here = SystemPressureSource()
      require(here.name == poor || patiently { PurgeableMemory.pressureStatistics.sourceName == here.name }, "the best again")
      here.close()
    }
  }

  @Test("descriptors that the program closed are opened anew", .fullRun)
  func closedByProgram() async {
    await #expect(processExitsWith: .success) {
      let cache = try Self.rested()
      let name = PurgeableMemory.pressureStatistics.sourceName
      let opened = Self.libraryDescriptors
      require(opened.count > 1 && opened.allSatisfy { fcntl($0, F_GETFD) >= 0 }, "open: \(opened)")
      for number in opened { close(number) }
      for key in 0..<100 { cache[key] = [1] }
      let areBack = patiently {
        Self.libraryDescriptors.count == opened.count && Self.libraryDescriptors.allSatisfy { fcntl($0, F_GETFD) >= 0 }
      }
      require(areBack, "opened anew: first \(opened), now \(Self.libraryDescriptors) of \(openDescriptors())")
      require(PurgeableMemory.pressureStatistics.sourceName == name, "the same sources")
      require(Self.comesToRest(seconds: 2), "and rest again")
    }
  }

  @Test("what the program has opened under the numbers that it closed is neither written to nor read", .fullRun)
  func reusedByProgram() async {
    await #expect(processExitsWith: .success) {
      let cache = try Self.rested()
      let opened = Self.libraryDescriptors
      // An eventfd that counts 7 stands under each number: it is ready to be read at once, and a write would add to it.
      let foreign = OwnedDescriptor.event()!
      require(foreign.write("\u{7}\0\0\0\0\0\0\0"), "seven")
      for number in opened { require(dup2(foreign.number, number) == number, "dup2") }
      let woken = Self.wakeUps
      for key in 0..<100 { cache[key] = [1] }
      require(patiently { Self.wakeUps > woken + 1 && !cache.engine.heap.hasPending }, "works")
      require(Self.comesToRest(seconds: 2), "and rest again")
      require(foreign.drain() == 7, "seven still")
      require(opened.allSatisfy { fcntl($0, F_GETFD) >= 0 }, "and all are open")
    }
  }
}

/// Asks the library for the level when it ends.
private final class LastWords: PressureSource {
  static let hasEnded = Atomic<Bool>(false)

  let name = "last words"

  func level(ready: [PressureDescriptor]) -> PressureLevel { .normal }

  deinit { Self.hasEnded.store(PurgeableMemory.pressureLevel >= .normal, ordering: .releasing) }
}
