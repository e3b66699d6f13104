// SPDX-License-Identifier: MIT
// A command: its name, what it takes, and what it does. The table of all of them is in Commands.swift.

/// One command of the tool.
package struct Command: Sendable {
  /// One option, `--name` or `--name VALUE`.
  package struct Option: Sendable {
    package var name: String
    /// How the value is called in the help; nil for an option that takes none.
    package var value: String?
    package var meaning: String

    package init(_ name: String, value: String? = nil, _ meaning: String) {
      self.name = name
      self.value = value
      self.meaning = meaning
    }
  }

  package var name: String
  /// One line, for the list of commands.
  package var summary: String
  /// A paragraph, for the command's own help.
  package var description: String
  /// How the operands are called in the help, in order. All of them may be left out.
  package var operands: [String] = []
  package var options: [Option] = []
  /// Does it, and answers the exit status. `UsageError` makes it 2, any other error 1; both are printed.
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
    let all = options + [Option("help", "Print this.")]
    let shown = all.map { option in "--\(option.name)" + (option.value.map { " \($0)" } ?? "") }
    let width = shown.map(\.count).max() ?? 0
    let rows = zip(shown, all).map { "  \($0.padded(to: width))  \($1.meaning)" }
    let usage = ["usage:", Tool.name, name] + operands.map { "[\($0)]" } + ["[OPTIONS]"]
    return """
      \(usage.joined(separator: " "))

      \(description)

      \(rows.joined(separator: "\n"))
      """
  }
}
