// SPDX-License-Identifier: MIT
// What every part of the tool needs: failures in words, the system's errors, a clock.

import Glibc

/// A failure with a sentence for whoever called the tool. Exit status 1.
package struct ToolFailure: Error, CustomStringConvertible, Equatable {
  package var description: String

  package init(_ description: String) {
    self.description = description
  }
}

/// What the system says about its error numbers.
enum SystemError {
  static func text(_ number: Int32) -> String {
    // `strerror` answers a constant string, or one of this thread's that is copied at once.
    unsafe String(cString: strerror(number))
  }
}

/// Nanoseconds of the clock that never goes back.
enum Clock {
  static var now: UInt64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_MONOTONIC, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}
