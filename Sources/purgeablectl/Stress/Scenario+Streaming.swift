// SPDX-License-Identifier: MIT
// streaming: files are read beside the cache, again and again, twice as much as there is memory.

import Purgeable
import ToolSupport

extension Scenario {
  static let streaming = Scenario(
    name: "streaming", shows: "file reads of twice the limit beside the cache, whose pages then compete with cached files"
  ) { stage in
    stage.show("writing a file of \(ByteSize(stage.limitBytes * 2))")
    let file = try TemporaryFile(byteCount: stage.limitBytes * 2)
    let load = StressContent(seed: stage.seed, totalBytes: stage.limitBytes, sizes: stage.smallSizes)
    let cache = try stage.startCache(load)
    let reader = try stage.startMemory("the reader", file: file.path)
    stage.show("filling")
    _ = try stage.ask(cache, .fill)
    let half = stage.length(30, short: 2) / 2_000_000
    try stage.order(cache, .run, ["refills": 1])
    stage.show("reading, no files yet")
    try stage.pause(half)
    try stage.tell(cache, .mark)
    let before = try stage.nextRow(of: cache)
    try stage.order(reader, .readFile, ["repeats": 1])
    stage.show("reading beside the files")
    try stage.pause(half)
    try stage.tell(cache, .mark)
    let during = try stage.nextRow(of: cache)
    // Once through at least, however slow the disk.
    let files = try stage.stop(reader)
    let whole = try stage.stop(cache)
    var outcome = StressOutcome(wrongBytes: whole["wrongBytes"])
    outcome.rows = [
      [""] + LoadRow.titles.dropFirst(), ["before"] + LoadRow.cells(before), ["beside the files"] + LoadRow.cells(during),
    ]
    outcome.highlights = [
      "hits \(before.hitShare), beside the files \(during.hitShare)",
      "\(ByteSize(files["bytes"])) of files read, \(Rate.text(files))",
    ]
    outcome.facts = [
      ("fileBytes", .unsigned(file.byteCount)), ("readBytes", .unsigned(files["bytes"])),
      ("readNanoseconds", .unsigned(files["nanoseconds"])), ("before", .object(LoadRow.facts(before))),
      ("during", .object(LoadRow.facts(during))),
    ]
    return outcome
  }
}
