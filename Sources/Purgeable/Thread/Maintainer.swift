// SPDX-License-Identifier: MIT
// The library's one thread: offers idle memory, follows pressure, sweeps, and shrinks caches when memory is short. The thread
// sleeps while there is nothing to do.
//
//   caches, regions --WorkBell.ring-------+                    +--> round: offer what is idle
//   monitors --add, remove----------------+--> WakeSignal.wait -+--> PressureFeed.ask --> react, deliver
//   sources of pressure --descriptors-----+     (Maintainer+Thread.swift)
//
// The layers below do not name this one: they reach it through `WorkBell` and the three functions at the end.

import CPurgeable
import CPurgeablePressure
import Glibc
import Synchronization

/// Starts its thread when the first work is noted or the first monitor is added. Ends the thread when no cache and no monitor
/// is alive, no object was ever registered, and no region waits.
///
/// A thread that notes work wakes the library's thread at most once per round. A round begins half a second after the first
/// note: memory that became idle is on offer within a second, and a program that stores all the time pays for two rounds a
/// second.
final class Maintainer: ForkProtected {
  static let shared = Maintainer()

  struct State {
    var clock = MonotonicClock.system
    var monitors = ClientList<UnownedMonitor>()
    /// The process that has the thread; a forked child does not, and starts its own.
    var threadOwner: pid_t = 0
    /// The source that a program has chosen, and where its descriptors were opened.
    var given: (any PressureSource)?
    var givenProcess: pid_t = 0
    /// Open while the thread has a client to watch for and no source was given.
    var best: SystemPressureSource?
    var bestProcess: pid_t = 0
    /// The statistics of the caches' source, while the thread watches.
    var statistics = PressureStatistics()
    var isWatching = false
  }

  let state = Guarded(State())
  /// Whether a client came or went, or the source was changed: handled without waiting for a round.
  let hasNews = Atomic<Bool>(false)
  let signal = WakeSignal()
  /// How often the thread has woken up, in this process and its ancestors by fork.
  let wakeUps = Atomic<UInt64>(0)
  /// Where no thread could be started: when work that is noted may try again; else 0.
  let nextStart = Atomic<UInt64>(0)
  private static let startPause: UInt64 = 1_000_000_000

  private init() {
    signal.awake.rehearseFork()
    ForkGuard.shared.announce(.awake) { $0.append(Maintainer.shared.signal.awake) }
    ForkGuard.shared.announce(.monitors) { items in
      for monitor in ListedMonitors() { items.append(monitor) }
    }
    ForkGuard.shared.announce(.sources) { items in Maintainer.shared.collectSources(&items) }
    ForkGuard.shared.announce(.thread) { $0.append(Maintainer.shared) }
    rehearseFork()
    _ = leastStackByteCount
  }

  /// Rounds, pauses and levels go by it. A thread keeps the clock with which it began, and sleeps for the time that is left by
  /// it: a test sets a clock before there is work, and wakes the thread when it has moved the clock.
  var clock: MonotonicClock {
    get { state.withLock { $0.clock } }
    set {
      state.withLock { state in
        assert(state.threadOwner != getpid(), "Maintainer: the thread keeps the clock that it has")
        state.clock = newValue
      }
    }
  }

  // MARK: Who is worked for

  /// The monitor's owner removes it before it ends. Takes memory only for forks; the maker of the monitor has checked for it.
  func add(_ monitor: MonitorCore) {
    monitor.rehearseFork()
    state.withLock { $0.monitors.append(UnownedMonitor(monitor: monitor), monitor.link) }
    // The monitor and its source.
    ForkGuard.shared.reserve(2)
    noteNews()
  }

  func remove(_ monitor: MonitorCore) {
    let hasThread = state.withLock { state -> Bool in
      state.monitors.remove(monitor.link)
      return state.threadOwner == getpid()
    }
    ForkGuard.shared.dismiss(2)
    if hasThread { noteNews() }
  }

  // MARK: Forks (ForkGuard.swift)

  /// The sources in use. Takes no memory, except for sources added since `reserve`.
  private func collectSources(_ items: inout [any ForkProtected]) {
    // One source may serve several; its mutex is taken once.
    let first = items.count
    func add(_ source: (any PressureSource)?) {
      // By its class, the only one of its kind: a cast to a protocol may take memory.
      guard let source = source as? SystemPressureSource else { return }
      for other in items[first...] where other === source { return }
      items.append(source)
    }
    let (given, best) = state.withLock { ($0.given, $0.best) }
    add(given)
    add(best)
    for at in 0..<first { if let monitor = items[at] as? MonitorCore { add(monitor.source) } }
  }

  func lockForFork() {
    state.lock()
    signal.lockForFork()
  }

  func unlockAfterFork() {
    signal.unlockAfterFork()
    state.unlock()
  }

  /// Work noted in the parent is the parent's; a mark left set would keep the child from ever starting a thread.
  func forgetInChild() {
    WorkBell.isRung.store(false, ordering: .relaxed)
    hasNews.store(false, ordering: .relaxed)
    nextStart.store(0, ordering: .relaxed)
    signal.forgetInChild()
    state.withLock { $0.statistics.threadErrorNumber = 0 }
  }

  // MARK: The source

  var givenSource: (any PressureSource)? { state.withLock { $0.given } }

  /// nil: the best that works here. The source that was given before is not closed.
  package func setSource(_ source: (any PressureSource)?) {
    let (old, hasThread) = state.withLock { state -> ((any PressureSource)?, Bool) in
      // Until the thread watches the new one, that is asked for its level.
      defer { (state.given, state.givenProcess, state.isWatching) = (source, getpid(), false) }
      return (state.given, state.threadOwner == getpid())
    }
    // It may end here, which is the program's code, under no mutex.
    withExtendedLifetime(old) {}
    if hasThread { noteNews() }
  }

  var currentLevel: PressureLevel {
    let process = getpid()
    let (known, given, isForked) = state.withLock { state -> (PressureLevel?, (any PressureSource)?, Bool) in
      if state.isWatching, state.threadOwner == process { return (state.statistics.level, nil, false) }
      defer { state.givenProcess = process }
      return (nil, state.given, state.givenProcess != process)
    }
    if let known { return known }
    if let given {
      if isForked { given.reopen() }
      return given.level(ready: [])
    }
    // One look.
    return max(MemoryRoom.level(of: MachineMemory.current()), MemoryRoom.level(of: ProcessMemory.group))
  }

  var statistics: PressureStatistics {
    var statistics = state.withLock { $0.statistics }
    statistics.wakeUpCount = Int(wakeUps.load(ordering: .relaxed))
    return statistics
  }

  // MARK: Waking the thread

  private func noteNews() { wake(by: hasNews) }

  /// Work comes with each store: in the pause after a refused start it costs a look at the clock. News come seldom, and try anew.
  fileprivate func noteWork() {
    let start = nextStart.load(ordering: .relaxed)
    if start == 0 || clock.now() >= start { wake(by: WorkBell.isRung) }
  }

  /// A forked child does not have the parent's thread, and where one could not be started there is none: a request for news
  /// starts one. `isPatient`: not within the pause after a refusal. Where there is a monitor.
  func resume(isPatient: Bool = true) {
    guard state.withLock({ $0.threadOwner }) != getpid() else { return }
    if !isPatient || clock.now() >= nextStart.load(ordering: .relaxed) { noteNews() }
  }

  @inline(never)
  private func wake(by mark: borrowing Atomic<Bool>) {
    // Partner: the thread's loads before it ends, and its store when it takes the work on.
    guard mark.compareExchange(expected: false, desired: true, ordering: .acquiringAndReleasing).exchanged else { return }
    let needsThread = state.withLock { state -> Bool in
      let process = getpid()
      guard state.threadOwner != process else { return false }
      state.threadOwner = process
      state.statistics.threadErrorNumber = 0
      signal.prepare()
      return true
    }
    // A thread that cannot hear, because the program closed the eventfd it sleeps on, is replaced.
    let isHeard = signal.wake()
    guard needsThread || !isHeard else { return }
    let errorNumber = start()
    nextStart.store(errorNumber == 0 ? 0 : clock.now() + Self.startPause, ordering: .relaxed)
    guard errorNumber != 0 else { return }
    // Until there is a thread, the kernel has less to choose from.
    state.withLock { state in
      state.threadOwner = 0
      state.statistics.threadErrorNumber = errorNumber
    }
    // Both: who made the other one meanwhile has found that a thread is coming.
    WorkBell.isRung.store(false, ordering: .releasing)
    hasNews.store(false, ordering: .releasing)
  }

  /// The last cache is gone: the thread finds that out in one more round.
  fileprivate func review() {
    if state.withLock({ $0.threadOwner != 0 }) { WorkBell.ring() }
  }

  /// Types for which the runtime makes a description at their first use.
  private static let typesOfThread: [Any.Type] = [PressureFeed?.self, MemoryGroup?.self]

  /// 0, or pthread_create's error.
  private func start() -> Int32 {
    // Made here, not by the thread: the thread may begin where there is no memory for them.
    _ = ClientRoster.shared
    _ = ThreadRole.isLibrary
    _ = Self.typesOfThread
    return unsafe startDetachedThread(stackByteCount: 512 << 10) { _ in
      Maintainer.shared.signal.awake.set()
      defer { Maintainer.shared.signal.awake.clear() }
      nameThread("purgeable")
      ThreadRole.enterLibrary()
      // Without memory for that note, heaps offer earlier by themselves.
      let tends = purgeable_tending_begin() == 0
      Maintainer.shared.run()
      if tends { purgeable_tending_end() }
      return nil
    }
  }
}

// MARK: What the layers below ring for (purgeable_pressure_thread.h)

// swift-format-ignore: AlwaysUseLowerCamelCase
@c @implementation
func purgeable__thread_expect_work() { _ = Maintainer.shared }

// swift-format-ignore: AlwaysUseLowerCamelCase
@c @implementation
func purgeable__thread_wake() { Maintainer.shared.noteWork() }

// swift-format-ignore: AlwaysUseLowerCamelCase
@c @implementation
func purgeable__thread_review() { Maintainer.shared.review() }
