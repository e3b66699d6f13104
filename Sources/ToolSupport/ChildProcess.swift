// SPDX-License-Identifier: MIT
// Runs a program to its end and collects what it printed. Without Foundation, of whose Process the leak sanitizer reports leaks.

import Glibc

/// How a program ended, and what it printed.
package struct ChildProcess: Sendable {
  package let end: ChildEnd
  package let output: String
  /// Empty where standard error was led elsewhere.
  package let errors: String

  /// The exit status, or 128 and the number of the signal that ended it.
  package var status: Int32 { end.status }

  /// The most that is kept of each of the two, in bytes.
  package static let outputLimit = 16 << 20

  /// Runs a program that was built beside this one, and waits for its end.
  package static func runBuilt(_ name: String, _ words: [String]) throws(ToolFailure) -> ChildProcess {
    try run(OwnProgram.beside(name), words)
  }

  /// Runs the program at a path, with this process's environment and no input, and waits for its end. Standard error is collected
  /// like the output unless it is to lead elsewhere.
  package static func run(
    _ path: String, _ words: [String], errors: Launch.Stream? = nil
  ) throws(ToolFailure) -> ChildProcess {
    // Files and not pipes: however much the program prints, it cannot block.
    let output = try UnnamedFile()
    let collected = try UnnamedFile()
    var launch = Launch(path, [path] + words)
    launch.output = .descriptor(output.descriptor)
    launch.errors = errors ?? .descriptor(collected.descriptor)
    var process: pid_t = 0
    let error = launch.start(&process)
    guard error == 0 else { throw ToolFailure("\(path): \(SystemError.text(error))") }
    guard let end = ChildEnd.of(process) else { throw ToolFailure("\(path): nobody tells how it ended") }
    return ChildProcess(end: end, output: try output.text(limit: outputLimit), errors: try collected.text(limit: outputLimit))
  }
}
