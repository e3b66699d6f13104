// SPDX-License-Identifier: MIT
// The words of a command line, checked against what a command takes.
//
//   --name            an option without a value          --name VALUE, --name=VALUE   one with a value
//   word              an operand                         --                           only operands from here on

/// Called wrongly: the message names what was wrong. Exit status 2.
package struct UsageError: Error, Equatable {
  package var message: String

  package init(_ message: String) {
    self.message = message
  }
}

/// The options and operands of one call. Everything unknown, doubled or incomplete was refused when this was made.
package struct Arguments: Equatable, Sendable {
  /// One option that a command takes, `--name` or `--name VALUE`.
  package struct Option: Sendable {
    package var name: String
    /// The value's placeholder in the help; nil for an option that takes no value.
    package var value: String?
    package var meaning: String

    package init(_ name: String, value: String? = nil, _ meaning: String) {
      self.name = name
      self.value = value
      self.meaning = meaning
    }

    /// The lines of a help about these options, indented by two spaces.
    package static func help(_ options: [Option]) -> String {
      let shown = options.map { option in "--\(option.name)" + (option.value.map { " \($0)" } ?? "") }
      let width = shown.map(\.count).max() ?? 0
      return zip(shown, options).map { "  \($0.padded(to: width))  \($1.meaning)" }.joined(separator: "\n")
    }
  }

  private var values: [String: String] = [:]
  private var flags: Set<String> = []
  package private(set) var operands: [String] = []

  /// Reads the words behind a command's name. `operandCount`: the most operands that the command takes.
  package init(_ words: [String], options: [Option], operandCount: Int = 0) throws(UsageError) {
    var rest = words[...]
    while let word = rest.popFirst() {
      if word == "--" {
        operands += rest
        break
      }
      // A single dash is an operand, as everywhere.
      guard word.hasPrefix("-"), word != "-" else {
        operands.append(word)
        continue
      }
      let parts = word.split(separator: "=", maxSplits: 1, omittingEmptySubsequences: false).map(String.init)
      guard let option = options.first(where: { "--" + $0.name == parts[0] }) else {
        throw UsageError("unknown option \"\(parts[0])\"")
      }
      guard values[option.name] == nil, !flags.contains(option.name) else {
        throw UsageError("--\(option.name) is given twice")
      }
      guard let valueName = option.value else {
        guard parts.count == 1 else { throw UsageError("--\(option.name) takes no value, but \"\(parts[1])\" is given") }
        flags.insert(option.name)
        continue
      }
      // An option behind it is none; a value that looks like one is written behind "=".
      let next = parts.count == 2 ? parts[1] : rest.first.flatMap { $0.hasPrefix("--") ? nil : $0 }
      if parts.count == 1, next != nil { rest.removeFirst() }
      guard let value = next, !value.isEmpty else {
        throw UsageError("--\(option.name) needs a value: --\(option.name) \(valueName)")
      }
      values[option.name] = value
    }
    if operands.count > operandCount {
      throw UsageError("unexpected argument \"\(operands[operandCount])\"")
    }
  }

  /// Whether an option without a value was given.
  package func has(_ name: String) -> Bool {
    flags.contains(name)
  }

  /// The value of an option, or nil where it was not given.
  package func text(_ name: String) -> String? {
    values[name]
  }

  /// The value of an option that has to be a whole number, not negative.
  package func number(_ name: String) throws(UsageError) -> UInt64? {
    guard let text = values[name] else { return nil }
    guard let number = UInt64(text) else { throw UsageError("--\(name): \"\(text)\" is not a whole number below 2^64") }
    return number
  }

  /// The value of an option that has to be a size: bytes, or a number with K, M, G or T (powers of 1,024).
  package func bytes(_ name: String) throws(UsageError) -> UInt64? {
    guard let text = values[name] else { return nil }
    guard let bytes = ByteSize(text) else {
      throw UsageError("--\(name): \"\(text)\" is not a size; write bytes, or a number with K, M, G or T behind it")
    }
    return bytes.count
  }
}
