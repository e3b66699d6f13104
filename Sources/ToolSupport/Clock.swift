// SPDX-License-Identifier: MIT
// The clock of the tools, and waiting for something to happen.

import Glibc

/// Nanoseconds of the clock that never goes back.
package enum Clock {
  @inlinable
  package static var now: UInt64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_MONOTONIC, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}

/// Waits until a condition holds, and asks a hundred times a second. False when it still does not hold after `seconds`.
package func patiently(seconds: Int = 120, _ holds: () -> Bool) -> Bool {
  for _ in 0..<seconds * 100 {
    if holds() { return true }
    usleep(10_000)
  }
  return holds()
}
