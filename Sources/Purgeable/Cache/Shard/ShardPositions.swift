// SPDX-License-Identifier: MIT
// The shards of a cache, by the position that a key's hash leads to.
//
//     position   0        1 ... 15   16  17  18 ... 31
//                founder  unused     |   the others  |
//
//     mask 0:         every key leads to the founder
//     mask 16 + n-1:  a key leads to one of the first n others, n a power of two (`EngineKey.shardHash` has the bit of 16 set)

import Synchronization

/// All shards but the founder, made together.
final class OtherShards: Sendable {
  let others: [EngineShard]
  /// The founder first, then the others: in order of their numbers, in which their mutexes are taken.
  let all: [EngineShard]

  init(founder: EngineShard, others: [EngineShard]) {
    self.others = others
    all = [founder] + others
  }
}

/// The shards, or indexes, by position: a look-up touches no reference count on its way to a slot. `@unchecked Sendable`: a
/// position is written before a mask that leads to it is published, and never again.
@safe struct ShardPositions<Place>: @unchecked Sendable {
  private let places: UnsafeMutablePointer<Place>
  private static var count: Int { Int(EngineKey.firstOther) + ShardSizes.otherCount }

  /// Every position leads to the founder.
  init(_ founder: Place) {
    unsafe places = .allocate(capacity: Self.count)
    unsafe places.initialize(repeating: founder, count: Self.count)
  }

  /// Called before any mask leads to the position.
  func set(_ number: Int, _ place: Place) {
    precondition(number >= 0 && number < Self.count, "PurgeableCache: no such shard")
    unsafe places[number] = place
  }

  // In bounds: a position is a masked hash, which is below 32.
  @inline(__always) subscript(position: UInt64) -> Place { unsafe places[Int(truncatingIfNeeded: position)] }

  func destroy() {
    unsafe places.deinitialize(count: Self.count)
    unsafe places.deallocate()
  }
}

/// The indexes of a cache's shards by position.
struct ShardIndexes: Sendable {
  private let positions: ShardPositions<SlotIndex>

  init(_ founder: SlotIndex) { positions = ShardPositions(founder) }

  func add(_ index: SlotIndex, _ number: Int) { positions.set(number, index) }

  @inline(__always) subscript(position: UInt64) -> SlotIndex { positions[position] }

  /// The number of indexes: the founder's alone, or those of all shards.
  var count: Int { positions[EngineKey.firstOther].isSame(as: positions[0]) ? 1 : ShardSizes.otherCount + 1 }

  /// How many elements were ever allocated in all shards. Relaxed loads: a sum that is a little behind will do.
  var birthCount: UInt64 {
    var sum = positions[0].births
    if count > 1 { for i in 0..<UInt64(ShardSizes.otherCount) { sum &+= positions[EngineKey.firstOther + i].births } }
    return sum
  }

  /// The entries of all shards, and their costs, as each shard last published them.
  var entryCount: Int {
    var sum = positions[0].publishedCount
    if count > 1 { for i in 0..<UInt64(ShardSizes.otherCount) { sum &+= positions[EngineKey.firstOther + i].publishedCount } }
    return sum
  }
  var totalCost: UInt128 {
    var sum = positions[0].publishedCost
    if count > 1 { for i in 0..<UInt64(ShardSizes.otherCount) { sum &+= positions[EngineKey.firstOther + i].publishedCost } }
    return sum
  }

  func destroy() { positions.destroy() }
}

/// The sizes at which a cache opens its other shards. Only tests change them.
final class ShardSizes: Sendable {
  static let otherCount = 16
  /// A cache that is below both has one shard.
  let count = Atomic<Int>(16_384)
  let byteCount = Atomic<Int>(8 << 20)
  /// A shard is worth opening when its share of a count limit has at least so many entries, and its share of a byte limit at
  /// least so many slabs.
  let entriesPerShard = Atomic<Int>(262_144)
  let slabsPerShard = Atomic<Int>(64)
  #if DEBUG
    /// Switches off the check of the mask after a look-up that found nothing, so that a test can show what the check is for.
    let ignoresSteps = Atomic<Bool>(false)
    /// Makes readers wait between loading the mask and the index, so that a step comes between.
    let pausesReaders = Atomic<Bool>(false)
  #endif
  /// A cache this many times as large is not copied any more: the step would take too long.
  static let largest = 4
}
