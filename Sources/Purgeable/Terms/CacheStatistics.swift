// SPDX-License-Identifier: MIT
// A cache in numbers.

/// A cache in numbers: its memory by state, what is in it, and counters since it was made.
public struct CacheStatistics: Sendable, Hashable {
  /// The cache's name.
  public var name: String
  /// The cache's bytes by state, as regions and heaps tell them too. Payload is keys and values; ordinary memory is index,
  /// ghosts, sums, directories and key tables.
  public var memory: MemoryUse
  /// How many entries there are.
  public var count: Int
  /// The sum of the entries' costs; `Int.max` when it is larger.
  public var totalCost: Int
  /// The program's limit of `count`, nil for none.
  public var countLimit: Int?
  /// The program's limit of `totalCost`, nil for none.
  public var costLimit: Int?
  /// The payload of pinned entries, in bytes (`EntryPriority`). Caches of objects: 0.
  public var pinnedBytes = 0
  /// What is kept off offer beside that, in bytes of slabs, of which a new one counts whole before it is filled (`CacheCore`).
  /// Caches of objects: 0.
  public var coreBytes = 0
  /// Look-ups that found a value.
  public var hitCount = 0
  /// Look-ups that found none. `peekValue` and `containsValue` count as neither.
  public var missCount = 0
  /// Misses by reason. It is `unknown`, too, where a shard was busy, and what it remembers of the key was not looked at. A value
  /// that could not be made of its bytes is a miss (`undecodable`). Those that were answered by what a load found (`absent`) are
  /// taken off `unknown`, as far as that has any, or off another reason that they were counted under before.
  public var missesByReason: [MissReason: Int] = [:]
  /// Calls of closures that load (`value(forKey:loading:)`) which have ended; a call for many keys counts once.
  public var loadCount = 0
  /// Those of them that threw.
  public var loadFailureCount = 0
  /// The time from their beginning to their end, added up.
  public var loadTime = Duration.zero
  /// Askers that got the outcome of another's load, once for each key.
  public var sharedLoadCount = 0
  /// Values stored under a key that had none.
  public var insertionCount = 0
  /// Values stored in place of another.
  public var replacementCount = 0
  /// Entries that left, by reason, those of which there were none included. Values that were refused as too large never were
  /// entries: see `refusalCount`.
  public var departures: [DepartureReason: Int] = [:]
  /// Departures that wait for their telling thread (`PurgeableCache.init`, on `onDeparture`).
  public var waitingDepartureCount: Int
  /// Departures that were told without a value that still existed: too many values waited, or there was no memory for a copy.
  public var notKeptValueCount: Int
  /// Entries copied to a fresh slab by the policy.
  public var copyCount = 0
  /// Stores refused: too large, no memory, beyond the pinned limit, not encodable, or over at once.
  public var refusalCount = 0
  /// Slabs that ended: given back to the system, or kept for a while to be filled again.
  public var givenBackSlabCount: Int
  /// Offers that the kernel refused.
  public var refusedOfferCount: Int
  /// The level of memory pressure that the cache acts by.
  public var pressure: PressureLevel
  /// The most bytes to hold now, nil for no limit: the smallest of all limits that apply.
  public var limitInForce: Int?
  /// Which limit `limitInForce` is; nil when there is none.
  public var limitReason: CacheLimitReason?
}

/// The limit behind `CacheStatistics.limitInForce`.
public enum CacheLimitReason: Sendable, Hashable {
  /// The program's `byteLimit`.
  case byteLimit
  /// The program's `memoryShare` of the memory that limits the process.
  case memoryShare
  /// The kernel discards nothing here, so a cache that was made without any limit limits itself.
  case noDiscards
  /// The cache gave memory back when memory was short, and may grow only slowly since then: the limit rises from what was left,
  /// and ends after `remaining`. It is no strict limit: it yields when nothing is left to evict.
  case growth(remaining: Duration)
}

extension CacheLimitReason: CustomStringConvertible {
  /// In a word or two.
  public var description: String {
    if case .growth(let remaining) = self { "\(words) for \(remaining.components.seconds) s" } else { words }
  }

  var words: String {
    switch self {
    case .byteLimit: "byte limit"
    case .memoryShare: "share of the memory"
    case .noDiscards: "the kernel discards nothing"
    case .growth: "slow growth"
    }
  }
}

extension CacheStatistics {
  /// What has happened since earlier statistics of the same cache: counters less the earlier ones, so `hitRate` is that of the
  /// time between. Sizes, waiting departures, limits and the level are as they are here.
  public func difference(from earlier: CacheStatistics) -> CacheStatistics {
    var result = self
    for counter in Self.counters { result[keyPath: counter] -= earlier[keyPath: counter] }
    result.loadTime -= earlier.loadTime
    result.missesByReason = missesByReason.lessened(by: earlier.missesByReason)
    result.departures = departures.lessened(by: earlier.departures)
    return result
  }

  private static var counters: [WritableKeyPath<CacheStatistics, Int>] {
    [
      \.hitCount, \.missCount, \.loadCount, \.loadFailureCount, \.sharedLoadCount, \.insertionCount, \.replacementCount,
      \.notKeptValueCount, \.copyCount, \.refusalCount, \.givenBackSlabCount, \.refusedOfferCount,
      \.memory.discardedByKernelBytes, \.memory.givenBackBytes, \.memory.refusedLockCount,
    ]
  }

  /// Hits of all look-ups, 0 to 1; 0 where nothing was looked up.
  public var hitRate: Double {
    let lookUps = Double(hitCount) + Double(missCount)
    return lookUps == 0 ? 0 : Double(hitCount) / lookUps
  }
}

extension CacheStatistics: CustomStringConvertible {
  /// In one line: "thumbnails: 12001 entries, 43.0 of 64.0 MiB (share of the memory), 38.0 on offer, hits 61.1 %, left: 2081 byte
  /// limit, 12663 discarded". Parts that are zero are left out. Reasons come in the order of their declaration.
  public var description: String {
    let charged = memory.heldBytes - memory.discardedBytes + memory.ordinaryBytes
    var text = name.isEmpty ? "" : "\(name): "
    text += countLimit.map { "\(count) of \($0) entries" } ?? "\(count) \(count == 1 ? "entry" : "entries")"
    if let costLimit { text += ", cost \(totalCost) of \(costLimit)" }
    text += ", \(Self.mebibytes(charged))"
    if let limitInForce { text += " of \(Self.mebibytes(limitInForce))" }
    text += " MiB"
    if let limitReason { text += " (\(limitReason))" }
    if memory.offeredBytes > 0 { text += ", \(Self.mebibytes(memory.offeredBytes)) on offer" }
    if coreBytes > 0 { text += ", \(Self.mebibytes(coreBytes)) in the core" }
    if pinnedBytes > 0 { text += ", \(Self.mebibytes(pinnedBytes)) pinned" }
    if memory.discardedBytes > 0 { text += ", \(Self.mebibytes(memory.discardedBytes)) more discarded" }
    if hitCount + missCount > 0 { text += ", hits \(Self.tenths(hitRate * 100)) %" }
    if loadCount > 0 {
      let parts = [(loadFailureCount, "failed"), (sharedLoadCount, "shared")].filter { $0.0 > 0 }.map { "\($0.0) \($0.1)" }
      text += ", loads: \(loadCount)" + (parts.isEmpty ? "" : " (\(parts.joined(separator: ", ")))")
      text += ", \(Self.tenths(loadTime / .seconds(1))) s"
    }
    let left = DepartureReason.allCases.filter { departures[$0, default: 0] > 0 }
    if !left.isEmpty { text += ", left: " + left.map { "\(departures[$0, default: 0]) \($0)" }.joined(separator: ", ") }
    let missed = MissReason.allCases.filter { missesByReason[$0, default: 0] > 0 }
    if !missed.isEmpty { text += ", missed: " + missed.map { "\(missesByReason[$0, default: 0]) \($0)" }.joined(separator: ", ") }
    return text
  }

  /// Bytes that there are do not read as none.
  package static func mebibytes(_ byteCount: Int) -> String {
    let text = tenths(Double(byteCount) / Double(1 << 20))
    return byteCount > 0 && text == "0.0" ? "<0.1" : text
  }

  /// With one digit after the point.
  private static func tenths(_ number: Double) -> String {
    let tenths = Int((number * 10).rounded())
    return "\(tenths / 10).\(tenths % 10)"
  }
}

extension Dictionary where Value == Int {
  /// Not below 0: a miss may have been counted under another reason since (`missesByReason`, on `absent`).
  fileprivate func lessened(by earlier: Self) -> Self {
    merging(earlier.mapValues { -$0 }) { Swift.max(0, $0 + $1) }.filter { $0.value >= 0 }
  }
}

extension LoadTable {
  func addNumbers(to statistics: inout CacheStatistics) {
    statistics.loadCount = loadCount.load(ordering: .relaxed)
    statistics.loadFailureCount = failureCount.load(ordering: .relaxed)
    statistics.loadTime = .nanoseconds(Int64(clamping: nanoseconds.load(ordering: .relaxed)))
    statistics.sharedLoadCount = sharedCount.load(ordering: .relaxed)
    let absentCount = absentCount.load(ordering: .relaxed)
    if statistics.missesByReason.isEmpty || absentCount == 0 { return }
    statistics.missesByReason[.absent] = absentCount
    // The cache has counted each of them under the reason that it remembers for the key, mostly none.
    var left = absentCount
    for reason in [MissReason.unknown, .outdated, .removed, .evicted, .discarded, .expired] {
      let count = statistics.missesByReason[reason] ?? 0
      statistics.missesByReason[reason] = count - min(left, count)
      left -= min(left, count)
    }
  }
}
