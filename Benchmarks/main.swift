// SPDX-License-Identifier: MIT
// The figures of this library, measured from another module, as a program of a user would see them.

import Foundation
import ToolSupport

// Ignored by who started this, as it is in some daemons, children would be gone before they are waited for.
signal(SIGCHLD, SIG_DFL)
var status = Bench.run(Array(CommandLine.arguments.dropFirst()))
// What `print` wrote is still in a buffer: an output that cannot be written shows here.
if fflush(nil) != 0 {
  complain("the output cannot be written: \(SystemError.text(errno))")
  status = max(status, 1)
}
exit(status)
