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
    await #expect(processExitsWith: .success) {
      alarm(600)
      let thread = SteppedThread()
      let source = FakeSource()
      var monitor: PressureMonitor? = PressureMonitor(source: source)
      // The source is asked once a second: when it has first said that all is well, each step down takes two seconds more.
      let steps: [(level: PressureLevel, begin: () -> Void)] = [
        (.normal, {}), (.critical, { source.set(.critical) }),
        (
          .warning,
          {
            source.set(.normal)
            for _ in 0..<2 { thread.advance(seconds: 1) }
            require(monitor?.level == .critical, "not yet")
            thread.advance(seconds: 1)
          }
        ),
        (
          .normal,
          {
            thread.advance(seconds: 1)
            require(monitor?.level == .warning, "not yet")
            thread.advance(seconds: 1)
          }
        ),
      ]
      var ears = [monitor!.levels, monitor!.levels].map { $0.makeAsyncIterator() }
      for step in steps {
        step.begin()
        require(patiently { monitor?.level == step.level }, "\(step.level) does not come")
        for ear in ears.indices {
          let heard = await ears[ear].next()
          require(heard == step.level, "\(String(describing: heard)) instead of \(step.level)")
        }
      }
      let numbers = monitor!.statistics
      require(numbers.sourceName == "fake" && numbers.criticalCount == 1, "counted once")
      let last = monitor!.levels
      monitor = nil
      var rest: [PressureLevel] = []
      for await level in last { rest.append(level) }
      require(rest == [.normal], "\(rest)")
      require(source.closeCount.load(ordering: .relaxed) == 0, "it is not the monitor's to close")
    }
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
    await #expect(processExitsWith: .success) {
      let thread = SteppedThread()
      let source = FakeSource(hasEvents: false, pollingInterval: .milliseconds(1))
      let monitor = PressureMonitor(source: source)
      let asked = { source.askCount.load(ordering: .relaxed) }
      require(patiently { asked() == 1 }, "at once")
      source.set(.critical)
      thread.advance(seconds: 0.9)
      require(asked() == 1, "no sooner than a second later")
      thread.advance(seconds: 0.1)
      require(asked() == 2, "but then")
      require(patiently { monitor.level == .critical }, "and tells")
    }
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

/// Global, because C callbacks carry no Swift context.
private let fakeForC = Guarded<FakeSource?>(nil)
