// SPDX-License-Identifier: MIT
// forks: the process with the cache forks all the time, under pressure and while a thread of it works with the cache.

import Purgeable

extension Scenario {
  static let forks = Scenario(
    name: "forks", shows: "a storm of forks under pressure: children find a miss or the right bytes, and so does their parent"
  ) { stage in
    let load = StressContent(seed: stage.seed, totalBytes: stage.limitBytes, sizes: stage.smallSizes)
    let cache = try stage.startCache(load)
    let neighbour = try stage.startMemory()
    stage.show("filling")
    _ = try stage.ask(cache, .fill)
    try stage.order(neighbour, .cycle, ["bytes": stage.share(60), "hold": 200, "rest": 200])
    stage.show("forking")
    let result = try stage.ask(cache, .fork, ["milliseconds": stage.length(30, short: 2) / 1_000_000])
    let waves = try stage.stop(neighbour)
    var outcome = StressOutcome(wrongBytes: result["wrongBytes"])
    outcome.rows = [
      ["", "processes"], ["forked", Figures.count(result["forks"])],
      ["found only misses", Figures.count(result["childrenOfMisses"])],
      ["found right bytes", Figures.count(result["childrenWithHits"])],
      ["could not be forked", Figures.count(result["refusedForks"])],
    ]
    if result["hungChildren"] > 0 { outcome.failures.append("\(result["hungChildren"]) forked processes hang") }
    if result["killedChildren"] > 0 {
      outcome.failures.append("\(result["killedChildren"]) forked processes did not end by themselves")
    }
    if result["forks"] == result["refusedForks"] { outcome.skipped = "no process could be forked" }
    outcome.highlights = ["\(Figures.count(result["forks"])) forks", "parent's hits \(result.hitShare)"]
    outcome.facts = [
      ("forks", .unsigned(result["forks"])), ("childrenOfMisses", .unsigned(result["childrenOfMisses"])),
      ("childrenWithHits", .unsigned(result["childrenWithHits"])), ("refusedForks", .unsigned(result["refusedForks"])),
      ("mostForkNanoseconds", .unsigned(result["mostNanoseconds"])), ("waves", .unsigned(waves["waves"])),
    ]
    outcome.facts += LoadRow.facts(result)
    return outcome
  }
}
