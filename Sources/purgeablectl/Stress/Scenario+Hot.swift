// SPDX-License-Identifier: MIT
// hot: the share of a popular set that is still answered after half of the cache was taken.

import Purgeable
import ToolSupport

extension Scenario {
  static let hot = Scenario(
    name: "hot",
    shows: "reads still answered after half of the cache was taken, against an ideal LRU of the remaining size (Zipf 0.99)"
  ) { stage in
    var outcome = StressOutcome()
    outcome.rows = [
      ["entries", "who chose", "remaining size", "entries left", "taken", "evicted", "answered", "ideal LRU", "share of ideal"]
    ]
    var variants: [JSON] = []
    for size in [4096, 100] {
      for isAlone in [true, false] {
        let trial = try HotTrial.run(stage, size: size, isAlone: isAlone)
        outcome.wrongBytes += trial.wrongBytes
        outcome.rows.append(trial.cells)
        outcome.highlights.append("\(size)-byte entries, \(trial.who): \(Rate.twoDecimals(trial.share))")
        variants.append(trial.json)
      }
    }
    outcome.facts = [("variants", .array(variants))]
    return outcome
  }
}

private struct HotTrial {
  var size: Int
  var isAlone: Bool
  var keyCount: UInt64
  /// The share of the cache's pages that was left.
  var remaining: Double
  var entriesLeft: UInt64
  /// By the kernel, and by the library.
  var discarded: UInt64
  var evicted: UInt64
  /// The longest time that the neighbour waited for a reaction.
  var longestWait: UInt64
  var reads: UInt64
  var answered: UInt64
  var ideal: UInt64
  var wrongBytes: UInt64

  /// 0 where nothing was left to compare with.
  var share: Double { ideal == 0 ? 0 : Double(answered) / Double(ideal) }
  var who: String { isAlone ? "kernel alone" : "with reaction" }

  var cells: [String] {
    [
      "\(size) bytes", who, Figures.oneDecimal(remaining * 100) + " %", Figures.share(entriesLeft, of: keyCount),
      Figures.share(discarded, of: keyCount), Figures.share(evicted, of: keyCount), Figures.share(answered, of: reads),
      Figures.share(ideal, of: reads), Rate.twoDecimals(share),
    ]
  }

  var json: JSON {
    [
      "entryBytes": .unsigned(UInt64(size)), "kernelAlone": .bool(isAlone), "keys": .unsigned(keyCount),
      "remainingShare": .number(remaining), "entriesLeft": .unsigned(entriesLeft),
      "discardedEntries": .unsigned(discarded), "evictedEntries": .unsigned(evicted),
      "longestWaitMilliseconds": .number(Double(longestWait) / 1e6), "reads": .unsigned(reads),
      "answered": .unsigned(answered), "idealAnswered": .unsigned(ideal), "shareOfIdeal": .number(share),
    ]
  }

  static func run(_ stage: StressStage, size: Int, isAlone: Bool) throws -> HotTrial {
    stage.clear()
    // In short form the smallest entries are fewer, and the neighbour has the rest of the memory from the beginning.
    let setShare: UInt64 = stage.options.isShort && size < 1000 ? 20 : 70
    let load = StressContent(seed: stage.seed, totalBytes: stage.share(setShare), sizes: size...size)
    let cache = try stage.startCache(load)
    let neighbour = try stage.startMemory()
    if setShare < 70 { _ = try stage.ask(neighbour, .take, ["bytes": stage.share(70 - setShare)]) }
    if isAlone { _ = try stage.ask(cache, .leaveItToTheKernel) }
    stage.show("\(size)-byte entries, filling")
    let base = ProcessFacts.anonymousBytes(cache.id)
    _ = try stage.ask(cache, .fill)
    // Read while it is on offer, as caches are; and while the neighbour takes, for nobody stops reading for that.
    let full = try stage.ask(cache, .settle)
    /// What the entries hold. The index shrinks with them.
    func held(_ facts: Tally) -> UInt64 {
      let (bytes, other) = (ProcessFacts.anonymousBytes(cache.id), base + facts["ordinaryBytes"])
      return bytes - min(bytes, other)
    }
    stage.show("\(size)-byte entries, reading")
    try stage.order(cache, .run, ["interval": 100])
    let wanted = stage.options.isShort ? load.keyCount / 2 : load.keyCount * 2
    var warmReads: UInt64 = 0
    while warmReads < wanted { warmReads += try stage.nextRow(of: cache)["reads"] }
    let before = held(full)
    stage.show("\(size)-byte entries, taking half of them")
    // Step by step, and after each step the reaction has its turn: otherwise the neighbour would take what is left of the limit
    // before a late reaction begins, which then has to give back everything.
    let step = stage.limitBytes / (stage.options.isShort ? 40 : 128)
    var taken = stage.share(70 - setShare)
    var longestWait: UInt64 = 0
    while held(full) > before / 2, taken < stage.share(85) {
      _ = try stage.ask(neighbour, .take, ["bytes": step])
      taken += step
      try stage.pause(20)
      if !isAlone { longestWait = max(longestWait, try stage.waitForRoom(by: cache)) }
    }
    let warm = try stage.stop(cache)
    // A reaction goes on for a while after there is room.
    let remaining = Double(held(try stage.ask(cache, .settle))) / Double(max(1, before))
    let answered = try stage.ask(
      cache, .run, ["reads": min(load.keyCount, stage.options.isShort ? 100_000 : 1_000_000), "salt": 1])
    let left = try stage.ask(cache, .check, ["keys": load.keyCount])
    // The kernel's choice is known only now, when everything has been looked at.
    let end = try stage.ask(cache, .settle)
    let ideal = try IdealLRU.answered(
      load: load, warmReads: warm["reads"], size: UInt64(Double(load.keyCount) * remaining), reads: answered["reads"])
    return HotTrial(
      size: size, isAlone: isAlone, keyCount: load.keyCount, remaining: remaining, entriesLeft: left["hits"],
      discarded: end["discardedEntries"], evicted: end["evictedEntries"], longestWait: longestWait,
      reads: answered["reads"], answered: answered["hits"], ideal: ideal,
      wrongBytes: warm["wrongBytes"] + answered["wrongBytes"] + left["wrongBytes"])
  }
}

/// The hits of an ideal cache that has kept exactly the most recently used entries.
enum IdealLRU {
  /// After the keys were stored and read so many times, in the orders that the load gives; of `reads` more.
  static func answered(load: StressContent, warmReads: UInt64, size: UInt64, reads: UInt64) throws(ToolFailure) -> UInt64 {
    // When each key was used last. Every use has a moment of its own, so the newest are found by going back in time.
    var owners = load.birthOrder.map { UInt32(truncatingIfNeeded: $0) }
    var lastUse = [UInt32](repeating: 0, count: owners.count)
    for (moment, owner) in owners.enumerated() { lastUse[Int(owner)] = UInt32(truncatingIfNeeded: moment) }
    owners.reserveCapacity(owners.count + Int(warmReads))
    var warm = ZipfNumbers(count: load.keyCount, seed: load.seed)
    for at in 0..<warmReads {
      if at % 100_000 == 0 { try Children.checkInterruption() }
      let number = warm.next() ?? 0
      lastUse[Int(number)] = UInt32(truncatingIfNeeded: owners.count)
      owners.append(UInt32(truncatingIfNeeded: number))
    }
    var oldestKept = owners.count
    var kept: UInt64 = 0
    while kept < min(size, load.keyCount), oldestKept > 0 {
      oldestKept -= 1
      if Int(lastUse[Int(owners[oldestKept])]) == oldestKept { kept += 1 }
    }
    var numbers = ZipfNumbers(count: load.keyCount, seed: load.seed &+ 1 << 32)
    var answered: UInt64 = 0
    for _ in 0..<reads where Int(lastUse[Int(numbers.next() ?? 0)]) >= oldestKept { answered += 1 }
    return answered
  }
}
