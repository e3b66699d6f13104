// SPDX-License-Identifier: MIT
// The queues of a shard, and the heap's streams that hold them.

import CPurgeable

/// A queue of a shard. The raw values are their order on offer: the kernel discards from the lowest first. To add one: a case,
/// their number here and in `EachQueue`, and when its turn comes (`S3FIFOOrder.next`).
enum EvictionQueue: Int {
  case probation = 0
  case main = 1

  static let count = 2

  var other: EvictionQueue { self == .main ? .probation : .main }

  /// All, in their order on offer. Unlike an array, this needs no allocation.
  static var all: AllQueues { AllQueues() }
}

/// One value for each queue, by its raw value.
typealias EachQueue<Value> = InlineArray<2, Value>

struct AllQueues: Sequence, IteratorProtocol {
  private var number = 0

  mutating func next() -> EvictionQueue? {
    defer { number += 1 }
    return EvictionQueue(rawValue: number)
  }
}

/// A stream for each queue of each shard: the first queue's of all shards, then the next one's, since lower numbers are offered
/// first. Streams that are made one after the other have numbers one after the other.
struct QueueStreams {
  static let shardCount = EngineKey.otherCount + 1
  static let count = EvictionQueue.count * shardCount

  /// Of each queue the founder's, which is the first.
  private let founders: EachQueue<purgeable_stream_t>

  init(from first: purgeable_stream_t) { founders = EachQueue { first + purgeable_stream_t($0 * Self.shardCount) } }

  /// Of the founder, 0, or of one of the others, from 1 on.
  subscript(queue: EvictionQueue, shard: Int) -> purgeable_stream_t { founders[queue.rawValue] + purgeable_stream_t(shard) }

  /// All of them in a row.
  subscript(number: Int) -> purgeable_stream_t { founders[0] + purgeable_stream_t(number) }

  /// A stream beyond them counts as the last queue's.
  @inline(__always) func queue(of stream: purgeable_stream_t) -> EvictionQueue {
    var number = EvictionQueue.count - 1
    while number > 0, stream < founders[number] { number -= 1 }
    return EvictionQueue(rawValue: number)!
  }
}
