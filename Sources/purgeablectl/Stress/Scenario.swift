// SPDX-License-Identifier: MIT
// A scenario: its name, what it shows, how it is run; and what came of it. The table of all of them is in Scenarios.swift.

import Purgeable
import ToolSupport

/// One way to put a cache under pressure.
struct Scenario: Sendable {
  var name: String
  /// One line, for the help.
  var shows: String
  /// Runs it in a fresh memory group. Throws `StressFailure` for what ends it before its end.
  var run: @Sendable (StressStage) throws -> StressOutcome
}

/// What came of a scenario.
struct StressOutcome: Sendable {
  var wrongBytes: UInt64 = 0
  /// What must not happen and did, in words. Empty when the scenario passed.
  var failures: [String] = []
  /// Why nothing was tried; nil when it was.
  var skipped: String?
  /// The report's rows, the first of them titles.
  var rows: [[String]] = []
  /// The processes that were not killed, for the verdict.
  var survivors = "nobody killed"
  /// Its main figures, for the verdict: "hits 61 %".
  var highlights: [String] = []
  /// Everything as numbers, for `--json`.
  var facts: [(name: String, value: JSON)] = []

  var hasPassed: Bool { skipped == nil && failures.isEmpty && wrongBytes == 0 }
  var hasFailed: Bool { skipped == nil && !hasPassed }
}

/// A failure that ends a scenario early.
enum StressFailure: Error, Equatable {
  /// A process of ours was gone while it had something to do.
  case died(String, ChildEnd)
  /// A process was silent for too long, or said that one of its threads makes no progress.
  case hung(String, String)
  case interrupted
  /// This machine does not allow what the scenario needs.
  case impossible(String)
}
