// SPDX-License-Identifier: MIT
// One thing that the doctor found out, and how it is shown.

import Purgeable
import ToolSupport

/// One fact about this machine or container, with what follows from it.
package struct Finding: Equatable, Sendable {
  package enum State: String, Sendable, CaseIterable {
    /// Nothing to do.
    case good
    /// Purgeable memory works, with less than it could have.
    case limited
    /// Purgeable memory does not work here, or not as it should.
    case bad
  }

  /// Short, stable, the key in `--json`.
  package var name: String
  package var state: State
  package var value: String
  /// What it means for a program that uses purgeable memory.
  package var meaning: String
  /// What to change; empty where nothing has to be.
  package var remedy: String

  package init(_ name: String, _ state: State, _ value: String, meaning: String, remedy: String = "") {
    self.name = name
    self.state = state
    self.value = value
    self.meaning = meaning
    self.remedy = remedy
  }

  package var json: JSON {
    [
      "name": .string(name), "state": .string(state.rawValue), "value": .string(value), "meaning": .string(meaning),
      "remedy": .string(remedy),
    ]
  }

  /// The finding in a table whose names take `nameWidth` columns: state, name, value, and below them the sentences.
  package func lines(nameWidth: Int, lineWidth: Int) -> [String] {
    let margin = String(repeating: " ", count: 9)
    let head = state.rawValue.padded(to: 9) + name.padded(to: nameWidth + 2) + value
    let meaning = Self.wrap(meaning, width: lineWidth - margin.count).map { margin + $0 }
    let change = remedy.isEmpty ? [] : Self.wrap("To change: " + remedy, width: lineWidth - margin.count).map { margin + $0 }
    return [head] + meaning + change
  }

  /// Breaks a text between words, so that no line is longer than `width` unless a single word is.
  static func wrap(_ text: String, width: Int) -> [String] {
    var lines: [String] = []
    for word in text.split(separator: " ") {
      if let last = lines.last, last.count + 1 + word.count <= width {
        lines[lines.count - 1] = last + " " + word
      } else {
        lines.append(String(word))
      }
    }
    return lines
  }
}
