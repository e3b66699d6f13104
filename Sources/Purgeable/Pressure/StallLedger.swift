// SPDX-License-Identifier: MIT
// The growth in stall time that a trigger's event has to show before the event is believed.
//
// A trigger of a process without CAP_SYS_RESOURCE fires wrongly once or twice after each arming. The kernel begins the trigger's
// window at a sum that it keeps for privileged triggers only, mostly 0, and then compares it with the sum of all stalls since the
// group was made or the machine started (kernel/sched/psi.c: psi_trigger_create, update_triggers). So the first stall of any size
// counts as "more than the threshold", and so may the next one, in the window after.
//
//   total=   330 ms ............ 330 | 334 ............ 334 | 338 ...
//                                ^armed  ^event: 4 ms          ^event: 4 ms       threshold 200: neither is believed

import Glibc

/// How long tasks have waited for memory since the group was made or the machine started: the `total=` of a file's lines.
struct StallTotals: Equatable, Sendable {
  /// Microseconds; nil where the file has no such line.
  var some: UInt64?
  var full: UInt64?

  /// Takes them from lines `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`. Allocates nothing: this is asked while memory is
  /// short.
  init(_ text: Span<UInt8>) {
    var start = 0
    while start < text.count {
      var end = start
      while end < text.count, text[end] != UInt8(ascii: "\n") { end += 1 }
      if text[start] == UInt8(ascii: "s") { some = Self.total(text, start..<end) }
      if text[start] == UInt8(ascii: "f") { full = Self.total(text, start..<end) }
      start = end + 1
    }
  }

  /// Reads the file from its beginning; nil where that fails. The kernel sums up anew for each reading. One system call.
  init?(of descriptor: OwnedDescriptor) {
    let totals = unsafe withUnsafeTemporaryAllocation(of: UInt8.self, capacity: 512) { buffer -> StallTotals? in
      let count = unsafe pread(descriptor.number, buffer.baseAddress, buffer.count, 0)
      guard count > 0 else { return nil }
      // In bounds: the call has filled that many, and the span does not outlive the buffer.
      return unsafe StallTotals(UnsafeBufferPointer(rebasing: buffer[0..<count]).span)
    }
    guard let totals else { return nil }
    self = totals
  }

  /// The number behind "total=" at the end of a line.
  private static func total(_ text: Span<UInt8>, _ line: Range<Int>) -> UInt64? {
    var number: UInt64 = 0
    var unit: UInt64 = 1
    var index = line.upperBound
    while index > line.lowerBound, UInt8(ascii: "0")...UInt8(ascii: "9") ~= text[index - 1] {
      number &+= UInt64(text[index - 1] - UInt8(ascii: "0")) &* unit
      unit &*= 10
      index -= 1
    }
    // What stands in front of the digits has to be that word: 6 bytes.
    guard index < line.upperBound, line.upperBound - index < 20, index - line.lowerBound >= 6 else { return nil }
    for (offset, byte) in "total=".utf8.enumerated() where text[index - 6 + offset] != byte { return nil }
    return number
  }
}

/// Which events of one trigger are true: those with which `total=` has grown by the threshold. A value without a clock of its
/// own.
///
/// The growth is counted from the event before (the arming, for the first): the kernel tells at most one event a window, so what
/// has grown since belongs to that event's window, however late the event is looked at.
///
/// - An event looked at late: the look has taken in some of the next window's stalls too, and the next event follows early. Then
///   the growth is counted from the look before the late one; otherwise a stall that the late look cut in two would be missed.
///   What is counted together then are two windows.
/// - Stalls spread over many windows, each below the threshold, make no event: the kernel forgets them window by window. Only its
///   wrong events could count them together, and those come with the first stalls after the arming.
/// - Events that were not believed count as looks too, so the stalls that they came with are not held against the next one.
struct StallLedger: Equatable, Sendable {
  private struct Look: Equatable, Sendable {
    var total: UInt64
    var time: UInt64
  }

  /// Two events of one trigger are a window apart; each look is late by the pause after an event (`PressureFeed`), or by less.
  static let leastNanosecondsApart: UInt64 = 1_500_000_000

  let thresholdMicroseconds: UInt64
  private var last: Look
  private var lastButOne: Look?

  /// `total` was read before the trigger was armed: what stalls in between counts.
  init(thresholdMicroseconds: UInt64, total: UInt64, at now: UInt64) {
    self.thresholdMicroseconds = thresholdMicroseconds
    last = Look(total: total, time: now)
  }

  /// Whether an event is believed at which `total` was read. Times are nanoseconds of any clock that does not go back.
  mutating func believes(total: UInt64, at now: UInt64) -> Bool {
    let isEarly = now < last.time || now - last.time < Self.leastNanosecondsApart
    let base = isEarly ? lastButOne ?? last : last
    lastButOne = isEarly ? nil : last
    last = Look(total: total, time: now)
    return total >= base.total && total - base.total >= thresholdMicroseconds
  }
}
