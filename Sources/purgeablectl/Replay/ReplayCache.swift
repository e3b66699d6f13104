// SPDX-License-Identifier: MIT
// The cache that a trace is replayed through: looked up for each request, filled at each miss, checked at each hit.

import CPurgeable
import Glibc
import Purgeable
import ToolSupport

/// What a replay counted. Goes through a pipe as it is.
struct ReplayCounts: BitwiseCopyable, Equatable, Sendable {
  var requests: UInt64 = 0
  var hits: UInt64 = 0
  /// By the sizes of the requests.
  var bytes: UInt64 = 0
  var hitBytes: UInt64 = 0
  var wrongBytes: UInt64 = 0
  /// Misses of objects larger than a cache of this capacity stores.
  var tooLarge: UInt64 = 0
  /// Stores that the cache refused for another reason: no memory.
  var refused: UInt64 = 0
  var nanoseconds: UInt64 = 0
  /// Recompute costs of the requests, and of those that missed.
  var cost = 0.0
  var missCost = 0.0
  /// At the end: entries in the cache, entries that the kernel took, that expired, and that the cache evicted.
  var entries: UInt64 = 0
  var losses: UInt64 = 0
  var expiries: UInt64 = 0
  var evictions: UInt64 = 0
  /// As they were lately, where somebody wants them.
  var residentBytes: UInt64 = 0
  var heldBytes: UInt64 = 0
  var offeredBytes: UInt64 = 0

  var misses: UInt64 { requests - hits }
  var missRatio: Double { Double(misses) / Double(max(1, requests)) }
  var byteMissRatio: Double { Double(bytes - hitBytes) / Double(max(1, bytes)) }
  var costMissRatio: Double { cost > 0 ? missCost / cost : 0 }
}

/// Values: 64-bit words that go on from a first one, which the key and the size decide.
enum TraceContent {
  private static func first(_ key: UInt64, _ size: Int) -> UInt64 { SplitMix64.mix(key ^ SplitMix64.mix(UInt64(size))) }
  private static let step: UInt64 = 0x9E37_79B9_7F4A_7C15

  /// Fills all of the buffer.
  static func write(_ key: UInt64, to buffer: UnsafeMutableRawBufferPointer) {
    var word = first(key, buffer.count)
    let whole = buffer.count & ~7
    // In bounds: whole words, then single bytes.
    for offset in stride(from: 0, to: whole, by: 8) {
      unsafe buffer.storeBytes(of: word.littleEndian, toByteOffset: offset, as: UInt64.self)
      word &+= step
    }
    for offset in whole..<buffer.count { unsafe buffer[offset] = byte(of: word, offset) }
  }

  /// How many bytes are not the right ones for a value of this size.
  static func wrongBytes(_ key: UInt64, _ bytes: UnsafeRawBufferPointer) -> UInt64 {
    var word = first(key, bytes.count)
    var wrong: UInt64 = 0
    let whole = bytes.count & ~7
    // In bounds, as above.
    for offset in stride(from: 0, to: whole, by: 8) {
      let difference = unsafe bytes.loadUnaligned(fromByteOffset: offset, as: UInt64.self) ^ word.littleEndian
      if difference != 0 { wrong += byteCount(difference) }
      word &+= step
    }
    for offset in whole..<bytes.count where unsafe bytes[offset] != byte(of: word, offset) { wrong += 1 }
    return wrong
  }

  private static func byte(of word: UInt64, _ offset: Int) -> UInt8 {
    UInt8(truncatingIfNeeded: word >> UInt64((offset & 7) * 8))
  }

  /// The bytes that are not 0.
  private static func byteCount(_ word: UInt64) -> UInt64 {
    UInt64((0..<8).count { word >> UInt64($0 * 8) & 0xFF != 0 })
  }
}

/// What limits the cache.
enum ReplayLimit: Equatable, Sendable {
  case objects(UInt64)
  /// Of the values alone.
  case payloadBytes(UInt64)
  /// Of all that the cache holds.
  case heldBytes(UInt64)
  /// Nothing but the memory group that the process is in.
  case group(UInt64)

  var inWords: String {
    switch self {
    case .objects(let count): "at most \(Figures.count(count)) entries"
    case .payloadBytes(let bytes): "at most \(ByteSize(bytes)) of values"
    case .heldBytes(let bytes): "at most \(ByteSize(bytes)) in all"
    case .group(let bytes): "limit \(ByteSize(bytes))"
    }
  }
}

/// How long values are valid.
struct ReplayExpiry: Equatable, Sendable {
  var seconds: UInt64
  /// By the times of the requests; else by the machine's clock.
  var isByTrace: Bool
}

struct ReplayCache {
  private(set) var counts = ReplayCounts()
  let cache: PurgeableCache<UInt64, [UInt8]>
  /// A larger object is not stored.
  private let storableBytes: UInt64
  /// Whether the cache is told the requests' costs.
  private let tellsCosts: Bool
  /// Shows the time of the last request, where values expire by the trace.
  private let clock: ManualClock?
  private var now: UInt32?
  /// As large as the largest value that was stored: a hit always fits.
  private var buffer = [UInt8](repeating: 0, count: Int(TraceRequest.usualSize))
  private var hasEmptyValues = false
  /// Whether the counts have the cache's bytes, and when they were looked at.
  var countsBytes = false
  private var bytesTime: UInt64 = 0

  /// An element of a heap has 4 GiB less 64 MiB at most, with its key.
  private static let mostStoredBytes: UInt64 = 0xFFFF_FFFF - 64 << 20 - 64

  init(_ limit: ReplayLimit, order: EvictionOrder, expiry: ReplayExpiry? = nil, tellsCosts: Bool = false) throws {
    self.tellsCosts = tellsCosts
    var options = CacheOptions(name: "replay")
    options.evictionOrder = order
    options.expiry = expiry.map { .sinceCreation(.seconds(Int64($0.seconds))) }
    clock = expiry?.isByTrace == true ? ManualClock() : nil
    options.clock = clock
    // The value and the cache's copy of it have to fit beside everything else.
    let most = min(ProcessMemory.limit() / 4, Self.mostStoredBytes)
    switch limit {
    case .objects(let count): (options.countLimit, storableBytes) = (Int(count), most)
    case .payloadBytes(let bytes): (options.costLimit, storableBytes) = (Int(bytes), min(bytes, most))
    case .heldBytes(let bytes): (options.byteLimit, storableBytes) = (Int(bytes), most)
    case .group(let bytes): storableBytes = min(bytes / 4, most)
    }
    do throws(PurgeableError) {
      cache = try PurgeableCache(options)
    } catch {
      guard case .invalidArgument = error.kind else { throw error }
      throw UsageError("--capacity: \(error.explanation)")
    }
  }

  /// Requests objects, one after the other. Only this is timed.
  mutating func run(_ requests: [TraceRequest]) {
    let start = Clock.now
    for request in requests {
      counts.requests += 1
      counts.bytes += request.size
      counts.cost += request.cost
      if let clock { move(clock, to: request.time) }
      if let wrongBytes = check(request.key) {
        counts.hits += 1
        counts.hitBytes += request.size
        counts.wrongBytes += wrongBytes
      } else {
        counts.missCost += request.cost
        store(request)
      }
    }
    counts.nanoseconds += Clock.now - start
    if countsBytes, Clock.now - bytesTime >= RunRecorder.interval { countBytes() }
  }

  private mutating func countBytes() {
    bytesTime = Clock.now
    let memory = cache.statistics.memory
    counts.residentBytes = UInt64(memory.residentBytes ?? 0)
    (counts.heldBytes, counts.offeredBytes) = (UInt64(memory.heldBytes), UInt64(memory.offeredBytes))
  }

  /// A trace begins at any time, and a time before the last one counts as that.
  private mutating func move(_ clock: ManualClock, to time: UInt32) {
    if let now, time > now { clock.advance(by: .seconds(time - now)) }
    now = max(now ?? time, time)
  }

  /// Looks a key up. The number of wrong bytes of a hit; nil for a miss.
  private mutating func check(_ key: UInt64) -> UInt64? {
    unsafe buffer.withUnsafeMutableBytes { [cache, hasEmptyValues] buffer in
      switch unsafe cache.read(forKey: key, into: buffer) {
      case .miss: return nil
      // Longer than any value that was stored.
      case .bufferTooSmall(let needed): return UInt64(needed)
      case .hit(0): return hasEmptyValues ? 0 : 1
      case .hit(let byteCount):
        return unsafe TraceContent.wrongBytes(key, UnsafeRawBufferPointer(rebasing: buffer[..<byteCount]))
      }
    }
  }

  private mutating func store(_ request: TraceRequest) {
    guard request.size <= storableBytes else {
      counts.tooLarge += 1
      return
    }
    let size = Int(request.size)
    if size == 0 { hasEmptyValues = true }
    if size > buffer.count {
      // Swift's runtime ends the program where it gets no memory for an array.
      guard purgeable_bookkeeping_is_available(2 * size) else {
        counts.refused += 1
        return
      }
      buffer = [UInt8](repeating: 0, count: size)
    }
    unsafe buffer.withUnsafeMutableBytes { buffer in
      unsafe TraceContent.write(request.key, to: UnsafeMutableRawBufferPointer(rebasing: buffer[..<size]))
    }
    // Without sizes the buffer is the value, which saves an array.
    let value = size == buffer.count ? buffer : Array(buffer[..<size])
    // Any unit does: a cost of 1 is told as a microsecond.
    let cost = tellsCosts ? Duration.nanoseconds(Int64(request.cost * 1000)) : nil
    switch cache.setValue(value, forKey: request.key, recomputeCost: cost) {
    case .stored, .replaced: break
    case .tooLarge: counts.tooLarge += 1
    case .outOfMemory, .notEncodable, .expired, .pinnedByteLimit: counts.refused += 1
    }
  }

  /// Counts what the cache knows only at the end.
  mutating func finish() {
    // Finds what the kernel took and nobody asked for since.
    cache.sweep()
    if countsBytes { countBytes() }
    let departures = cache.statistics.departures
    counts.entries = UInt64(cache.count)
    counts.losses = UInt64(departures[.discarded] ?? 0)
    counts.expiries = UInt64(departures[.expired] ?? 0)
    // Nothing here replaces or removes.
    counts.evictions = UInt64(departures.values.reduce(0, +)) - counts.losses - counts.expiries
  }

  // MARK: In a process of its own

  /// Answers each batch of requests with the counts so far, and the end of its input with the last ones.
  mutating func serve() throws {
    let input = WireReader(descriptor: STDIN_FILENO)
    let output = WireWriter(descriptor: STDOUT_FILENO)
    while let frame = try input.next() {
      guard frame.tag == .requests else { throw WireFailure() }
      run(frame.elements(of: TraceRequest.self))
      try output.write(.result, 0, Frame.bytes(ofElements: [counts]))
    }
    finish()
    try output.write(.result, 0, Frame.bytes(ofElements: [counts]))
  }
}
