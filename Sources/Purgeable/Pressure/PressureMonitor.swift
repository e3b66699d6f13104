// SPDX-License-Identifier: MIT
// Pressure for programs that want to hear of it themselves.

import Glibc
import Synchronization

/// Tells how short memory is, smoothed: the level rises at once, and falls one step at a time, each after two seconds.
///
/// ```swift
/// let monitor = PressureMonitor()
/// for await level in monitor.levels where level == .critical { shedLoad() }
/// ```
///
/// As long as a monitor is alive, the library's thread is: asleep until the source has something to tell, or, for a source that only
/// polls, until the next look. Any thread may use a monitor. In a forked child it goes on from the moment somebody asks it there.
public final class PressureMonitor: Sendable {
  private let core: MonitorCore

  /// Begins to watch. `source`: nil for the one that the library's caches use.
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

  /// The level right now. One mutex, no system call but for `getpid`.
  public var level: PressureLevel {
    Maintainer.shared.resumeAfterFork()
    return core.level
  }

  /// Every level from now on: the current one first, then each change. Every call makes a sequence of its own, for one task; one that
  /// is slow misses what is outdated and gets the newest. A sequence ends when the monitor is gone: it does not keep it alive.
  public var levels: AsyncStream<PressureLevel> {
    Maintainer.shared.resumeAfterFork()
    return core.makeStream()
  }

  /// What has come of it; for a monitor without a source of its own: what has come of the library's.
  public var statistics: PressureStatistics { core.source == nil ? Maintainer.shared.statistics : core.statistics }
}

/// What a monitor and the library's thread share.
final class MonitorCore: ForkProtected {
  private struct State {
    var level: PressureLevel
    var isOver = false
    var nextNumber = 0
    var listeners: [Int: AsyncStream<PressureLevel>.Continuation] = [:]
    var statistics = PressureStatistics()
  }

  /// Never used again, as an address would be.
  let number: UInt64
  private static let lastNumber = Atomic<UInt64>(0)

  let source: (any PressureSource)?
  /// Called by the library's thread, outside of every mutex.
  private let callback: (@Sendable (PressureLevel) -> Void)?
  /// Where the source's descriptors were opened.
  let process = Guarded(getpid())
  private let state: Guarded<State>

  init(source: (any PressureSource)?, callback: (@Sendable (PressureLevel) -> Void)?) {
    number = Self.lastNumber.add(1, ordering: .relaxed).newValue
    self.source = source
    self.callback = callback
    state = Guarded(State(level: source == nil ? Maintainer.shared.currentLevel : .none))
  }

  var level: PressureLevel { state.withLock { $0.level } }

  var statistics: PressureStatistics { state.withLock { $0.statistics } }

  func makeStream() -> AsyncStream<PressureLevel> {
    let (stream, continuation) = AsyncStream.makeStream(of: PressureLevel.self, bufferingPolicy: .bufferingNewest(1))
    let number = state.withLock { state -> Int? in
      guard !state.isOver else { return nil }
      state.nextNumber += 1
      state.listeners[state.nextNumber] = continuation
      // Under the mutex, so that no later level overtakes it.
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
      _ = gone
    }
    return stream
  }

  /// Library's thread. `isFirst`: the callback hears of the level whatever it is.
  func deliver(_ level: PressureLevel, isFirst: Bool = false, sourceName: String? = nil) {
    let isNews = state.withLock { state -> Bool in
      state.statistics.sourceName = sourceName ?? state.statistics.sourceName
      guard !state.isOver, state.level != level else { return false }
      if level > state.level { state.statistics.noteRise(to: level) }
      state.level = level
      state.statistics.level = level
      for listener in state.listeners.values { listener.yield(level) }
      return true
    }
    if isNews || isFirst { callback?(level) }
  }

  func lockForFork() {
    process.lock()
    state.lock()
  }

  func unlockAfterFork() {
    state.unlock()
    process.unlock()
  }

  func finish() {
    let listeners = state.withLock { state -> [AsyncStream<PressureLevel>.Continuation] in
      state.isOver = true
      return Array(state.listeners.values)
    }
    // Outside of the mutex: each calls back at once.
    for listener in listeners { listener.finish() }
  }
}
