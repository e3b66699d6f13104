// SPDX-License-Identifier: MIT
// The clock that everything here goes by, and the one that tests set in its place.

import Glibc

extension Duration {
  /// In nanoseconds: 0 at least, and at most a time that no clock reaches.
  var wholeNanoseconds: UInt64 {
    let (seconds, attoseconds) = components
    guard seconds >= 0, attoseconds >= 0 else { return 0 }
    let (whole, overflow) = UInt64(seconds).multipliedReportingOverflow(by: 1_000_000_000)
    return overflow ? .max / 4 : min(.max / 4, whole + UInt64(attoseconds) / 1_000_000_000)
  }
}

/// Nanoseconds since some moment before the process began.
@usableFromInline
enum MonotonicTime {
  @usableFromInline static var now: UInt64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_MONOTONIC, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}

/// The time in nanoseconds since some moment before its user was made; it does not go back. Called from any thread, also under a
/// mutex. Whoever has a rule about time is given one when it is made, so that tests need not wait.
struct MonotonicClock: Sendable {
  let now: @Sendable () -> UInt64

  static let system = MonotonicClock { MonotonicTime.now }
}
