// SPDX-License-Identifier: MIT
// Failures in words, and the system's errors.

import Glibc

/// A failure with a sentence for whoever called the tool. Exit status 1.
package struct ToolFailure: Error, CustomStringConvertible, Equatable {
  package var description: String

  package init(_ description: String) {
    self.description = description
  }
}

/// What the system says about its error numbers.
package enum SystemError {
  package static func text(_ number: Int32) -> String {
    // `strerror` answers a constant string, or one of this thread's that is copied at once.
    unsafe String(cString: strerror(number))
  }
}
