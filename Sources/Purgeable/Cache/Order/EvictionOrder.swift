// SPDX-License-Identifier: MIT
// The order of eviction: which entries go, and which are kept. A value without heap, mutex or clock, which decides by the numbers
// it is given.
//
//   store --> probation (a tenth) --counter >= 2--> main (the rest) --counter > 0--> main again, counter - 1
//                  |                                  |
//                  +--> ghost: stored again soon -----+--> main          otherwise: evicted
//
// Four mechanisms ask it, and no other code decides:
//   one entry at a time       limits of count and cost                     HeldShard+Evict.swift
//   one slab at a time        the byte limit, memory that is refused       HeldShard+EvictSlab.swift
//   many slabs together       pressure, trims                              GivingBack.swift
//   entries not used          the eager mode                               IdleRound.swift
//
// The order is S3-FIFO, after J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. The promotion at two
// uses, and main before probation when main is full, are those of its reference implementation. Where this order differs, because
// memory goes back by whole slabs, a comment at the decision says so.

/// One of the two queues of a shard. The raw values are their order on offer: the kernel discards from probation first.
enum EvictionQueue: Int {
  case probation = 0
  case main = 1

  var other: EvictionQueue { self == .main ? .probation : .main }

  /// Both, in their order on offer. Unlike an array, this needs no allocation.
  static var both: BothQueues { BothQueues() }
}

struct BothQueues: Sequence, IteratorProtocol {
  private var number = 0

  mutating func next() -> EvictionQueue? {
    defer { number += 1 }
    return EvictionQueue(rawValue: number)
  }
}

/// Why an entry's turn has come.
enum EvictionCause {
  /// A limit: another entry takes its place.
  case limit
  /// Memory is given back: nothing takes its place for now.
  case relief
  /// The entry is older than the mark of the idle time.
  case idle
}

extension DepartureReason {
  /// The cause that the order of eviction goes by.
  var cause: EvictionCause {
    switch self {
    case .pressure, .trimmed: .relief
    case .idle: .idle
    default: .limit
    }
  }
}

struct EvictionOrder: Sendable {
  static let s3FIFO = EvictionOrder()

  /// Uses are counted up to here. Two bits of a slot.
  static let highestCounter: UInt64 = 3
  /// Probation gets one of so many parts.
  private let probationParts = 10
  /// From this counter on a limit's eviction promotes an entry from probation to main.
  private let promotionCounter: UInt64 = 2

  // MARK: Coming in

  /// The queue of a new entry. `lastDeparture`: why its key left not long ago; nil where nothing is remembered.
  func queue(ofNew lastDeparture: Ghost.Reason?) -> EvictionQueue {
    switch lastDeparture {
    case .evicted, .discarded: .main
    case .removed, nil: .probation
    }
  }

  /// The counter of an entry that takes another value. Its queue stays.
  func counter(ofReplaced counter: UInt64) -> UInt64 { min(Self.highestCounter, counter + 1) }

  /// A counter after reads have aged it.
  func aged(_ counter: UInt64) -> UInt64 { counter / 2 }

  /// How many keys of departed entries are remembered beside so many living ones.
  func rememberedCount(ofLiving count: Int) -> Int { max(1, count - count / probationParts) }

  // MARK: Whose turn it is

  /// The queue that evicts next, by the sums of both: entries, cost or bytes. `limit`: of both together; nil stands for what they
  /// hold.
  func next(probation: UInt128, main: UInt128, limit: UInt128? = nil) -> EvictionQueue {
    if main == 0 { return .probation }
    if probation == 0 { return .main }
    let parts = UInt128(probationParts)
    guard let limit else { return probation * parts > probation + main ? .probation : .main }
    return main > limit - min(limit, max(1, limit / parts)) ? .main : .probation
  }

  /// Whether one entry goes before another, where only these two are compared.
  func goesFirst(_ one: (counter: UInt64, age: UInt64), before other: (counter: UInt64, age: UInt64)) -> Bool { one < other }

  // MARK: What becomes of an entry

  enum Verdict: Equatable {
    case evict
    /// The entry goes to the young end of main, with this counter.
    case keep(counter: UInt64)
  }

  /// Entries are kept from a counter of `threshold` on, up to `room` bytes of them.
  struct KeepRule: Equatable {
    var threshold: UInt64
    var room = Int.max
  }

  /// One eviction keeps so many entries at most, and then evicts the next one even though it was used. This bounds how long an
  /// eviction takes where nearly all entries are hot. The next eviction goes on from there, so every entry loses a use before the
  /// first one is passed again.
  static let mostKept = 256

  /// The rule for a single entry: keeping it takes no room from another one. `kept`: how many entries the same eviction has kept
  /// before.
  func rule(_ queue: EvictionQueue, _ cause: EvictionCause, kept: Int = 0) -> KeepRule {
    if kept >= Self.mostKept { return KeepRule(threshold: Self.highestCounter + 1) }
    // Memory that is given back is not filled again at once, so the ghost cannot correct an eviction soon. There, one read makes
    // an entry worth keeping.
    return KeepRule(threshold: queue == .probation && cause == .limit ? promotionCounter : 1)
  }

  /// The rule for the entries of a slab: entries that are kept are copied, and have to fit `room`. When more were used, the most
  /// used ones are kept. `byteCounts`: bytes of entries, by counter.
  func rule(_ queue: EvictionQueue, _ cause: EvictionCause, byteCounts: SIMD4<Int>, room: Int) -> KeepRule {
    assert(room >= 0, "PurgeableCache: room is below 0")
    let lowest = rule(queue, cause).threshold
    var threshold = Self.highestCounter
    var kept = byteCounts[Int(threshold)]
    while threshold > lowest, kept + byteCounts[Int(threshold) - 1] <= room {
      threshold -= 1
      kept += byteCounts[Int(threshold)]
    }
    return KeepRule(threshold: threshold, room: room)
  }

  /// How many bytes of a slab may be copied: at most half, so that every eviction frees memory.
  func room(ofBytes byteCount: Int) -> Int { byteCount / 2 }

  func verdict(counter: UInt64, byteCount: Int, _ queue: EvictionQueue, _ cause: EvictionCause, _ rule: KeepRule) -> Verdict {
    assert(counter <= Self.highestCounter && byteCount >= 0, "PurgeableCache: a counter or a length that no entry has")
    guard counter >= rule.threshold, byteCount <= rule.room else { return .evict }
    switch (cause, queue) {
    // The entry goes after one to two idle times without further use.
    case (.idle, _): return .keep(counter: 0)
    // The entry begins anew in main.
    case (.limit, .probation): return .keep(counter: 0)
    // One use less, not none, even for an entry that comes to main only now: its turn may come again before it could be read.
    case (.limit, .main), (.relief, _): return .keep(counter: max(counter, 1) - 1)
    }
  }

  // MARK: Slabs that are hardly alive

  /// Whether a slab is sparse, and so goes before all others. Its living entries are copied within their queue, and keep their
  /// counters.
  func isSparse(livingBytes: Int, heldBytes: Int) -> Bool { livingBytes * 4 < heldBytes }

  /// Whether so much of what is held is dead that a search for sparse slabs is worth while.
  func wantsCompaction(livingBytes: Int, heldBytes: Int) -> Bool { livingBytes * 2 < heldBytes }
}
