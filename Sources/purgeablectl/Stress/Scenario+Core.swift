// SPDX-License-Identifier: MIT
// core: files are read once beside a full cache, whose entries the kernel takes for their pages, unless a core is kept off offer;
// then a neighbour takes most of the memory, core or not.

import Purgeable
import ToolSupport

extension Scenario {
  static let core = Scenario(
    name: "core",
    shows: "files are read once beside a cache of half the limit, without a core, with half of it, and with all of it off offer"
  ) { stage in
    stage.show("writing a file of \(ByteSize(stage.limitBytes * 4))")
    let file = try TemporaryFile(byteCount: stage.limitBytes * 4)
    var outcome = StressOutcome()
    outcome.rows = [
      ["", "entries", "off offer", "at the end", "lost to the kernel", "files read", "hits beside them", "then taken"]
    ]
    for core in [0, 50, 100] as [UInt64] {
      let name = core == 0 ? "without" : "a core of \(core) %"
      file.forget()
      let load = StressContent(seed: stage.seed, totalBytes: stage.share(45), sizes: stage.smallSizes)
      let cache = try stage.startCache(load, ["--share=50", "--core=\(core)"])
      let reader = try stage.startMemory("the reader", file: file.path)
      stage.show("\(name): filling")
      _ = try stage.ask(cache, .fill)
      _ = try stage.ask(cache, .run, ["refills": 1, "milliseconds": stage.length(2, short: 1) / 1_000_000])
      let before = try stage.ask(cache, .settle)
      try stage.order(cache, .run, ["refills": 1])
      try stage.order(reader, .readFile, ["repeats": 1])
      stage.show("\(name): reading beside the files")
      try stage.pause(stage.length(5, short: 5) / 1_000_000)
      let files = try stage.stop(reader)
      let reads = try stage.stop(cache)
      let after = try stage.ask(cache, .settle)
      stage.finish(reader)
      let lost = after["discardedEntries"] - min(after["discardedEntries"], before["discardedEntries"])
      stage.show("\(name): a neighbour")
      let neighbour = try stage.startMemory()
      let taken = try stage.ask(neighbour, .take, ["bytes": stage.share(75)])
      let checked = try stage.ask(cache, .check, ["keys": load.keyCount])
      outcome.wrongBytes += reads["wrongBytes"] + checked["wrongBytes"]
      outcome.rows.append([
        name, Figures.count(before["entries"]), "\(ByteSize(before["coreBytes"]))", "\(ByteSize(after["coreBytes"]))",
        Figures.count(lost), "\(ByteSize(files["bytes"]))", reads.hitShare, Rate.text(taken),
      ])
      outcome.highlights.append("\(name) \(Figures.count(lost)) entries lost")
      let label = "core\(core)"
      outcome.facts += [
        ("\(label)Entries", .unsigned(before["entries"])), ("\(label)Lost", .unsigned(lost)),
        ("\(label)FileBytes", .unsigned(files["bytes"])), ("\(label)Reads", .unsigned(reads["reads"])),
        ("\(label)Hits", .unsigned(reads["hits"])), ("\(label)NeighbourNanoseconds", .unsigned(taken["nanoseconds"])),
      ]
      stage.finish(neighbour)
      stage.finish(cache)
    }
    return outcome
  }
}
