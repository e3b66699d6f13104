// SPDX-License-Identifier: MIT
// The clock that everything here goes by.

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
