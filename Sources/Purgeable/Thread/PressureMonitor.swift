// SPDX-License-Identifier: MIT
// Pressure for programs that want to follow it themselves.

import Glibc

/// Tells how short memory is, smoothed: the level rises at once, and falls one step at a time, each after two seconds.
///
/// ```swift
/// let monitor = PressureMonitor()
/// for await level in monitor.levels where level == .critical { shedLoad() }
/// ```
///
/// As long as a monitor is alive, the library's thread is: asleep until the source has something to tell, or, for a source that
/// only polls, until the next look. Any thread may use a monitor. In a forked child it goes on from the moment somebody asks it
/// there.
public final class PressureMonitor: Sendable {
  private let core: MonitorCore

  /// Begins to watch. `source`: nil for the one that the library's caches use. With another one the level is `normal` until the
  /// library's thread, which is woken for that, has asked the source.
  ///
  /// The monitor does not close a source that it was given.
  public convenience init(source: (any PressureSource)? = nil) {
    self.init(MonitorCore(source: source, callback: nil))
  }

  init(_ core: MonitorCore) {
    self.core = core
    Maintainer.shared.add(core)
  }

  deinit {
    Maintainer.shared.remove(core)
    core.finish()
  }

  /// The level right now. One mutex, no system call but for `getpid`; while a change is just being told it waits
  /// for that, 20 ms at most.
  public var level: PressureLevel {
    Maintainer.shared.resume()
    return core.level
  }

  /// Every level from now on: the current one first, then each change. Every call makes a sequence of its own, for one task; one
  /// that is slow misses what is outdated and gets the newest. A sequence ends when the monitor is gone: it does not keep it
  /// alive.
  public var levels: AsyncStream<PressureLevel> {
    Maintainer.shared.resume(isPatient: false)
    return core.makeStream()
  }

  /// What the monitor has seen; for one without a source of its own: what the library has seen.
  public var statistics: PressureStatistics { core.source == nil ? Maintainer.shared.statistics : core.statistics }
}

/// State that the library's thread keeps for one monitor, valid while the thread is the same.
struct MonitorNotes: Sendable {
  /// Which thread that is.
  var sleeper: UInt64 = 0
  /// For a monitor with a source of its own.
  var feed: PressureFeed?
  var wasTold = false
}

/// What a monitor and the library's thread share.
///
/// What it tells is heard on a thread made for that: the callback and the executors that tasks wait on are the program's code,
/// which may be slow or deep. `@unchecked Sendable` as its base class is: all it has is constant or behind a mutex.
final class MonitorCore: Teller, ForkProtected, @unchecked Sendable {
  private struct State {
    /// The level that everybody has been told, and the newest one, still to be told.
    var level: PressureLevel
    var newest: PressureLevel
    var isOver = false
    var nextNumber = 0
    var listeners: [Int: Listener] = [:]
    var statistics = PressureStatistics()
    /// Levels to be told, oldest first. More than this many at a time and the last ones are told as one: the newest.
    var waiting: [(level: PressureLevel, change: Int)] = []
    /// How often the level has changed, and which change everybody has been told of.
    var changes = 0
    var told = 0
    static let waitingLimit = 16
    /// The process that has a thread for them, 0 for none.
    var teller: pid_t = 0
    /// While sequences are told of the change that waits first.
    var isChanging = false

    mutating func note(_ level: PressureLevel) {
      if waiting.count == Self.waitingLimit { waiting.removeLast() }
      waiting.append((level, changes))
    }
  }

  private struct Listener {
    let continuation: AsyncStream<PressureLevel>.Continuation
    /// The first change that it is told of, after the level that it began with.
    let firstChange: Int
  }

  let source: (any PressureSource)?
  /// Called by the telling thread, outside of every mutex.
  private let callback: (@Sendable (PressureLevel) -> Void)?
  let link = ClientLink<UnownedMonitor>()
  /// What the library's thread keeps for this monitor.
  let notes = Guarded(MonitorNotes())
  /// Where the source's descriptors were opened.
  let process = Guarded(getpid())
  private let state: Guarded<State>

  init(source: (any PressureSource)?, callback: (@Sendable (PressureLevel) -> Void)?) {
    self.source = source
    self.callback = callback
    let known = source == nil ? Maintainer.shared.currentLevel : .normal
    var first = State(level: known, newest: known)
    first.waiting.reserveCapacity(State.waitingLimit)
    state = Guarded(first)
  }

  /// The level that everybody has been told. While sequences are being told of a change, the caller waits for the end of that,
  /// so that both agree. The wait is short, since an executor may take its time; the telling thread never waits.
  var level: PressureLevel {
    var (level, isChanging) = state.withLock { ($0.level, $0.isChanging) }
    for _ in 0..<200 where isChanging && !ThreadRole.isTelling {
      usleep(100)
      (level, isChanging) = state.withLock { ($0.level, $0.isChanging) }
    }
    return level
  }

  var statistics: PressureStatistics { state.withLock { $0.statistics } }

  func makeStream() -> AsyncStream<PressureLevel> {
    let (stream, continuation) = AsyncStream.makeStream(of: PressureLevel.self, bufferingPolicy: .bufferingNewest(1))
    let number = state.withLock { state -> Int? in
      guard !state.isOver else { return nil }
      state.nextNumber += 1
      state.listeners[state.nextNumber] = Listener(continuation: continuation, firstChange: state.told + 1)
      // Under the mutex, so that no later level overtakes it. Nobody waits for this sequence yet, so no executor is called.
      continuation.yield(state.level)
      return state.nextNumber
    }
    guard let number else {
      continuation.finish()
      return stream
    }
    continuation.onTermination = { [weak self] _ in
      // Outside of the statement that removes it: the last reference may go with it.
      let gone = self?.state.withLock { $0.listeners.removeValue(forKey: number) }
      withExtendedLifetime(gone) {}
    }
    return stream
  }

  /// Library's thread. `isFirst`: the callback hears of the level whatever it is.
  func deliver(_ level: PressureLevel, isFirst: Bool = false, sourceName: String? = nil) {
    let needsThread = state.withLock { state -> Bool in
      state.statistics.sourceName = sourceName ?? state.statistics.sourceName
      let isNews = !state.isOver && state.newest != level
      if isNews {
        if level > state.newest { state.statistics.noteRise(to: level) }
        state.newest = level
        state.statistics.level = level
        state.changes += 1
      }
      if isNews || isFirst && callback != nil { state.note(level) }
      guard !state.waiting.isEmpty else { return false }
      let process = getpid()
      defer { state.teller = process }
      return state.teller != process
    }
    // Telling takes memory, and the runtime ends the program without it. If memory or a thread is lacking, waiting levels are
    // told after a later look.
    if needsThread, !MemoryReserve.isThere(MemoryReserve.ofNews) || !startTelling() { state.withLock { $0.teller = 0 } }
  }

  /// On the telling thread.
  override func run() {
    let process = getpid()
    while true {
      let next = state.withLock { state -> (level: PressureLevel, change: Int)? in
        // In a child that was forked meanwhile, another thread tells.
        guard state.teller == process, getpid() == process else { return nil }
        // Under the mutex: a thread that adds a level from here on starts another telling thread.
        if state.waiting.isEmpty { state.teller = 0 }
        state.isChanging = !state.waiting.isEmpty
        return state.waiting.first
      }
      guard let (level, change) = next else { return }
      // A sequence made meanwhile begins with the old level, and is told of the change as well.
      var told = 0
      while let listeners = listeners(to: level, change, from: &told) {
        ThreadRole.whileTelling { for listener in listeners { listener.yield(level) } }
      }
      callback?(level)
    }
  }

  /// The sequences still to be told of the first waiting change; nil when all have been told: the change is then the level.
  private func listeners(
    to level: PressureLevel, _ change: Int, from told: inout Int
  ) -> [AsyncStream<PressureLevel>.Continuation]? {
    let first = told
    let (found, last) = state.withLock { state -> ([AsyncStream<PressureLevel>.Continuation]?, Int) in
      let found = state.listeners.filter { $0.key > first && $0.value.firstChange <= change }.map(\.value.continuation)
      if found.isEmpty {
        state.level = level
        state.told = change
        state.isChanging = false
        if !state.waiting.isEmpty { state.waiting.removeFirst() }
        return (nil, first)
      }
      return (found, state.nextNumber)
    }
    told = last
    return found
  }

  func forgetInChild() {
    state.withLock { state in
      state.waiting.removeAll(keepingCapacity: true)
      (state.level, state.told, state.teller, state.isChanging) = (state.newest, state.changes, 0, false)
    }
  }

  /// Levels wait and no thread tells them: memory or a thread was lacking.
  var owesNews: Bool { state.withLock { !$0.waiting.isEmpty && $0.teller != getpid() } }

  func lockForFork() {
    process.lock()
    state.lock()
    notes.lock()
  }

  func unlockAfterFork() {
    notes.unlock()
    state.unlock()
    process.unlock()
  }

  func finish() {
    let listeners = state.withLock { state -> [AsyncStream<PressureLevel>.Continuation] in
      state.isOver = true
      return state.listeners.values.map(\.continuation)
    }
    // Outside of the mutex: each calls back at once.
    for listener in listeners { listener.finish() }
  }
}
