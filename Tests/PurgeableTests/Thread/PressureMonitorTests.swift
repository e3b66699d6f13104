// SPDX-License-Identifier: MIT
// Programs that are told of pressure, in Swift and in C.

import CPressureCases
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PressureMonitor")
struct PressureMonitorTests {
  @Test("this process hears nothing of the machine")
  func quiet() async {
    #expect(PurgeableMemory.pressureSource?.name == "a quiet machine")
    await #expect(processExitsWith: .success) {
      require(PurgeableMemory.pressureSource?.name == "a quiet machine", "nor does that of an exit test")
    }
  }

  @Test("every subscriber gets the current level first, then each change, and the end when the monitor is gone")
  func levels() async {
    let source = FakeSource()
    var monitor: PressureMonitor? = PressureMonitor(source: source)
    let streams = [monitor!.levels, monitor!.levels]
    // A slow subscriber misses outdated levels. So the next level is set only when both have heard this one.
    let counts = HeardCounts()
    let heard = await withTaskGroup(of: [PressureLevel].self) { group in
      for stream in streams {
        group.addTask {
          var levels: [PressureLevel] = []
          for await level in stream {
            levels.append(level)
            switch level {
            case .normal where levels.count > 1: return levels
            case .normal: if counts.none.add(1, ordering: .relaxed).newValue == 2 { source.set(.critical) }
            case .critical: if counts.critical.add(1, ordering: .relaxed).newValue == 2 { source.set(.normal) }
            case .warning: break
            }
          }
          return levels
        }
      }
      return await group.reduce(into: []) { $0.append($1) }
    }
    // Each step down takes two seconds. On a machine slower than that, a subscriber may hear only the last step.
    for levels in heard {
      #expect(levels == [.normal, .critical, .warning, .normal] || levels == [.normal, .critical, .normal])
    }
    #expect(monitor!.level == .normal)
    let numbers = monitor!.statistics
    #expect(numbers.sourceName == "fake" && numbers.criticalCount == 1)
    let last = monitor!.levels
    monitor = nil
    var rest: [PressureLevel] = []
    for await level in last { rest.append(level) }
    #expect(rest == [.normal])
    #expect(source.closeCount.load(ordering: .relaxed) == 0, "it is not the monitor's to close")
  }

  /// An executor that asks the monitor whenever it gets a job.
  private final class AskingExecutor: TaskExecutor {
    let asks = Atomic<Int>(0)
    let ask = Mutex<(@Sendable () -> Void)?>(nil)

    func enqueue(_ job: consuming ExecutorJob) {
      ask.withLock { $0 }?()
      asks.add(1, ordering: .relaxed)
      let job = UnownedJob(job)
      unsafe job.runSynchronously(on: asUnownedTaskExecutor())
    }
  }

  @Test("an executor that asks the monitor as it is told harms nobody")
  func executors() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let source = FakeSource()
      let monitor = PressureMonitor(source: source)
      let executor = AskingExecutor()
      executor.ask.withLock { $0 = { _ = monitor.level } }
      // The level rises when the task has heard of the one before, and so is about to wait for the next.
      await withTaskExecutorPreference(executor) {
        for await level in monitor.levels {
          if level == .critical { return }
          source.set(level == .normal ? .warning : .critical)
        }
      }
      executor.ask.withLock { $0 = nil }
      require(executor.asks.load(ordering: .relaxed) > 0, "nobody asked")
    }
  }

  @Test("a callback that is slow keeps no other monitor waiting, and hears each level")
  func slowCallback() async {
    let source = FakeSource()
    let heard = Mutex<[PressureLevel]>([])
    let isHeld = Atomic<Bool>(true)
    let core = MonitorCore(source: source) { level in
      while isHeld.load(ordering: .acquiring) { usleep(1000) }
      heard.withLock { $0.append(level) }
    }
    let slow = PressureMonitor(core)
    let other = FakeSource()
    let quick = PressureMonitor(source: other)
    source.set(.critical)
    other.set(.critical)
    #expect(await TestRun.comes { quick.level == .critical })
    #expect(heard.withLock { $0.isEmpty })
    isHeld.store(false, ordering: .releasing)
    #expect(await TestRun.comes { heard.withLock { $0.last } == .critical })
    #expect(heard.withLock { $0.count } <= 2)
    #expect(slow.level == .critical)
  }

  @Test("a subscriber that is slow gets the newest; one that comes late the current one")
  func slow() async {
    let source = FakeSource()
    let monitor = PressureMonitor(source: source)
    let stream = monitor.levels
    source.set(.warning)
    #expect(await TestRun.comes { monitor.level == .warning })
    source.set(.critical)
    #expect(await TestRun.comes { monitor.level == .critical })
    for await level in stream {
      #expect(level == .critical)
      break
    }
    for await level in monitor.levels {
      #expect(level == .critical)
      break
    }
  }

  @Test("a source that only polls is asked, once a second at most")
  func polling() async {
    let source = FakeSource(hasEvents: false, pollingInterval: .milliseconds(1))
    let start = MonotonicTime.now
    let monitor = PressureMonitor(source: source)
    #expect(await TestRun.comes { source.askCount.load(ordering: .relaxed) > 0 })
    source.set(.critical)
    #expect(await TestRun.comes { monitor.level == .critical })
    // At least a second lies between the times by which the thread goes. Only the first may be from before the start, when the
    // thread was awake already. Counted before the clock is read: it does not matter how long this task is kept waiting.
    let count = source.askCount.load(ordering: .relaxed)
    let seconds = Int((MonotonicTime.now - start) / 1_000_000_000)
    #expect(count > 1 && count <= seconds + 2)
  }

  @Test("monitors come and go from many threads")
  func storm() {
    let source = FakeSource()
    onThreads(4) { _ in
      for round in 0..<100 {
        let monitor = PressureMonitor(source: round % 2 == 0 ? source : FakeSource())
        let stream = monitor.levels
        source.set(round % 3 == 0 ? .critical : .normal)
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

/// How many subscribers have heard each level.
private final class HeardCounts: Sendable {
  let none = Atomic<Int>(0)
  let critical = Atomic<Int>(0)
}

/// Global, because C callbacks carry no Swift context.
private let fakeForC = Guarded<FakeSource?>(nil)
