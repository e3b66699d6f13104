// SPDX-License-Identifier: MIT
// The queues of a shard, their lanes, and the heap's streams that hold them.
//
//   queue    whose turn it is (S3FIFOOrder.swift): speculative entries before all others, then probation or main; what is pinned
//            stays, and off offer
//   lane     the entries of a queue that live for about as long as each other, so that a slab expires as a whole; most entries
//            live for ever, and are in lane 0 (Shard/ShardLanes.swift)
//   stream   a lane of a shard: slabs in order of birth

import CPurgeable

/// A queue of a shard. The raw values are their order on offer: the kernel discards from the lowest first. To add one: a case,
/// their number here, in `EachQueue` and in `EachLane`, and when its turn comes (`S3FIFOOrder.next`, `turns`).
enum EvictionQueue: Int {
  case probation = 0
  case main = 1
  /// The last two are for priorities (HeldShard+Priority.swift): a shard has them when it has such an entry.
  case speculative = 2
  case pinned = 3

  static let count = 4
  /// How many any shard has; and how many entries are evicted from, where all are there.
  static let firstCount = 2
  static let evictedCount = 3

  var bit: UInt8 { 1 << UInt8(rawValue) }

  /// The queues in the order in which an eviction tries them that wants this one.
  @inline(__always) var turns: InlineArray<3, EvictionQueue> {
    switch self {
    case .probation: [.probation, .main, .speculative]
    case .main: [.main, .probation, .speculative]
    case .speculative, .pinned: [.speculative, .probation, .main]
    }
  }

  /// Of an entry that has just come.
  var priority: EntryPriority {
    switch self {
    case .probation, .main: .normal
    case .speculative: .speculative
    case .pinned: .pinned
    }
  }

  /// All, in their order on offer. Unlike an array, this needs no allocation.
  static var all: AllQueues { AllQueues() }
}

/// One value for each queue, by its raw value.
typealias EachQueue<Value> = InlineArray<4, Value>

/// The sums of the living entries in one queue of a shard, or limits on them.
struct QueueSums {
  var cost: UInt128 = 0
  var count = 0
  var byteCount = 0
}

struct AllQueues: Sequence, IteratorProtocol {
  private var number = 0

  mutating func next() -> EvictionQueue? {
    defer { number += 1 }
    return EvictionQueue(rawValue: number)
  }
}

/// A part of a queue.
struct Lane: Equatable {
  let queue: EvictionQueue
  /// 0 for entries that live for ever.
  let number: Int

  /// How many a queue may have, and how many of them are for entries with a deadline.
  static let numberLimit = 4
  static let timedCount = numberLimit - 1
  static let count = EvictionQueue.count * numberLimit

  init(_ queue: EvictionQueue, _ number: Int = 0) { (self.queue, self.number) = (queue, number) }

  /// First the lanes 0 of all queues, then the others, queue by queue.
  init(index: Int) {
    let (queue, number) = (index - EvictionQueue.count).quotientAndRemainder(dividingBy: Self.timedCount)
    self = index < EvictionQueue.count ? Lane(.init(rawValue: index)!) : Lane(.init(rawValue: queue)!, number + 1)
  }

  var index: Int {
    number == 0 ? queue.rawValue : EvictionQueue.count + queue.rawValue * Self.timedCount + number - 1
  }
}

/// One value for each lane, by its index.
typealias EachLane<Value> = InlineArray<16, Value>

/// The first lanes of a queue, or of several.
struct Lanes: Sequence, IteratorProtocol {
  private var queue: Int
  private let end: Int
  private var number = 0
  private let count: Int

  /// `count`: of each of these queues, by their raw values.
  init(_ count: Int, of queues: Range<Int> = 0..<EvictionQueue.count) {
    assert(count > 0 && count <= Lane.numberLimit, "PurgeableCache: a queue of no lane, or of more than there may be")
    (queue, end, self.count) = (queues.lowerBound, queues.upperBound, count)
  }

  mutating func next() -> Lane? {
    if number == count { (queue, number) = (queue + 1, 0) }
    guard queue < end, let queue = EvictionQueue(rawValue: queue) else { return nil }
    defer { number += 1 }
    return Lane(queue, number)
  }
}

/// A stream for each lane of each shard: the first lane's of all shards, then the next one's, since lower numbers are offered
/// first. Streams that are made one after the other have numbers one after the other. Those of entries with a priority or a
/// deadline are made when there is one, behind the two streams that are no shard's.
struct QueueStreams {
  static let shardCount = EngineKey.otherCount + 1
  static let count = Lane.count * shardCount
  static let firstCount = EvictionQueue.firstCount * shardCount
  static let foreignCount = 2

  private let first: purgeable_stream_t

  init(from first: purgeable_stream_t) { self.first = first }

  /// Of the founder, 0, or of one of the others, from 1 on.
  subscript(lane: Lane, shard: Int) -> purgeable_stream_t { self[lane.index * Self.shardCount + shard] }

  /// All of them in a row.
  subscript(number: Int) -> purgeable_stream_t {
    first + purgeable_stream_t(number < Self.firstCount ? number : number + Self.foreignCount)
  }

  func lane(of stream: purgeable_stream_t) -> Lane {
    let number = Int(stream - first)
    let known = number < Self.firstCount ? number : max(Self.firstCount, number - Self.foreignCount)
    return Lane(index: min(known / Self.shardCount, Lane.count - 1))
  }

  @inline(__always) func queue(of stream: purgeable_stream_t) -> EvictionQueue {
    let number = stream - first
    if number < Self.firstCount { return number < Self.shardCount ? .probation : .main }
    return lane(of: stream).queue
  }
}
