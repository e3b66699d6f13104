// SPDX-License-Identifier: MIT
// `purgeablectl replay`, what it may be asked for, and the command by which it starts its child process.

import Glibc
import Purgeable
import ToolSupport

extension Command {
  package static let replay = Command(
    name: "replay",
    summary: "Run a trace of requests through a cache, and count hits and misses.",
    description: """
      Looks up each request of the file TRACE in a cache. A miss stores a value of the object's size. The bytes of a value follow
      from its key and size, and each hit is checked byte for byte: the exit status is not 0 when one was wrong.

      Formats:
        csv            A request a line, below a header that names the columns, as "key" or "time,key,bytes": in any order,
                       and others among them. The column of keys is called key, id, obj_id or object_id, that of sizes
                       bytes, size, obj_size or object_size. Keys are any text, sizes whole numbers, together below 2^60.
                       Keys other than numbers below 2^64 are told apart by a 64-bit hash. Quotes are letters like
                       others. Blank lines are passed over. Without sizes, an object has \(TraceRequest.usualSize) bytes.
                       --cost names a column, numbers from 0 on; --expiry goes by a column time or timestamp, in seconds.
        oracleGeneral  libCacheSim's records of \(TraceFile.recordBytes) bytes. Requests of 0 bytes count like others.

      Capacities:
        1000           Entries; for a trace with sizes, bytes of values.
        10%            A share of the trace's footprint: of its distinct objects; for a trace with sizes, of their bytes, each
                       object being as large as at its first request. The trace is read twice.
        64MiB, 10MB    For a trace with sizes, bytes of values; else all bytes that the cache holds, bookkeeping included.

      An object larger than the capacity, than a quarter of the memory there is, or than 3.9 GiB is never stored; with
      --memory-limit, one larger than a quarter of the limit. TRACE may be -, standard input, where it need not be read twice. A
      request for a stored object is a hit whatever its size: the value stays as it was stored. The byte miss ratio is that of
      the requests' sizes.

      With --cost, each object has a cost of making it again, in any unit. The cache is told it with the value, and keeps what
      is dear for its bytes longer; the report has what the misses cost together.

      With s3fifo, runs of one trace differ by some hits: a cache hashes with a random seed. With lru they do not.

      The time of a request covers the look-up, the check, and making and storing a value. Reading the trace is not timed.
      """,
    operands: ["TRACE"],
    options: [
      Option("capacity", value: "N", "How much the cache holds, as above."),
      Option("memory-limit", value: "BYTES", "No capacity: a memory group (cgroup) with this limit, \(memoryLimits)."),
      Option("kernel-alone", "With --memory-limit: without the library's reaction to pressure."),
      Option("order", value: "NAME", "Which entry goes first: \(EvictionOrder.names) (default s3fifo)."),
      Option(
        "expiry", value: "SECONDS",
        "How long values are valid: by the trace's times; without any, by the machine's clock."),
      Option("cost", value: "COLUMN", "The column with the costs of recomputing, or equal: each object costs the same."),
      Option("without-credit", "With --cost: the cache is not told the costs, for comparison."),
      Option("format", value: "NAME", "\(TraceFormat.names) (default: by the file's name, or its first bytes)."),
      Option("record", value: "FILE", "Write the run, ten samples a second, for `report FILE` to draw."),
      Option("json", "Print one JSON object."),
    ]
  ) { arguments in
    var replay = Replay(try ReplayOptions(arguments))
    return try replay.run()
  }

  private static let memoryLimits = {
    let limits = ReplayOptions.memoryLimits
    return "\(ByteSize(limits.lowerBound)) to \(ByteSize(limits.upperBound))"
  }()

  static let replayChildren: [Command] = [
    Command(
      name: ReplayOptions.child, summary: "The cache of a replay in a memory group.", description: "Started by replay.",
      options: GroupProcess.groupOptions + [
        Option("memory-limit", value: "BYTES", "The limit of the group."), Option("kernel-alone", "Without the reaction."),
        Option("order", value: "NAME", "Which entry goes first."),
        Option("expiry", value: "SECONDS", "How long values are valid."),
        Option("trace-times", "By the requests' times."), Option("costs", "The cache is told the requests' costs."),
        Option("bytes", "Count the cache's bytes."),
      ]
    ) { arguments in
      // Without a time limit, since traces may be long. It ends when its parent's end of the pipe closes.
      _ = try GroupProcess.settle(arguments, seconds: 0)
      if arguments.has("kernel-alone") { GroupProcess.leaveItToTheKernel() }
      let order = try EvictionOrder.named(arguments.text("order"))
      let expiry = try ReplayOptions.expirySeconds(arguments).map {
        ReplayExpiry(seconds: $0, isByTrace: arguments.has("trace-times"))
      }
      var cache = try ReplayCache(
        .group(try arguments.bytes("memory-limit") ?? 0), order: order, expiry: expiry, tellsCosts: arguments.has("costs"))
      cache.countsBytes = arguments.has("bytes")
      try cache.serve()
      // At once: the kernel takes a cache apart faster than the cache does, and all was said through the pipe.
      return withExtendedLifetime(cache) { _exit(0) }
    }
  ]
}

/// The options of `replay`.
struct ReplayOptions: Equatable, Sendable {
  enum Bound: Equatable, Sendable {
    case capacity(ReplayCapacity)
    case group(limitBytes: UInt64)
  }

  var trace: String
  var format: TraceFormat?
  var bound: Bound
  var isKernelAlone: Bool
  var order: EvictionOrder
  var expirySeconds: UInt64?
  var cost: TraceCost?
  var isWithoutCredit: Bool
  var isJSON: Bool
  /// Where to write the run's record; nil: nowhere.
  var recordPath: String?

  var tellsCosts: Bool { cost != nil && !isWithoutCredit }

  static let child = "replay-cache"
  static let memoryLimits: ClosedRange<UInt64> = 32 << 20...1 << 40

  init(_ arguments: Arguments) throws(UsageError) {
    trace = try TraceFile.path(arguments)
    format = try TraceFormat.named(arguments.text("format"))
    isKernelAlone = arguments.has("kernel-alone")
    order = try EvictionOrder.named(arguments.text("order"))
    expirySeconds = try Self.expirySeconds(arguments)
    cost = arguments.text("cost").map { TraceCost($0) }
    isWithoutCredit = arguments.has("without-credit")
    if isWithoutCredit, cost == nil { throw UsageError("--without-credit goes with --cost") }
    isJSON = arguments.has("json")
    recordPath = try arguments.recordPath()
    switch (arguments.text("capacity"), try arguments.bytes("memory-limit")) {
    case (nil, nil): throw UsageError("--capacity or --memory-limit is missing")
    case (_?, _?): throw UsageError("--capacity or --memory-limit, not both")
    case (let text?, nil): bound = .capacity(try ReplayCapacity(text))
    case (nil, let limit?): bound = .group(limitBytes: limit)
    }
    switch bound {
    case .capacity: if isKernelAlone { throw UsageError("--kernel-alone goes with --memory-limit") }
    case .group(let limit):
      if !Self.memoryLimits.contains(limit) { throw UsageError("--memory-limit: \(limit) bytes; between 32M and 1T") }
    }
  }
}

extension ReplayOptions {
  static func expirySeconds(_ arguments: Arguments) throws(UsageError) -> UInt64? {
    guard let text = arguments.text("expiry") else { return nil }
    guard let seconds = UInt64(text), seconds > 0, seconds <= 1 << 32 else {
      throw UsageError("--expiry: \"\(text)\" is no time; write a whole number of seconds, 1 to 2^32")
    }
    return seconds
  }

  func expiry(of trace: TraceFile) -> ReplayExpiry? {
    expirySeconds.map { ReplayExpiry(seconds: $0, isByTrace: trace.hasTimes) }
  }
}

/// What `--capacity` says.
enum ReplayCapacity: Equatable, Sendable {
  case number(UInt64)
  case percent(Double)
  case bytes(UInt64)

  private static let most: UInt64 = 1 << 62

  init(_ text: String) throws(UsageError) {
    if let number = UInt64(text) {
      self = .number(number)
    } else if text.last == "%", text.dropLast().allSatisfy("0123456789.".contains), let percent = Double(text.dropLast()) {
      self = .percent(percent)
    } else if let bytes = ByteSize(text) {
      self = .bytes(bytes.count)
    } else {
      throw UsageError(
        "--capacity: \"\(text)\" is no capacity; write a number (1000), a share of the footprint (10%), or bytes (64MiB)")
    }
    switch self {
    case .number(1...Self.most), .bytes(1...Self.most): break
    case .percent(let percent) where percent > 0 && percent <= 100: break
    case .percent: throw UsageError("--capacity: \"\(text)\" is no share; write more than 0% and at most 100%")
    case .number, .bytes: throw UsageError("--capacity: \"\(text)\" is out of range; write at least 1 and at most 2^62")
    }
  }

  /// The limit of the cache. `footprint`: of the whole trace, where this is a share.
  func limit(of trace: TraceFile, _ footprint: Footprint) throws(UsageError) -> ReplayLimit {
    switch self {
    case .number(let number): return trace.hasSizes ? .payloadBytes(number) : .objects(number)
    case .bytes(let bytes): return trace.hasSizes ? .payloadBytes(bytes) : .heldBytes(bytes)
    case .percent(let percent):
      let whole = trace.hasSizes ? footprint.bytes : footprint.objects
      let exact = Double(whole) * percent / 100
      // 32.3 % of 1,000 is 323, and a hair less as a Double.
      let part = UInt64(abs(exact - exact.rounded()) <= exact * 1e-12 ? exact.rounded() : exact)
      guard part > 0 else {
        guard whole > 0 else { throw UsageError("--capacity: the trace's objects have no bytes; write a number (1000)") }
        let unit = trace.hasSizes ? "bytes" : "objects"
        throw UsageError("--capacity: \(percent)% of \(whole) \(unit) is less than one; write a larger share")
      }
      return trace.hasSizes ? .payloadBytes(part) : .objects(part)
    }
  }
}

extension TraceFormat {
  /// nil: to be found out.
  static func named(_ name: String?) throws(UsageError) -> TraceFormat? {
    guard let name else { return nil }
    guard let format = TraceFormat(rawValue: name) else {
      throw UsageError("--format: \"\(name)\" is unknown; there are: \(names)")
    }
    return format
  }

  static var names: String { allCases.map(\.rawValue).joined(separator: ", ") }
}

extension EvictionOrder {
  var name: String { "\(self)".lowercased() }
  static var names: String { allCases.map(\.name).joined(separator: ", ") }

  /// nil stands for the default.
  static func named(_ name: String?) throws(UsageError) -> EvictionOrder {
    guard let name else { return .s3FIFO }
    guard let order = allCases.first(where: { $0.name == name }) else {
      throw UsageError("--order: \"\(name)\" is unknown; there are: \(names)")
    }
    return order
  }
}
