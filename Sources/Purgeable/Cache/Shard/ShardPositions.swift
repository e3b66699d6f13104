// SPDX-License-Identifier: MIT
// The shards of a cache, by the position that a key's hash leads to.
//
//     position   0        1 ... 15   16  17  18 ... 31
//                founder  unused     |   the others  |
//
//     mask 0:         every key leads to the founder
//     mask 16 + n-1:  a key leads to one of the n others, n a power of two (`EngineKey.shardHash` has the bit of 16 set)

import Synchronization

/// All shards of a cache that has others than the founder, which are made together.
final class AllShards: Sendable {
  /// The founder first, then the others: in order of their numbers, in which their mutexes are taken.
  let list: [EngineShard]

  init(_ list: [EngineShard]) { self.list = list }
}

/// The shards, or indexes, by position: a look-up touches no reference count on its way to a slot. `@unchecked Sendable`: a
/// position is written before a mask that leads to it is published, and never again.
@safe struct ShardPositions<Place>: @unchecked Sendable {
  private let places: UnsafeMutablePointer<Place>
  private static var count: Int { Int(EngineKey.firstOther) + EngineKey.otherCount }

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
struct ShardIndexes: ~Copyable, Sendable {
  private let positions: ShardPositions<SlotIndex>
  private let others = Atomic<Int>(0)
  /// A key's `shardHash` masked with this is the position of its shard. Changed under the founder's mutex
  /// (CacheShards+Opening.swift).
  let mask = Atomic<UInt64>(0)
  /// Where the version begins in the mask: all bits below are those of positions, and `CacheShards.draining`.
  static let versionShift: UInt64 = 6

  init(_ founder: SlotIndex) { positions = ShardPositions(founder) }

  /// Adds the indexes of all shards but the founder, together and once.
  func publish(_ shards: [EngineShard]) {
    assert(otherCount == 0, "PurgeableCache: shards are published twice")
    for shard in shards { positions.set(shard.number, shard.index) }
    // Release: pairs with the acquire in `otherCount`, so that who sees the number sees the positions.
    others.store(shards.count, ordering: .releasing)
  }

  @inline(__always) subscript(position: UInt64) -> SlotIndex { positions[position] }

  /// Raised where the shards begin to close, and where they have closed: odd meanwhile. Acquire: pairs with the releases in
  /// `closeShards`.
  @inline(__always) var version: UInt64 { Self.version(of: mask.load(ordering: .acquiring)) }

  @inline(__always) static func version(of mask: UInt64) -> UInt64 { mask >> versionShift }

  /// The number of indexes beside the founder's.
  var otherCount: Int { others.load(ordering: .acquiring) }

  /// The founder's part is read first: an entry that has left it for its home is counted there by then. While the shards close,
  /// it is read last.
  @inline(__always)
  private func sum<Part: AdditiveArithmetic>(_ part: (SlotIndex) -> Part) -> Part {
    while true {
      let version = version
      var sum = version & 1 == 0 ? part(positions[0]) : .zero
      for i in 0..<UInt64(otherCount) { sum += part(positions[EngineKey.firstOther + i]) }
      if version & 1 != 0 { sum += part(positions[0]) }
      // The parts are loaded with acquire: who sees that an entry has left, sees that the version was raised before.
      if self.version == version { return sum }
    }
  }

  /// The age of the next element: how many were ever allocated in all shards, and `firstAge`. Relaxed loads: a sum that is a
  /// little behind will do.
  var birthCount: UInt64 { Self.firstAge + sum { $0.births } }
  /// Below are the ages of what is restored behind all that is there (HeldShard+Restore.swift).
  static let firstAge: UInt64 = 1 << 40

  /// The entries of all shards, and their costs, as each shard last published them.
  var entryCount: Int { sum { $0.publishedCount } }
  var totalCost: UInt128 { sum { $0.publishedCost } }

  func destroy() { positions.destroy() }
}

/// The sizes at which a cache opens its other shards. Only tests change them.
final class ShardSizes: Sendable {
  /// A cache that is below both has one shard.
  let count = Atomic<Int>(16_384)
  let byteCount = Atomic<Int>(8 << 20)
  /// A shard is worth opening when its share of the limits on entries and costs has at least so many entries, and its share of
  /// a byte limit at least so many slabs.
  let entriesPerShard = Atomic<Int>(262_144)
  let slabsPerShard = Atomic<Int>(64)
  /// Where limits leave fewer entries for each, the shards close.
  let leastEntriesPerShard = Atomic<Int>(64)
  #if DEBUG
    /// Called by readers before each of their looks, with its number, so that a test can do something between two looks.
    let lookHook = AtomicLazyReference<LookHook>()
  #endif
}

#if DEBUG
  final class LookHook: Sendable {
    let body: @Sendable (Int) -> Void
    init(_ body: @escaping @Sendable (Int) -> Void) { self.body = body }
  }
#endif

/// The looks of a reader: in the key's home; while the founder is draining, in the founder, and where an entry has moved
/// meanwhile, in the home once more (CacheShards+Opening.swift).
struct ShardLooks {
  private let home: UInt64
  private let isDraining: Bool
  /// `CacheBase.moveCount` before the first look.
  private var moves: UInt64 = 0
  private var number = 0
  private(set) var position: UInt64

  @inline(__always)
  init(_ key: EngineKey, _ mask: UInt64, _ base: CacheBase) {
    home = key.shardHash & mask
    isDraining = mask & CacheShards.draining != 0
    // Acquire: pairs with the release in `takeOver`.
    if isDraining { moves = base.moveCount.load(ordering: .acquiring) }
    position = home
  }

  /// Goes on to the next look; false after the last.
  @inline(__always)
  mutating func next(_ base: CacheBase) -> Bool {
    guard isDraining else { return false }
    number &+= 1
    position = number == 1 ? 0 : home
    // Relaxed: the founder's slots were loaded before, with acquire.
    return number == 1 || (number == 2 && base.moveCount.load(ordering: .relaxed) != moves)
  }

  #if DEBUG
    func callHook(_ sizes: ShardSizes) { sizes.lookHook.load()?.body(number) }
  #endif
}
