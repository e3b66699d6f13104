// SPDX-License-Identifier: MIT
// What was written after a command's name, checked against what the command takes.
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
  private var values: [String: String] = [:]
  private var flags: Set<String> = []
  package private(set) var operands: [String] = []

  package init(_ words: [String], of command: Command) throws(UsageError) {
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
      guard let option = command.options.first(where: { "--" + $0.name == parts[0] }) else {
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
      guard let value = parts.count == 2 ? parts[1] : rest.popFirst(), !value.isEmpty else {
        throw UsageError("--\(option.name) needs a value: --\(option.name) \(valueName)")
      }
      values[option.name] = value
    }
    if operands.count > command.operands.count {
      throw UsageError("unexpected argument \"\(operands[command.operands.count])\"")
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
    guard let number = UInt64(text) else { throw UsageError("--\(name): \"\(text)\" is not a whole number") }
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
