// SPDX-License-Identifier: MIT
// One row of a load's report: what it did within an interval, as cells and as JSON.

import Purgeable
import ToolSupport

enum LoadRow {
  static let titles = ["after", "reads", "hits", "p50", "p99", "p99.9", "max", "stores", "store p99.9", "store max"]

  static func cells(_ row: Tally, after seconds: Double) -> [String] {
    ["\(Figures.oneDecimal(seconds)) s"] + cells(row)
  }

  static func cells(_ row: Tally) -> [String] {
    [Figures.count(row["reads"]), row.hitShare] + ["p50", "p99", "p99.9", "max"].map { time(row, $0) }
      + [Figures.count(row["stores"]), time(row, "store.p99.9"), time(row, "store.max")]
  }

  static func time(_ row: Tally, _ name: String) -> String { row[name] == 0 ? "-" : Figures.time(row[name]) }

  static func facts(_ row: Tally) -> [(name: String, value: JSON)] {
    [
      ("reads", .unsigned(row["reads"])), ("hits", .unsigned(row["hits"])), ("p50Nanoseconds", .unsigned(row["p50"])),
      ("p99Nanoseconds", .unsigned(row["p99"])), ("p999Nanoseconds", .unsigned(row["p99.9"])),
      ("maxNanoseconds", .unsigned(row["max"])), ("stores", .unsigned(row["stores"])),
      ("storeP999Nanoseconds", .unsigned(row["store.p99.9"])), ("storeMaxNanoseconds", .unsigned(row["store.max"])),
    ]
  }

  static func json(_ row: Tally, after seconds: Double) -> JSON {
    .object([("seconds", .number((seconds * 10).rounded() / 10))] + facts(row))
  }
}
