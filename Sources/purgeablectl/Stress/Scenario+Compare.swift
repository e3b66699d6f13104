// SPDX-License-Identifier: MIT
// compare: the same load on the cache and on the usual alternatives, each in a process of its own.

import Glibc
import Purgeable
import ToolSupport

extension Scenario {
  static let compare = Scenario(
    name: "compare", shows: "the same load on a dictionary, a count-limited LRU and NSCache: what became of each"
  ) { stage in
    let load = StressContent(seed: stage.seed, totalBytes: stage.limitBytes * 4, sizes: stage.smallSizes)
    var comparison = Comparison(stage: stage, load: load)
    for kind in RivalKind.allCases { try comparison.run(kind) }
    // Kills of rivals were allowed; a kill of the cache is a failure.
    stage.forgiveKills()
    return try comparison.runCache()
  }
}

/// One after the other in the same group.
private struct Comparison {
  let stage: StressStage
  let load: StressContent
  private var outcome = StressOutcome(rows: [["", "what became of it", "stored", "reads", "hits", "p50", "p99", "p99.9"]])
  private var facts: [JSON] = []
  private var deaths = 0

  init(stage: StressStage, load: StressContent) {
    self.stage = stage
    self.load = load
  }

  /// As many as fill half of the limit by what they hold, bookkeeping not counted.
  private var countLimit: UInt64 { load.keyCount / 8 }

  mutating func run(_ kind: RivalKind) throws {
    stage.clear()
    let child = try stage.startRival(kind, load, countLimit: countLimit)
    var last = Progress()
    var became = "survived"
    do {
      try loadIt(child, mayKill: true, &last)
    } catch StressFailure.died(child.name, .killed(SIGKILL)) {
      became = "killed"
    } catch StressFailure.died(child.name, let end) {
      // An allocation that fails ends a program as well.
      became = "ended (\(end))"
    }
    stage.clear()
    if last.hasKilled { became = "got its neighbour killed" + (became == "survived" ? "" : ", then " + became) }
    if became != "survived" { deaths += 1 }
    add(kind.title, became, last)
  }

  mutating func runCache() throws -> StressOutcome {
    stage.clear()
    var last = Progress()
    let cache = try stage.startCache(load)
    try loadIt(cache, mayKill: false, &last)
    add("PurgeableCache", "survived", last)
    outcome.wrongBytes = last.whole["wrongBytes"]
    outcome.survivors = "the cache and its neighbour not killed"
    outcome.highlights = [
      "\(deaths) of \(RivalKind.allCases.count) rivals ended in a kill", "hits \(last.whole.hitShare)",
      "p99.9 \(LoadRow.time(last.whole, "p99.9"))",
    ]
    outcome.facts.append(("participants", .array(facts)))
    return outcome
  }

  /// How far one of them got.
  private struct Progress {
    var storedBytes: UInt64 = 0
    /// Of the whole run, or of its last interval where it did not get to the end.
    var whole = Tally()
    /// Whether the neighbour was killed.
    var hasKilled = false
  }

  private func loadIt(_ child: StressChild, mayKill: Bool, _ last: inout Progress) throws {
    let neighbour = try stage.startMemory()
    try stage.order(neighbour, .cycle, ["bytes": stage.share(50), "hold": 300, "rest": 300])
    // A local: the closures may not use what is `inout`.
    var progress = Progress()
    defer { last = progress }
    func ask(_ order: StressOrder, _ numbers: Tally, onRow: (Tally) -> Void) throws -> Tally {
      try stage.order(child, order, numbers)
      while true {
        do {
          return try stage.result(of: child, onRow: onRow)
        } catch StressFailure.died(neighbour.name, .killed(SIGKILL)) where mayKill {
          // The other process goes on without the neighbour.
          progress.hasKilled = true
        }
      }
    }
    _ = try ask(.fill, [:]) { row in
      progress.storedBytes = row["bytes"]
      stage.show("\(child.name) stores, \(ByteSize(row["bytes"])) of \(ByteSize(stage.limitBytes * 4))")
    }
    let milliseconds = stage.length(20, short: 1) / 1_000_000
    progress.whole = try ask(.run, ["milliseconds": milliseconds, "interval": 500, "refills": 1]) { row in
      progress.whole = row
      stage.show("\(child.name) reads, hits \(row.hitShare)")
    }
    if !progress.hasKilled { _ = try stage.stop(neighbour) }
  }

  private mutating func add(_ name: String, _ became: String, _ last: Progress) {
    outcome.rows.append(
      [name, became, "\(ByteSize(last.storedBytes))", Figures.count(last.whole["reads"]), last.whole.hitShare]
        + ["p50", "p99", "p99.9"].map { LoadRow.time(last.whole, $0) })
    facts.append(
      .object(
        [("name", .string(name)), ("became", .string(became)), ("storedBytes", .unsigned(last.storedBytes))]
          + LoadRow.facts(last.whole)))
  }
}
