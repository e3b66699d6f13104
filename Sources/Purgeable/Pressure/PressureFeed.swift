// SPDX-License-Identifier: MIT
// When to wait for a source and when to ask it: what the library's thread keeps for each.

import Glibc

/// One source and its smoothed level. Used by one thread. Times are given, so that tests need not wait.
///
/// Asked: when a descriptor is ready; once a second while the level is above none; at its polling interval while anybody holds
/// anything. Descriptors are not waited for during a pause after an event, a tenth of a second, twice as long with every
/// event that follows closely, up to 0.4 s: while the kernel reclaims, there may be thousands of events a second.
struct PressureFeed {
  /// What came of asking.
  struct Answer: Equatable {
    var raw: PressureLevel
    var level: PressureLevel
    var before: PressureLevel
  }

  static let second: UInt64 = 1_000_000_000
  static let leastPause: UInt64 = 100_000_000
  static let longestPause: UInt64 = 400_000_000

  let source: any PressureSource
  private(set) var hysteresis: PressureHysteresis
  private(set) var lastAsk: UInt64 = 0
  private var pause = leastPause
  private var pausedUntil: UInt64 = 0
  private var hasAsked = false

  init(_ source: any PressureSource, hysteresis: PressureHysteresis = PressureHysteresis()) {
    self.source = source
    self.hysteresis = hysteresis
  }

  var level: PressureLevel { hysteresis.level }

  /// What to wait for now.
  func descriptors(at now: UInt64) -> [PressureDescriptor] {
    now < pausedUntil ? [] : source.descriptors
  }

  /// When the waiting has to end without any event; nil: never. `anybodyHolds` tells whether there is anything to give back, or
  /// anybody who wants to know.
  func deadline(at now: UInt64, anybodyHolds: Bool, hearsEvents: Bool = true) -> UInt64? {
    var deadline: UInt64?
    func meet(_ time: UInt64) { deadline = min(deadline ?? .max, time) }
    if !hasAsked { meet(now) }
    if level > .none { meet(lastAsk + Self.second) }
    if anybodyHolds {
      if !hearsEvents { meet(lastAsk + Self.second) }
      if let interval = source.pollingInterval { meet(lastAsk + Self.nanoseconds(interval)) }
    }
    if now < pausedUntil { meet(pausedUntil) }
    return deadline
  }

  /// Whether it should be asked although nothing happened. `isAwake`: the thread is up anyway.
  func isDue(at now: UInt64, anybodyHolds: Bool, isAwake: Bool) -> Bool {
    guard hasAsked else { return true }
    if isAwake, now >= lastAsk + Self.second { return true }
    if level > .none, now >= lastAsk + Self.second { return true }
    guard anybodyHolds, let interval = source.pollingInterval else { return false }
    return now >= lastAsk + Self.nanoseconds(interval)
  }

  /// Asks the source and takes in its answer.
  mutating func ask(ready: [PressureDescriptor], at now: UInt64) -> Answer {
    if ready.contains(where: { $0.events & Int16(POLLNVAL) != 0 }) {
      // Somebody closed what was ours. Not more often than once a second, lest that repeats.
      source.reopen()
      pausedUntil = now + Self.second
    } else if !ready.isEmpty {
      pause = now < pausedUntil + Self.second ? min(pause * 2, Self.longestPause) : Self.leastPause
      pausedUntil = now + pause
    }
    let before = level
    let raw = source.level(ready: ready.filter { $0.events & Int16(POLLNVAL) == 0 })
    hasAsked = true
    lastAsk = now
    return Answer(raw: raw, level: hysteresis.update(raw, at: now), before: before)
  }

  /// Never more often than once a second.
  private static func nanoseconds(_ interval: Duration) -> UInt64 {
    let (seconds, attoseconds) = interval.components
    guard seconds >= 1 else { return second }
    return UInt64(min(seconds, 1_000_000)) * second + UInt64(attoseconds / 1_000_000_000)
  }
}
