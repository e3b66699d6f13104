// SPDX-License-Identifier: MIT
// neighbour: how fast a sudden neighbour gets its memory, for each kind of process that holds the rest.

import Purgeable
import ToolSupport

extension Scenario {
  static let neighbour = Scenario(
    name: "neighbour",
    shows: "a sudden neighbour's time to half of the limit, with the rest held by the cache, by files, by nobody"
  ) { stage in
    var race = NeighbourRace(stage: stage, file: try TemporaryFile(byteCount: stage.limitBytes))
    let rounds = stage.options.seconds.map { max(1, $0 / 20) } ?? (stage.options.isShort ? 1 : 5)
    for round in 0..<rounds {
      for holder in MemoryHolder.allCases {
        stage.show("round \(round + 1) of \(rounds), \(holder.title)")
        try race.run(holder)
      }
    }
    return race.outcome
  }
}

/// The holder of the memory that the neighbour wants.
private enum MemoryHolder: String, CaseIterable {
  case nobody, files, bare, byHand, cacheAlone, cacheReacting, readAlone, readReacting

  var title: String {
    switch self {
    case .nobody: "free memory"
    case .files: "clean page cache"
    case .bare: "bare MADV_FREE pages"
    case .byHand: "MADV_DONTNEED by hand first"
    case .cacheAlone: "the cache, kernel alone"
    case .cacheReacting: "the cache, with its reaction"
    case .readAlone: "the cache being read, kernel alone"
    case .readReacting: "the cache being read, with its reaction"
    }
  }
}

/// All of them in turn, round after round; ratios are taken within a round.
private struct NeighbourRace {
  let stage: StressStage
  let file: TemporaryFile
  private var rates: [MemoryHolder: [Double]] = [:]
  private var slowdowns: [MemoryHolder: [Double]] = [:]
  private var wrongBytes: UInt64 = 0
  private var wanted: UInt64 { stage.limitBytes / 2 }

  init(stage: StressStage, file: TemporaryFile) {
    self.stage = stage
    self.file = file
  }

  mutating func run(_ holder: MemoryHolder) throws {
    stage.clear()
    let neighbour = try stage.startMemory()
    var taken: Tally
    switch holder {
    case .nobody: taken = try take(neighbour)
    case .files:
      file.forget()
      let reader = try stage.startMemory("the reader", file: file.path)
      _ = try stage.ask(reader, .readFile)
      taken = try take(neighbour)
    case .bare, .byHand:
      let other = try stage.startMemory("the holder")
      _ = try stage.ask(other, .offer, ["bytes": stage.share(94)])
      let freed = holder == .byHand ? try stage.ask(other, .giveUp, ["bytes": wanted]) : [:]
      taken = try take(neighbour)
      taken["nanoseconds"] += freed["nanoseconds"]
    case .cacheAlone, .cacheReacting, .readAlone, .readReacting: taken = try runCache(holder, neighbour)
    }
    rates[holder, default: []].append(Rate.gigabytesPerSecond(taken))
  }

  private func take(_ neighbour: StressChild) throws -> Tally { try stage.ask(neighbour, .take, ["bytes": wanted]) }

  private mutating func runCache(_ holder: MemoryHolder, _ neighbour: StressChild) throws -> Tally {
    let load = StressContent(seed: stage.seed, totalBytes: stage.limitBytes, sizes: stage.smallSizes)
    let cache = try stage.startCache(load)
    if holder == .cacheAlone || holder == .readAlone { _ = try stage.ask(cache, .leaveItToTheKernel) }
    _ = try stage.ask(cache, .fill)
    _ = try stage.ask(cache, .settle)
    guard holder == .readAlone || holder == .readReacting else { return try take(neighbour) }
    try stage.order(cache, .run)
    try stage.pause(500)
    try stage.tell(cache, .mark)
    let before = try stage.nextRow(of: cache)
    let taken = try take(neighbour)
    try stage.tell(cache, .mark)
    let during = try stage.nextRow(of: cache)
    let whole = try stage.stop(cache)
    wrongBytes += whole["wrongBytes"]
    slowdowns[holder, default: []].append(Double(during["p99.9"]) / Double(max(1, before["p99.9"])))
    return taken
  }

  // MARK: The report

  private func ratios(_ one: MemoryHolder, _ other: MemoryHolder) -> [Double] {
    zip(rates[one] ?? [], rates[other] ?? []).map { $0 / $1 }
  }

  var outcome: StressOutcome {
    var outcome = StressOutcome(wrongBytes: wrongBytes)
    outcome.rows = [["GB/s", "median", "least", "most"]]
    func add(_ title: String, _ name: String, _ values: [Double]) {
      let series = Spread(values)
      outcome.rows.append([title] + series.cells)
      outcome.facts.append((name, series.json))
    }
    for holder in MemoryHolder.allCases { add(holder.title, holder.rawValue, rates[holder] ?? []) }
    let alone = ratios(.cacheAlone, .bare)
    let reacting = ratios(.cacheReacting, .files)
    outcome.rows.append(["ratio within a round", "median", "least", "most"])
    add("kernel alone to bare MADV_FREE pages", "aloneToBare", alone)
    add("with its reaction to clean page cache", "reactingToFiles", reacting)
    add("hit p99.9 to before, kernel alone", "slowdownAlone", slowdowns[.readAlone] ?? [])
    add("hit p99.9 to before, with its reaction", "slowdownReacting", slowdowns[.readReacting] ?? [])
    outcome.highlights = [
      "kernel alone \(Rate.twoDecimals(Spread(alone).median)) of bare MADV_FREE",
      "with its reaction \(Rate.twoDecimals(Spread(reacting).median)) of clean page cache",
      "hit p99.9 \(Figures.oneDecimal(Spread(slowdowns[.readReacting] ?? []).median)) times",
    ]
    return outcome
  }
}

extension Spread {
  var cells: [String] { count == 0 ? ["-", "-", "-"] : [median, least, most].map(Rate.twoDecimals) }

  var json: JSON {
    ["median": .number(median), "least": .number(least), "most": .number(most), "rounds": .unsigned(UInt64(count))]
  }
}
