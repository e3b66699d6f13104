// SPDX-License-Identifier: MIT
// A command: its name, what it takes, and what it does. The table of all of them is in Commands.swift.

import ToolSupport

/// One command of the tool.
package struct Command: Sendable {
  package typealias Option = Arguments.Option

  package var name: String
  /// One line, for the list of commands.
  package var summary: String
  /// A paragraph, for the command's own help.
  package var description: String
  /// The operands, in order, as the help shows them: in brackets where the command does something without.
  package var operands: [String] = []
  package var options: [Option] = []
  /// Runs the command, and answers the exit status. `UsageError` makes it 2, any other error 1; both are printed.
  package var run: @Sendable (Arguments) throws -> Int32

  package init(
    name: String, summary: String, description: String, operands: [String] = [], options: [Option] = [],
    run: @escaping @Sendable (Arguments) throws -> Int32
  ) {
    self.name = name
    self.summary = summary
    self.description = description
    self.operands = operands
    self.options = options
    self.run = run
  }

  /// What `--help` prints.
  package var help: String {
    let rows = Option.help(options + [Option("help", "Print this.")])
    let usage = ["usage:", Tool.name, name] + operands + ["[OPTIONS]"]
    return """
      \(usage.joined(separator: " "))

      \(description)

      \(rows)
      """
  }
}
