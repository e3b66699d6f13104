// SPDX-License-Identifier: MIT
// overcommit: far more is stored than there is memory, beside a neighbour that takes most of it again and again.

import Purgeable
import ToolSupport

extension Scenario {
  static let overcommit = Scenario(
    name: "overcommit",
    shows: "a cache offered 4 times the limit in small entries beside a neighbour that takes up to 80 % of it: nobody is killed"
  ) { stage in
    let load = StressContent(seed: stage.seed, totalBytes: stage.limitBytes * 4, sizes: stage.smallSizes)
    let cache = try stage.startCache(load)
    let neighbour = try stage.startMemory()
    let length = stage.length(120, short: 3)
    let start = Clock.now
    try stage.order(neighbour, .cycle, ["bytes": stage.share(80), "hold": 300, "rest": 300])
    let filled = try stage.ask(cache, .fill) { row in
      stage.show("filling, \(ByteSize(row["bytes"])) of \(ByteSize(stage.limitBytes * 4))", share: nil)
    }
    var outcome = StressOutcome()
    outcome.rows = [LoadRow.titles]
    var lines: [JSON] = []
    let began = Clock.now
    let whole = try stage.ask(
      cache, .run, ["threads": 2, "milliseconds": length / 1_000_000, "interval": max(500, length / 12_000_000), "refills": 1]
    ) { row in
      let seconds = Double(Clock.now - began) / 1e9
      outcome.rows.append(LoadRow.cells(row, after: seconds))
      lines.append(LoadRow.json(row, after: seconds))
      stage.show("\(Figures.count(row["reads"])) reads, hits \(row.hitShare), \(row["wrongBytes"]) wrong bytes", share: nil)
    }
    let waves = try stage.stop(neighbour)
    let statistics = try stage.ask(cache, .settle)
    outcome.wrongBytes = whole["wrongBytes"]
    outcome.highlights = ["hits \(whole.hitShare)", "p99.9 \(Figures.time(whole["p99.9"]))"]
    outcome.facts = [
      ("seconds", .number(Double(Clock.now - start) / 1e9)), ("storedEntries", .unsigned(filled["stored"])),
      ("storedBytes", .unsigned(filled["bytes"])), ("refusedStores", .unsigned(filled["refused"] + whole["refusals"])),
      ("waves", .unsigned(waves["waves"])), ("neighbourBytes", .unsigned(waves["peakBytes"])),
      ("ordinaryBytes", .unsigned(statistics["ordinaryBytes"])), ("discardedEntries", .unsigned(statistics["discardedEntries"])),
      ("evictedEntries", .unsigned(statistics["evictedEntries"])),
    ]
    outcome.facts += LoadRow.facts(whole)
    outcome.facts.append(("intervals", .array(lines)))
    if filled["refused"] + whole["refusals"] > 0 {
      outcome.highlights.append("\(filled["refused"] + whole["refusals"]) stores refused")
    }
    return outcome
  }
}
