// SPDX-License-Identifier: MIT
// What a scenario came to, as a table and as JSON.

import Purgeable
import ToolSupport

struct StressReport: Sendable {
  var scenario: Scenario
  var options: StressOptions
  var seed: UInt64
  /// What made the pressure, in words.
  var pressure: String
  var swap: String
  var outcome: StressOutcome
  var nanoseconds: UInt64

  /// One line: "overcommit  passed  0 wrong bytes, nobody killed, hits 61 %".
  var verdict: String {
    let words: [String]
    let state: String
    if let reason = outcome.skipped {
      (state, words) = ("skipped", [reason])
    } else if outcome.hasPassed {
      (state, words) = ("passed", ["0 wrong bytes", outcome.survivors, "nothing hung"] + outcome.highlights)
    } else {
      (state, words) = ("FAILED", ["\(outcome.wrongBytes) wrong bytes"] + outcome.failures + outcome.highlights)
    }
    return "\(scenario.name.padded(to: 10))  \(state)  \(words.joined(separator: ", "))"
  }

  var table: String {
    var lines = ["\(scenario.name): \(scenario.shows)", "\(pressure), swap \(swap), seed \(seed), \(Figures.time(nanoseconds))"]
    lines += tableLines(outcome.rows).map { "  " + $0 } + [verdict]
    return lines.joined(separator: "\n") + "\n"
  }

  var json: JSON {
    var members: [(name: String, value: JSON)] = [
      ("scenario", .string(scenario.name)), ("wrongBytes", .unsigned(outcome.wrongBytes)), ("passed", .bool(outcome.hasPassed)),
    ]
    if let reason = outcome.skipped { members.append(("skipped", .string(reason))) }
    members += [
      ("failures", .array(outcome.failures.map { .string($0) })), ("seed", .unsigned(seed)),
      ("limitBytes", .unsigned(options.limitBytes)), ("short", .bool(options.isShort)), ("pressure", .string(pressure)),
      ("swap", .string(swap)),
    ]
    members += outcome.facts
    members.append(("nanoseconds", .unsigned(nanoseconds)))
    return .object(members)
  }
}
