// SPDX-License-Identifier: MIT
// stopped: the process with the cache is stopped, and a neighbour takes its memory all the same.

import Glibc
import Purgeable
import ToolSupport

extension Scenario {
  static let stopped = Scenario(
    name: "stopped",
    shows: "the process is stopped (SIGSTOP) while a neighbour takes the memory, and reads everything when it continues"
  ) { stage in
    let load = StressContent(seed: stage.seed, totalBytes: stage.share(75), sizes: stage.smallSizes)
    let cache = try stage.startCache(load)
    let neighbour = try stage.startMemory()
    stage.show("filling")
    _ = try stage.ask(cache, .fill)
    _ = try stage.ask(cache, .settle)
    stage.show("stopped")
    kill(cache.id, SIGSTOP)
    cache.isStopped = true
    // The kernel stops one thread after the other.
    for _ in 0..<100 where ProcessFacts.run(cache.id)?.state != "T" { usleep(10_000) }
    let before = ProcessFacts.run(cache.id)
    let sizeBefore = ProcessFacts.anonymousBytes(cache.id)
    let taken = try stage.ask(neighbour, .take, ["bytes": stage.share(60)])
    try stage.pause(stage.length(10, short: 0.5) / 1_000_000)
    let sizeAfter = ProcessFacts.anonymousBytes(cache.id)
    let after = ProcessFacts.run(cache.id)
    kill(cache.id, SIGCONT)
    cache.isStopped = false
    stage.show("reading everything")
    let reads = try stage.ask(cache, .check, ["keys": load.keyCount])
    var outcome = StressOutcome(wrongBytes: reads["wrongBytes"])
    outcome.rows = [
      ["", "before", "after"],
      ["resident", "\(ByteSize(sizeBefore))", "\(ByteSize(sizeAfter))"],
      ["processor time, ticks", "\(before?.ticks ?? 0)", "\(after?.ticks ?? 0)"],
      ["state", before?.state ?? "-", after?.state ?? "-"],
      ["keys that hit", Figures.count(load.keyCount), Figures.count(reads["hits"])],
    ]
    if let before, let after {
      if before.state != "T" || after.state != "T" { outcome.failures.append("the process was not stopped") }
      if before.ticks != after.ticks { outcome.failures.append("the process ran while it was stopped") }
    }
    if sizeAfter >= sizeBefore { outcome.failures.append("its resident memory did not fall") }
    outcome.highlights = [
      "resident \(ByteSize(sizeBefore)) to \(ByteSize(sizeAfter))", "then hits \(reads.hitShare)",
      "neighbour \(Rate.text(taken))",
    ]
    outcome.facts = [
      ("residentBytesBefore", .unsigned(sizeBefore)), ("residentBytesAfter", .unsigned(sizeAfter)),
      ("neighbourBytes", .unsigned(taken["bytes"])), ("neighbourNanoseconds", .unsigned(taken["nanoseconds"])),
      ("reads", .unsigned(reads["reads"])), ("hits", .unsigned(reads["hits"])),
    ]
    return outcome
  }
}

/// Bytes over time.
enum Rate {
  static func gigabytesPerSecond(_ tally: Tally) -> Double {
    tally["nanoseconds"] == 0 ? 0 : Double(tally["bytes"]) / Double(tally["nanoseconds"])
  }

  static func text(_ tally: Tally) -> String { twoDecimals(gigabytesPerSecond(tally)) + " GB/s" }

  static func twoDecimals(_ value: Double) -> String {
    guard value.isFinite, value >= 0, value < 1e12 else { return "-" }
    let hundredths = Int((value * 100).rounded())
    return "\(hundredths / 100)." + (hundredths % 100 < 10 ? "0" : "") + "\(hundredths % 100)"
  }
}
