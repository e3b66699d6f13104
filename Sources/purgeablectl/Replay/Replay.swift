// SPDX-License-Identifier: MIT
// Replaying a trace: through a cache of this process, or, for pressure alone to limit it, through one in a memory group.
//
//   this process --requests--> replay-cache   in the group: the cache
//        ^                          |
//        +--counts, for each batch--+         the trace and the table of its objects stay outside

import Glibc
import Purgeable
import ToolSupport

/// The distinct objects of the requests so far.
struct Footprint: Equatable, Sendable {
  private var seen: Set<UInt64> = []
  /// Each object as large as at its first request.
  private(set) var bytes: UInt64 = 0
  var objects: UInt64 { UInt64(seen.count) }

  mutating func note(_ requests: [TraceRequest]) {
    for request in requests where seen.insert(request.key).inserted { bytes += request.size }
  }
}

struct Replay {
  let options: ReplayOptions
  private var progress = Progress()
  private var recorder: RunRecorder?

  init(_ options: ReplayOptions) {
    self.options = options
  }

  /// Replays the trace and prints the report. Leaves no child and no group behind, however it ends.
  mutating func run() throws -> Int32 {
    defer { progress.end() }
    do {
      // Before the record is made.
      try TraceFile.status(options.trace)
      recorder = try options.recordPath.map { path throws(ToolFailure) in try RunRecorder(path) }
      if recorder?.isSame(as: options.trace) == true {
        throw UsageError("--record: \"\(options.trace)\" is the trace; name another file")
      }
      let report = try makeReport()
      progress.end()
      try recorder?.end(report.json)
      print(options.isJSON ? report.json.text : report.table)
      return report.exitStatus
    } catch {
      progress.end()
      return try Children.exitStatus(of: "replay", after: error)
    }
  }

  private mutating func makeReport() throws -> ReplayReport {
    switch options.bound {
    case .capacity(let capacity): try replay(capacity)
    case .group(let limitBytes): try replayInGroup(limitBytes)
    }
  }

  private func openTrace() throws -> TraceFile {
    try TraceFile(options.trace, format: options.format, cost: options.cost, readsTimes: options.expirySeconds != nil)
  }

  private mutating func replay(_ capacity: ReplayCapacity) throws -> ReplayReport {
    var footprint = Footprint()
    let isShare = if case .percent = capacity { true } else { false }
    if isShare {
      let trace = try TraceFile(options.trace, format: options.format)
      guard trace.fileBytes != nil else {
        throw UsageError("--capacity: \"\(trace.path)\" cannot be read twice, as a share needs; write a number or bytes")
      }
      try trace.forEachBatch(&progress, "measuring the footprint") { requests in
        footprint.note(requests)
        return "\(Figures.count(footprint.objects)) objects"
      }
    }
    let trace = try openTrace()
    let limit = try capacity.limit(of: trace, footprint)
    var cache = try ReplayCache(
      limit, order: options.order, expiry: options.expiry(of: trace), tellsCosts: options.tellsCosts)
    cache.countsBytes = recorder != nil
    begin(trace, limit)
    try trace.forEachBatch(&progress, "replaying") { [recorder] requests in
      if !isShare { footprint.note(requests) }
      cache.run(requests)
      if let recorder, recorder.isDue { try Self.note(cache.counts, nil, recorder) }
      return cache.counts.progress
    }
    cache.finish()
    if let recorder { try Self.note(cache.counts, nil, recorder) }
    return ReplayReport(options: options, trace: trace, footprint: footprint, limit: limit, group: nil, counts: cache.counts)
  }

  // MARK: The record

  private func begin(_ trace: TraceFile, _ limit: ReplayLimit) {
    let groupBytes: UInt64? = if case .group(let bytes) = limit { bytes } else { nil }
    recorder?.begin(
      RunHeader(
        run: "replay", format: RunHeader.format, about: "\(trace.path), \(limit.inWords), order \(options.order.name)",
        limitBytes: groupBytes), first: RunSample(seconds: 0, hits: 0, misses: 0, wrongBytes: 0))
  }

  private static func note(_ counts: ReplayCounts, _ group: GroupFiles?, _ recorder: RunRecorder) throws(ToolFailure) {
    try recorder.note { sample in
      (sample.residentBytes, sample.heldBytes) = (counts.residentBytes, counts.heldBytes)
      (sample.offeredBytes, sample.groupBytes) = (counts.offeredBytes, group?.usageBytes)
      (sample.hits, sample.misses, sample.wrongBytes) = (counts.hits, counts.misses, counts.wrongBytes)
    }
  }

  // MARK: In a memory group

  private mutating func replayInGroup(_ limitBytes: UInt64) throws -> ReplayReport {
    let trace = try openTrace()
    try Children.watchSignals()
    let group: PressureGroup
    do throws(PressureGroup.Refusal) {
      group = try PressureGroup(inside: MemoryGroup.current(), for: "replay")
    } catch {
      throw ToolFailure("no memory group: \(error.reason); give --capacity, or run where a group may be made")
    }
    defer {
      Children.endAll()
      if !group.remove() { complain("\(Tool.name) replay: could not remove \(group.files.directory)") }
    }
    let error = group.files.setLimit(limitBytes)
    guard error == 0 else { throw ToolFailure("a limit could not be set: \(SystemError.text(error))") }
    var words = [ReplayOptions.child, "--memory-limit=\(limitBytes)", "--order=\(options.order.name)"]
    if options.isKernelAlone { words.append("--kernel-alone") }
    if options.tellsCosts { words.append("--costs") }
    if let expiry = options.expiry(of: trace) {
      words.append("--expiry=\(expiry.seconds)")
      if expiry.isByTrace { words.append("--trace-times") }
    }
    if recorder != nil { words.append("--bytes") }
    let child = try Children.start(words + GroupProcess.words(group.files))
    begin(trace, .group(limitBytes))
    var footprint = Footprint()
    do {
      var counts = ReplayCounts()
      try trace.forEachBatch(&progress, "replaying") { [recorder] requests in
        footprint.note(requests)
        try child.writer.write(.requests, 0, Frame.bytes(ofElements: requests))
        counts = try Self.counts(from: child)
        if let recorder, recorder.isDue { try Self.note(counts, group.files, recorder) }
        return counts.progress
      }
      child.closeInput()
      counts = try Self.counts(from: child)
      if let recorder { try Self.note(counts, group.files, recorder) }
      return ReplayReport(
        options: options, trace: trace, footprint: footprint, limit: .group(limitBytes), group: group.files.version,
        counts: counts)
    } catch is WireFailure {
      // The way it ended tells more.
      child.closeInput()
      throw GroupProcess.failure(of: "the process with the cache", child.wait(), in: group.files)
    }
  }

  private static func counts(from child: Child) throws(WireFailure) -> ReplayCounts {
    guard let counts = try child.reader.next()?.elements(of: ReplayCounts.self).first else { throw WireFailure() }
    return counts
  }
}

extension ReplayCounts {
  fileprivate var progress: String {
    "\(Figures.count(requests)) requests, misses \(Figures.share(misses, of: requests)), \(wrongBytes) wrong bytes"
  }
}

/// What a replay came to, as a table and as JSON.
struct ReplayReport {
  let options: ReplayOptions
  let format: TraceFormat
  let hasSizes: Bool
  let hasTimes: Bool
  let footprint: Footprint
  let limit: ReplayLimit
  /// Of the memory group.
  let group: MemoryGroup.Version?
  let counts: ReplayCounts

  init(
    options: ReplayOptions, trace: TraceFile, footprint: Footprint, limit: ReplayLimit, group: MemoryGroup.Version?,
    counts: ReplayCounts
  ) {
    (self.options, self.footprint, self.limit, self.group, self.counts) = (options, footprint, limit, group, counts)
    (format, hasSizes, hasTimes) = (trace.format, trace.hasSizes, trace.hasTimes)
  }

  var exitStatus: Int32 { counts.wrongBytes == 0 ? 0 : 1 }

  private var nanosecondsPerRequest: Double { Double(counts.nanoseconds) / Double(max(1, counts.requests)) }

  // MARK: The table

  var table: String {
    var rows: [(String, String, String)] = [
      ("requests", Figures.count(counts.requests), hasSizes ? "of \(ByteSize(counts.bytes))" : TraceFile.withoutSizes),
      ("hits", Figures.count(counts.hits), "ratio \(Self.ratio(1 - counts.missRatio))"),
      (
        "misses", Figures.count(counts.misses),
        "ratio \(Self.ratio(counts.missRatio)), by bytes \(Self.ratio(counts.byteMissRatio))"
      ),
      ("time", "\(Figures.oneDecimal(nanosecondsPerRequest)) ns", "a request, without reading the trace"),
      ("left", Figures.count(counts.entries), "entries"),
      ("evicted", Figures.count(counts.evictions), "by the cache"),
    ]
    if options.cost != nil {
      let unheeded = options.order == .s3FIFO ? "" : ", which this order does not heed"
      let credit = options.tellsCosts ? unheeded : ", which the cache was not told"
      rows.append(
        ("cost of misses", Figures.oneDecimal(counts.missCost), "ratio \(Self.ratio(counts.costMissRatio))" + credit))
    }
    if let seconds = options.expirySeconds {
      let times = hasTimes ? "the trace's times" : "the machine's clock"
      rows.append(("expired", Figures.count(counts.expiries), "after \(Figures.count(seconds)) s by \(times)"))
    }
    rows.append(
      ("lost", Figures.count(counts.losses), "to the kernel"))
    if counts.tooLarge > 0 { rows.append(("too large", Figures.count(counts.tooLarge), "misses that were not stored")) }
    if counts.refused > 0 { rows.append(("refused", Figures.count(counts.refused), "misses that there was no memory for")) }
    rows.append(("wrong bytes", Figures.count(counts.wrongBytes), "each hit checked, byte for byte"))
    let widths = (rows.map(\.0.count).max() ?? 0, rows.map(\.1.count).max() ?? 0)
    let lines = rows.map { row in
      row.0.padded(to: widths.0 + 2) + row.1.indented(to: widths.1) + (row.2.isEmpty ? "" : "  " + row.2)
    }
    let objects = Figures.count(footprint.objects) + " objects" + (hasSizes ? " of \(ByteSize(footprint.bytes))" : "")
    return """
      \(options.trace): \(format.rawValue), \(objects)
      \(limitInWords), order \(options.order.name)

      \(lines.joined(separator: "\n"))

      \(counts.wrongBytes == 0 ? "No wrong byte." : "WRONG BYTES: this should be reported as a bug.")
      """
  }

  private var limitInWords: String {
    (group.map { "cgroup v\($0.rawValue), " } ?? "") + limit.inWords + (options.isKernelAlone ? ", the kernel alone" : "")
  }

  /// With four digits after the point.
  private static func ratio(_ value: Double) -> String {
    let digits = String(Int((value * 10_000).rounded()))
    let padded = String(repeating: "0", count: max(0, 5 - digits.count)) + digits
    return padded.dropLast(4) + "." + padded.suffix(4)
  }

  // MARK: JSON

  var json: JSON {
    let (capacity, unit, memoryLimit): (JSON, JSON, JSON) =
      switch limit {
      case .objects(let count): (.unsigned(count), "objects", .null)
      case .payloadBytes(let bytes): (.unsigned(bytes), "payloadBytes", .null)
      case .heldBytes(let bytes): (.unsigned(bytes), "heldBytes", .null)
      case .group(let bytes): (.null, .null, .unsigned(bytes))
      }
    return [
      "trace": .string(options.trace), "format": .string(format.rawValue), "hasSizes": .bool(hasSizes),
      "order": .string(options.order.name), "capacity": capacity, "capacityUnit": unit,
      "memoryLimit": memoryLimit, "kernelAlone": .bool(options.isKernelAlone),
      "requests": .unsigned(counts.requests), "hits": .unsigned(counts.hits), "misses": .unsigned(counts.misses),
      "missRatio": .number(counts.missRatio), "byteMissRatio": .number(counts.byteMissRatio),
      "cost": options.cost.map { _ in .number(counts.cost) } ?? .null,
      "missCost": options.cost.map { _ in .number(counts.missCost) } ?? .null,
      "costMissRatio": options.cost.map { _ in .number(counts.costMissRatio) } ?? .null,
      "withoutCredit": .bool(options.isWithoutCredit),
      "objects": .unsigned(footprint.objects), "footprint": .unsigned(hasSizes ? footprint.bytes : footprint.objects),
      "entries": .unsigned(counts.entries), "evictions": .unsigned(counts.evictions), "losses": .unsigned(counts.losses),
      "expiry": options.expirySeconds.map { .unsigned($0) } ?? .null, "expiries": .unsigned(counts.expiries),
      "tooLarge": .unsigned(counts.tooLarge), "refused": .unsigned(counts.refused),
      "nanosecondsPerRequest": .number(nanosecondsPerRequest), "wrongBytes": .unsigned(counts.wrongBytes),
    ]
  }
}
