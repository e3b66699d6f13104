// SPDX-License-Identifier: MIT
// What `stress` was asked to do.

import ToolSupport

/// The options of `stress`.
package struct StressOptions: Equatable, Sendable {
  /// In the order in which they are run.
  package var scenarios: [String] = []
  package var repeatCount: UInt64 = 1
  package var seed: UInt64 = 1
  /// Of the memory group.
  package var limitBytes: UInt64 = 512 << 20
  /// How long a scenario's main part takes; nil for what it takes by itself.
  package var seconds: UInt64?
  package var isShort = false
  package var wantsSwap = false
  package var isJSON = false
  /// Where to write the run's record; nil: nowhere.
  package var recordPath: String?

  package static let shortLimitBytes: UInt64 = 160 << 20

  package init(_ arguments: Arguments) throws(UsageError) {
    let known = Scenarios.all.map(\.name)
    switch (arguments.operands.first, arguments.has("all")) {
    case (let name?, false):
      guard known.contains(name) else {
        throw UsageError("unknown scenario \"\(name)\"; there are: \(known.joined(separator: ", "))")
      }
      scenarios = [name]
    case (nil, true): scenarios = known
    case (nil, false): throw UsageError("a scenario or --all is missing; there are: \(known.joined(separator: ", "))")
    case (_?, true): throw UsageError("a scenario or --all, not both")
    }
    isShort = arguments.has("short")
    wantsSwap = arguments.has("swap")
    isJSON = arguments.has("json")
    repeatCount = try arguments.number("repeat") ?? 1
    seed = try arguments.number("seed") ?? 1
    limitBytes = try arguments.bytes("limit") ?? (isShort ? Self.shortLimitBytes : limitBytes)
    seconds = try arguments.number("seconds")
    recordPath = try arguments.recordPath()
    if recordPath != nil, scenarios.count != 1 || repeatCount != 1 {
      throw UsageError("--record: a record is of one run; name one scenario, without --repeat")
    }
    if repeatCount == 0 { throw UsageError("--repeat: at least once") }
    if !(96 << 20...1 << 40).contains(limitBytes) { throw UsageError("--limit: \(limitBytes) bytes; between 96M and 1T") }
    if seconds != nil, scenarios == ["hot"] { throw UsageError("--seconds: \"hot\" goes by the number of its reads") }
    if let seconds, !(1...86_400).contains(seconds) { throw UsageError("--seconds: \(seconds); between 1 and 86400") }
  }
}
