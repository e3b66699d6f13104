// SPDX-License-Identifier: MIT
// The clock that everything here goes by.

import Glibc

/// Nanoseconds since some moment before the process began.
enum MonotonicTime {
  static var now: UInt64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_MONOTONIC, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}
