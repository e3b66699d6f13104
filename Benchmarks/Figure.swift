// SPDX-License-Identifier: MIT
// One figure: what was measured, what was wanted, and whether it holds; as a line of the table and as JSON.

import Foundation
import Purgeable
import ToolSupport

struct Figure {
  enum Reach {
    case atMost(Double)
    case atLeast(Double)

    var bound: Double {
      switch self {
      case .atMost(let bound), .atLeast(let bound): bound
      }
    }
  }

  enum Kind {
    /// The same on every run, or nearly so: the exit status tells when it does not hold.
    case count
    /// Depends on the machine and its other work: reported only.
    case time
  }

  var name: String
  var kind: Kind
  /// nil where it could not be measured; `note` says why.
  var value: Double?
  var reach: Reach
  var unit: String
  var spread: ClosedRange<Double>?
  var rounds: Int?
  var note: String?
  /// A further condition without which the figure means nothing.
  var condition = true

  init(_ name: String, _ kind: Kind, _ value: Double?, _ reach: Reach, _ unit: String, note: String? = nil) {
    self.name = name
    self.kind = kind
    self.value = value
    self.reach = reach
    self.unit = unit
    self.note = note
  }

  init(_ name: String, _ kind: Kind, _ spread: Spread, _ reach: Reach, _ unit: String, note: String? = nil) {
    self.init(name, kind, spread.median, reach, unit, note: note)
    self.spread = spread.least...spread.most
    rounds = spread.count
  }

  var holds: Bool {
    guard condition, let value else { return false }
    return switch reach {
    case .atMost(let bound): value <= bound
    case .atLeast(let bound): value >= bound
    }
  }

  /// Whether the figure makes the exit status a failure.
  var isBroken: Bool { kind == .count && value != nil && !holds }

  // MARK: As text

  static func text(_ number: Double) -> String {
    if number == number.rounded(), abs(number) < 1e6 { return String(Int(number)) }
    return abs(number) < 0.001 || abs(number) >= 1e6 ? String(format: "%.2e", number) : String(format: "%.4g", number)
  }

  private var cells: [String] {
    let bound = Self.text(reach.bound)
    let wanted = if case .atMost = reach { "at most \(bound)" } else { "at least \(bound)" }
    let range = spread.map { "\(Self.text($0.lowerBound)) ... \(Self.text($0.upperBound))" } ?? ""
    let verdict = holds ? "holds" : value == nil ? "not measured" : "DOES NOT HOLD"
    return [name, value.map(Self.text) ?? "-", range, wanted, unit, verdict]
  }

  static func table(_ figures: [Figure]) -> String {
    let heads = ["figure", "value", "spread", "reach", "unit", ""]
    let rows = [heads] + figures.map(\.cells)
    let widths = columnWidths(rows)
    func line(_ cells: [String]) -> String { zip(cells, widths).map { $0.padded(to: $1) }.joined(separator: "  ") }
    var lines = [line(heads)]
    for (figure, cells) in zip(figures, rows.dropFirst()) {
      lines.append(line(cells))
      if let note = figure.note { lines.append("    " + note) }
    }
    return lines.joined(separator: "\n")
  }

  // MARK: As JSON

  var json: JSON {
    let comparison = if case .atMost = reach { "at most" } else { "at least" }
    var members: [(name: String, value: JSON)] = [
      ("name", .string(name)), ("value", value.map { .number($0) } ?? .null), ("reach", .number(reach.bound)),
      ("comparison", .string(comparison)), ("unit", .string(unit)), ("holds", .bool(holds)), ("gates", .bool(kind == .count)),
    ]
    if let spread { members.append(("spread", .array([.number(spread.lowerBound), .number(spread.upperBound)]))) }
    if let rounds { members.append(("rounds", .integer(Int64(rounds)))) }
    if let note { members.append(("note", .string(note))) }
    return .object(members)
  }
}
