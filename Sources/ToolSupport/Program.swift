// SPDX-License-Identifier: MIT
// How the programs here begin and end.

import Glibc

package enum Program {
  /// Runs `body`, and ends the process with its status; with 1 in place of 0 where the output could not be written.
  package static func run(_ name: String, _ body: () -> Int32) -> Never {
    // A stream that is closed would be the next file that is opened. Nothing can be written to what stands in for it.
    for stream in STDIN_FILENO...STDERR_FILENO where fcntl(stream, F_GETFD) < 0 { _ = unsafe open("/dev/null", O_RDONLY) }
    // Ignored by who started this, as it is in some daemons, children would be gone before they are waited for.
    signal(SIGCHLD, SIG_DFL)
    let status = body()
    do throws(ToolFailure) {
      try writeOut()
      exit(status)
    } catch {
      complain("\(name): \(error)")
      exit(status == 0 ? 1 : status)
    }
  }

  /// What `print` wrote is still in a buffer: an output that cannot be written (a full disk) shows here, and in the first call
  /// alone.
  package static func writeOut() throws(ToolFailure) {
    guard fflush(nil) == 0 else { throw ToolFailure("the output cannot be written: \(SystemError.text(errno))") }
  }
}
