// SPDX-License-Identifier: MIT
// The library's one thread: offers what is idle, hears of pressure, sweeps and shrinks when memory is short. Asleep while there is
// nothing to do.
//
//   caches, regions --noteWork--> noted ---+                    +--> round: offer what is idle
//   caches, monitors --add, remove--------+--> WakeSignal.wait -+--> PressureFeed.ask --> react, deliver
//   sources of pressure --descriptors-----+     (Maintainer+Thread.swift)

import CPurgeable
import Glibc
import Synchronization

/// Starts its thread with the first work that is noted or the first monitor, and ends it when no cache and no monitor is alive and no
/// region waits.
///
/// A thread that notes work wakes it at most once per round: a round begins half a second after the first note, so what became
/// idle is on offer within a second, and a program that stores all the time pays for two rounds a second.
final class Maintainer: Sendable {
  static let shared = Maintainer()

  struct State {
    var alive: [WeakEngine] = []
    var monitors: [WeakMonitor] = []
    /// The process that has the thread; a forked child does not, and starts its own.
    var threadOwner: pid_t = 0
    /// The source that a program has chosen, and where its descriptors were opened.
    var given: (any PressureSource)?
    var givenProcess: pid_t = 0
    /// Open while the thread has somebody to watch for and no source was given.
    var best: SystemPressureSource?
    var bestProcess: pid_t = 0
    /// What the source of caches says, while the thread watches.
    var statistics = PressureStatistics()
    var isWatching = false
  }

  struct WeakEngine: Sendable {
    weak var value: CacheEngine?
  }

  struct WeakMonitor: Sendable {
    weak var value: MonitorCore?
  }

  let state = Guarded(State())
  /// Whether anything was noted since the last round began.
  let noted = Atomic<Bool>(false)
  /// Whether somebody came or went, or the source was changed: looked at without waiting for a round.
  let hasNews = Atomic<Bool>(false)
  let signal = WakeSignal()
  /// How often the thread has woken up, in this process and those it was forked from.
  let wakeUps = Atomic<UInt64>(0)

  private init() {
    _ = ForkGuard.shared.begin()
  }

  // MARK: Who is worked for

  func add(_ engine: CacheEngine) {
    state.withLock { $0.alive.append(WeakEngine(value: engine)) }
  }

  func remove(_ engine: CacheEngine) {
    let mayEnd = state.withLock { state -> Bool in
      state.alive.removeAll { $0.value == nil || $0.value === engine }
      return state.alive.isEmpty && state.threadOwner != 0
    }
    // The last one: the thread finds that out in one more round.
    if mayEnd { noteWork() }
  }

  func add(_ monitor: MonitorCore) {
    state.withLock { $0.monitors.append(WeakMonitor(value: monitor)) }
    noteNews()
  }

  func remove(_ monitor: MonitorCore) {
    let hasThread = state.withLock { state -> Bool in
      state.monitors.removeAll { $0.value == nil || $0.value === monitor }
      return state.threadOwner == getpid()
    }
    if hasThread { noteNews() }
  }

  /// Everything alive whose mutexes a child will want, in their order.
  func forkProtected() -> [any ForkProtected] {
    let (engines, monitors, shared) = state.withLock { state in
      (state.alive.compactMap(\.value), state.monitors.compactMap(\.value), [state.given, state.best])
    }
    let tables = engines.compactMap { $0.observer.withLock { $0.value } }
    var items: [any ForkProtected] = engines + tables + monitors
    // One source may serve several; its mutex is taken once.
    for source in (shared + monitors.map(\.source)).compactMap({ $0 as? any ForkProtected })
    where !items.contains(where: { $0 === source }) {
      items.append(source)
    }
    return items
  }

  // MARK: The source

  var givenSource: (any PressureSource)? { state.withLock { $0.given } }

  /// nil: the best that works here. The source that was given before is not closed.
  package func setSource(_ source: (any PressureSource)?) {
    let hasThread = state.withLock { state -> Bool in
      state.given = source
      state.givenProcess = getpid()
      return state.threadOwner == getpid()
    }
    if hasThread { noteNews() }
  }

  var currentLevel: PressureLevel {
    let known = state.withLock { $0.isWatching && $0.threadOwner == getpid() ? $0.statistics.level : nil }
    return known ?? givenSource?.level(ready: []) ?? PollingSource().look()
  }

  var statistics: PressureStatistics {
    var statistics = state.withLock { $0.statistics }
    statistics.wakeUpCount = wakeUps.load(ordering: .relaxed)
    return statistics
  }

  // MARK: Waking the thread

  /// Something became idle or was stored. One load while it was noted before.
  @inline(__always)
  func noteWork() {
    if !noted.load(ordering: .relaxed) { wake(by: noted) }
  }

  private func noteNews() { wake(by: hasNews) }

  /// In a forked child the parent's thread is not there; whoever asks for news starts one.
  func resumeAfterFork() {
    if state.withLock({ $0.threadOwner != 0 && $0.threadOwner != getpid() }) { noteNews() }
  }

  @inline(never)
  private func wake(by mark: borrowing Atomic<Bool>) {
    // Partner: the thread's loads before it ends, and its store when it takes the work on.
    guard mark.compareExchange(expected: false, desired: true, ordering: .acquiringAndReleasing).exchanged else { return }
    let needsThread = state.withLock { state -> Bool in
      let process = getpid()
      guard state.threadOwner != process else { return false }
      state.threadOwner = process
      signal.prepare()
      return true
    }
    // A thread that cannot hear, since the program closed what it sleeps on, is replaced.
    let isHeard = signal.wake()
    guard needsThread || !isHeard, !start() else { return }
    // No thread to be had: the next note tries again. Until then the kernel simply has less to choose from.
    state.withLock { $0.threadOwner = 0 }
    mark.store(false, ordering: .releasing)
  }

  /// In a forked child.
  func forgetMarks() {
    noted.store(false, ordering: .relaxed)
    hasNews.store(false, ordering: .relaxed)
  }

  private func start() -> Bool {
    var attributes = pthread_attr_t()
    guard unsafe pthread_attr_init(&attributes) == 0 else { return false }
    defer { unsafe pthread_attr_destroy(&attributes) }
    unsafe pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
    unsafe pthread_attr_setstacksize(&attributes, 512 << 10)
    // The program's signals are none of this thread's business.
    var all = sigset_t()
    var before = sigset_t()
    unsafe sigfillset(&all)
    unsafe pthread_sigmask(SIG_SETMASK, &all, &before)
    defer { unsafe pthread_sigmask(SIG_SETMASK, &before, nil) }
    var thread = pthread_t()
    return unsafe pthread_create(
      &thread, &attributes,
      { _ in
        Maintainer.shared.nameThread()
        Maintainer.shared.run()
        return nil
      }, nil) == 0
  }

  /// How tools show it. Where there is no /proc it stays without a name.
  private func nameThread() {
    let file = unsafe open("/proc/thread-self/comm", O_WRONLY | O_CLOEXEC)
    guard file >= 0 else { return }
    _ = unsafe write(file, "purgeable", 9)
    close(file)
  }
}
