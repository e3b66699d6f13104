// SPDX-License-Identifier: MIT
// The two queues of a shard.

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
