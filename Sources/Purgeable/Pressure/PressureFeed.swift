// SPDX-License-Identifier: MIT
// When to wait for a source and when to ask it: the thread's state for each source.

import Glibc

/// One source and its smoothed level. Used by one thread. Times are given, so that tests need not wait.
///
/// Asked: when a descriptor is ready; once a second while the level is above normal; at its polling interval while anybody holds
/// anything. Descriptors are not waited for during a pause after an event, a tenth of a second, twice as long with every
/// event that follows closely, up to 0.4 s: while the kernel reclaims, there may be thousands of events a second.
struct PressureFeed {
  /// The result of asking the source.
  struct Answer: Equatable {
    var raw: PressureLevel
    var level: PressureLevel
    var before: PressureLevel
  }

  static let second: UInt64 = 1_000_000_000
  static let leastPause: UInt64 = 100_000_000
  static let longestPause: UInt64 = 400_000_000

  let source: any PressureSource
  /// The same source, if it is one of the library's own.
  private let listed: (any ListedSource)?
  private(set) var hysteresis: PressureHysteresis
  private(set) var lastAsk: UInt64 = 0
  private var pause = leastPause
  private var pausedUntil: UInt64 = 0
  private var hasAsked = false

  init(_ source: any PressureSource, hysteresis: PressureHysteresis = PressureHysteresis()) {
    self.source = source
    listed = source as? any ListedSource
    self.hysteresis = hysteresis
  }

  var level: PressureLevel { hysteresis.level }

  /// Adds the descriptors to wait for now.
  func addDescriptors(to list: inout DescriptorList, at now: UInt64) {
    guard now >= pausedUntil else { return }
    if let listed {
      listed.addDescriptors(to: &list)
    } else {
      for descriptor in source.descriptors { list.append(descriptor) }
    }
  }

  /// Those of the ready descriptors that are this source's.
  func own(of ready: DescriptorList) -> DescriptorList {
    var mine = DescriptorList()
    if ready.isEmpty { return mine }
    var all = DescriptorList()
    addDescriptors(to: &all, at: .max)
    for item in ready where all.events(of: item.descriptor) != nil { mine.append(item) }
    return mine
  }

  /// When the wait has to end without any event; nil: never. `anybodyHolds` tells whether any client has memory to give back,
  /// or wants to know the level.
  func deadline(at now: UInt64, anybodyHolds: Bool, hearsEvents: Bool = true) -> UInt64? {
    var deadline: UInt64?
    func meet(_ time: UInt64) { deadline = min(deadline ?? .max, time) }
    if !hasAsked { meet(now) }
    if level > .normal { meet(lastAsk + Self.second) }
    if anybodyHolds {
      if !hearsEvents { meet(lastAsk + Self.second) }
      if let interval = source.pollingInterval { meet(lastAsk + Self.nanoseconds(interval)) }
    }
    if now < pausedUntil { meet(pausedUntil) }
    return deadline
  }

  /// Whether the source should be asked although nothing happened. `isAwake`: the thread is up anyway.
  func isDue(at now: UInt64, anybodyHolds: Bool, isAwake: Bool) -> Bool {
    guard hasAsked else { return true }
    if isAwake, now >= lastAsk + Self.second { return true }
    if level > .normal, now >= lastAsk + Self.second { return true }
    guard anybodyHolds, let interval = source.pollingInterval else { return false }
    return now >= lastAsk + Self.nanoseconds(interval)
  }

  /// Asks the source and takes in its answer.
  mutating func ask(ready: DescriptorList, at now: UInt64) -> Answer {
    if ready.contains(where: { $0.events & Int16(POLLNVAL) != 0 }) {
      // The program closed our descriptor. Reopened at most once a second, in case the program closes it again.
      source.reopen()
      pausedUntil = now + Self.second
    } else if !ready.isEmpty {
      pause = now < pausedUntil + Self.second ? min(pause * 2, Self.longestPause) : Self.leastPause
      pausedUntil = now + pause
    }
    let before = level
    var open = DescriptorList()
    for item in ready where item.events & Int16(POLLNVAL) == 0 { open.append(item) }
    let raw = listed?.level(of: open) ?? source.level(ready: Array(open))
    hasAsked = true
    lastAsk = now
    return Answer(raw: raw, level: hysteresis.update(raw, at: now), before: before)
  }

  /// Never more often than once a second, nor less often than in 1,000,000.
  private static func nanoseconds(_ interval: Duration) -> UInt64 {
    min(1_000_000 * second, max(second, interval.wholeNanoseconds))
  }
}
