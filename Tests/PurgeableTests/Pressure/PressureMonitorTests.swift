// SPDX-License-Identifier: MIT
// Programs that hear of pressure themselves, in Swift and in C.

import CPressureCases
import Glibc
import Synchronization
import Testing

@testable import Purgeable

@Suite("PressureMonitor")
struct PressureMonitorTests {
  @Test("every subscriber gets the current level first, then each change, and the end when the monitor is gone")
  func levels() async {
    let source = FakeSource()
    var monitor: PressureMonitor? = PressureMonitor(source: source)
    let streams = [monitor!.levels, monitor!.levels]
    // A subscriber that is slow misses what is outdated: so the next level comes when both have this one.
    let counts = HeardCounts()
    let heard = await withTaskGroup(of: [PressureLevel].self) { group in
      for stream in streams {
        group.addTask {
          var levels: [PressureLevel] = []
          for await level in stream {
            levels.append(level)
            switch level {
            case .none where levels.count > 1: return levels
            case .none: if counts.none.add(1, ordering: .relaxed).newValue == 2 { source.set(.critical) }
            case .critical: if counts.critical.add(1, ordering: .relaxed).newValue == 2 { source.set(.none) }
            case .some: break
            }
          }
          return levels
        }
      }
      return await group.reduce(into: []) { $0.append($1) }
    }
    // Two seconds for each step down: a machine that is slower than that may show a subscriber only the last.
    for levels in heard { #expect(levels == [.none, .critical, .some, .none] || levels == [.none, .critical, .none]) }
    #expect(monitor!.level == .none)
    let numbers = monitor!.statistics
    #expect(numbers.sourceName == "fake" && numbers.criticalCount == 1)
    let last = monitor!.levels
    monitor = nil
    var rest: [PressureLevel] = []
    for await level in last { rest.append(level) }
    #expect(rest == [.none])
    #expect(source.closeCount.load(ordering: .relaxed) == 0, "it is not the monitor's to close")
  }

  @Test("a subscriber that is slow gets the newest; one that comes late the current one")
  func slow() async {
    let source = FakeSource()
    let monitor = PressureMonitor(source: source)
    let stream = monitor.levels
    source.set(.some)
    #expect(patiently { monitor.level == .some })
    source.set(.critical)
    #expect(patiently { monitor.level == .critical })
    for await level in stream {
      #expect(level == .critical)
      break
    }
    for await level in monitor.levels {
      #expect(level == .critical)
      break
    }
  }

  @Test("a source that only polls is asked, about once a second")
  func polling() {
    let source = FakeSource(hasEvents: false, pollingInterval: .milliseconds(1))
    let monitor = PressureMonitor(source: source)
    #expect(patiently { source.askCount.load(ordering: .relaxed) > 0 })
    let before = source.askCount.load(ordering: .relaxed)
    let start = MonotonicTime.now
    source.set(.critical)
    #expect(patiently { monitor.level == .critical })
    #expect(patiently { source.askCount.load(ordering: .relaxed) >= before + 2 })
    let seconds = Int((MonotonicTime.now - start) / 1_000_000_000)
    #expect(source.askCount.load(ordering: .relaxed) - before <= seconds + 2)
  }

  @Test("monitors come and go from many threads")
  func storm() {
    let source = FakeSource()
    onThreads(4) { _ in
      for round in 0..<100 {
        let monitor = PressureMonitor(source: round % 2 == 0 ? source : FakeSource())
        let stream = monitor.levels
        source.set(round % 3 == 0 ? .critical : .none)
        _ = monitor.level
        _ = stream
      }
    }
  }

  @Test("a C program hears of the current level, of changes, and of nothing more once it has stopped")
  func fromC() async {
    await #expect(processExitsWith: .success) {
      fakeForC.withLock { $0 = FakeSource() }
      PurgeableMemory.pressureSource = fakeForC.withLock { $0 }
      let complaint = unsafe pressure_case_watch { level in
        fakeForC.withLock { $0 }?.set(PressureLevel(rawValue: level)!)
      }
      // Safe: a string constant of the C code.
      if let complaint = unsafe complaint { fatalError(unsafe String(cString: complaint)) }
      require(patiently { !hasLibraryThread() }, "the thread ends with the last watch")
    }
  }
}

/// How many subscribers have heard of a level.
private final class HeardCounts: Sendable {
  let none = Atomic<Int>(0)
  let critical = Atomic<Int>(0)
}

/// C callbacks carry no context of Swift's.
private let fakeForC = Guarded<FakeSource?>(nil)
