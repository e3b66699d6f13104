// SPDX-License-Identifier: MIT
// locked: threads hold entries locked, up to a cap, while a neighbour wants the memory.

import Purgeable
import ToolSupport

extension Scenario {
  static let locked = Scenario(
    name: "locked", shows: "locks up to a cap under pressure: what is held is the same at the end of the hold as at its beginning"
  ) { stage in
    let sizes = 256...(128 << 10)
    let load = StressContent(seed: stage.seed, totalBytes: stage.share(150), sizes: sizes)
    let cap = stage.limitBytes / 8
    // Somewhat more than the cap allows, so that it is met.
    let count = cap / UInt64((sizes.lowerBound + sizes.upperBound) / 2) * 3 / 2
    // Each lock is a call within the one before: a thread's stack has room for so many.
    let threads = max(4, count / 1000)
    let depth = count / threads
    let cache = try stage.startCache(load)
    let neighbour = try stage.startMemory()
    stage.show("filling")
    _ = try stage.ask(cache, .fill)
    try stage.order(neighbour, .cycle, ["bytes": stage.share(60), "hold": 200, "rest": 200])
    stage.show("holding")
    let milliseconds = stage.length(60, short: 2) / 1_000_000
    let held = try stage.ask(cache, .hold, ["threads": threads, "bytes": cap, "depth": depth, "milliseconds": milliseconds])
    let waves = try stage.stop(neighbour)
    stage.show("reading everything")
    let reads = try stage.ask(cache, .check, ["keys": load.keyCount])
    var outcome = StressOutcome(wrongBytes: held["wrongBytes"] + reads["wrongBytes"])
    if held["peakBytes"] > cap { outcome.failures.append("\(held["peakBytes"]) bytes were locked, the cap is \(cap)") }
    outcome.rows = [
      ["", "locks"], ["held and checked twice", Figures.count(held["holds"] / 2)], ["missed", Figures.count(held["misses"])],
      ["refused by the cap", Figures.count(held["refused"])],
    ]
    outcome.highlights = [
      "\(Figures.count(held["holds"] / 2)) locks", "up to \(ByteSize(held["peakBytes"])) at a time, cap \(ByteSize(cap))",
    ]
    outcome.facts = [
      ("capBytes", .unsigned(cap)), ("peakLockedBytes", .unsigned(held["peakBytes"])), ("holds", .unsigned(held["holds"] / 2)),
      ("misses", .unsigned(held["misses"])), ("refused", .unsigned(held["refused"])), ("waves", .unsigned(waves["waves"])),
      ("reads", .unsigned(reads["reads"])), ("hits", .unsigned(reads["hits"])),
    ]
    return outcome
  }
}
