// SPDX-License-Identifier: MIT
// The shards of a cache, by the position that a key's hash leads to.
//
//     position   0        1 ... 15   16  17  18 ... 31
//                founder  unused     |   the others  |
//
// Which bits of a hash are a position is said by the mask (`ShardMask`).

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
  private let maskBits = Atomic<UInt64>(0)
  /// Odd while entries move from shard to shard.
  private let moves = Atomic<UInt64>(0)
  /// The totals when the last move began.
  private let movedCount = Atomic<Int>(0)
  private let movedCostHigh = Atomic<UInt64>(0)
  private let movedCostLow = Atomic<UInt64>(0)

  init(_ founder: SlotIndex) { positions = ShardPositions(founder) }

  /// Adds the indexes of all shards but the founder, together and once.
  func publish(_ shards: [EngineShard]) {
    assert(otherCount == 0, "PurgeableCache: shards are published twice")
    for shard in shards { positions.set(shard.number, shard.index) }
    // Release: pairs with the acquire in `otherCount`, so that who sees the number sees the positions.
    others.store(shards.count, ordering: .releasing)
  }

  @inline(__always) subscript(position: UInt64) -> SlotIndex { positions[position] }

  /// Of the shard that a key belongs to now.
  @inline(__always) func home(of key: EngineKey) -> SlotIndex { self[mask.home(of: key.shardHash)] }

  /// Acquire: pairs with the releases of moves. Who sees a mask sees the shards it leads to, and what their slots were then.
  @inline(__always) var mask: ShardMask { ShardMask(bits: maskBits.load(ordering: .acquiring)) }

  /// The number of indexes beside the founder's.
  var otherCount: Int { others.load(ordering: .acquiring) }

  // MARK: Moves, with the mutexes of all shards held

  /// Raised when a move begins, and when it ends.
  var moveNumber: UInt64 { moves.load(ordering: .acquiring) }

  func beginMove() {
    let (count, cost) = (entryCount, totalCost)
    // Release, thrice: who sees one of these beside an earlier number sees, when it looks again, that the number has changed.
    movedCount.store(count, ordering: .releasing)
    movedCostHigh.store(UInt64(truncatingIfNeeded: cost >> 64), ordering: .releasing)
    movedCostLow.store(UInt64(truncatingIfNeeded: cost), ordering: .releasing)
    moves.add(1, ordering: .acquiringAndReleasing)
  }

  func endMove() { moves.add(1, ordering: .releasing) }

  /// `openCount`: of the shards that entries are in, or move to or from.
  func publishNextMask(openCount: Int) { maskBits.store(mask.next(openCount: openCount).bits, ordering: .releasing) }

  // MARK: Totals

  @inline(__always)
  private func sum<Part: AdditiveArithmetic>(_ part: (SlotIndex) -> Part) -> Part {
    var sum = part(positions[0])
    for i in 0..<UInt64(otherCount) { sum += part(positions[EngineKey.firstOther + i]) }
    return sum
  }

  /// A total between two moves; while entries move, as it was before. All loads are acquire, so who sees what a move has stored
  /// sees that the number has changed.
  @inline(__always)
  private func total<Part: AdditiveArithmetic>(_ part: (SlotIndex) -> Part, moving: @autoclosure () -> Part) -> Part {
    while true {
      let number = moveNumber
      let total = number & 1 != 0 ? moving() : sum(part)
      if moveNumber == number { return total }
    }
  }

  /// The entries of all shards, and their costs, as each shard last published them.
  var entryCount: Int { total(\.publishedCount, moving: movedCount.load(ordering: .acquiring)) }
  var totalCost: UInt128 {
    total(
      \.publishedCost,
      moving: UInt128(movedCostHigh.load(ordering: .acquiring)) << 64 | UInt128(movedCostLow.load(ordering: .acquiring)))
  }

  /// The age of the next element: how many were ever allocated in all shards, and `firstAge`. Relaxed loads: a sum that is a
  /// little behind will do.
  var birthCount: UInt64 { Self.firstAge + sum { $0.births } }
  /// Below are the ages of what is restored behind all that is there (HeldShard+Restore.swift).
  static let firstAge: UInt64 = 1 << 40

  func destroy() { positions.destroy() }
}

/// The sizes at which a cache opens its other shards. Only tests change them.
final class ShardSizes: Sendable {
  /// A cache that is below both has one shard.
  let count = Atomic<Int>(16_384)
  let byteCount = Atomic<Int>(8 << 20)
  /// A shard is worth opening when its share of the limits on entries and costs has at least so many entries, and its share of
  /// a byte limit at least so many slabs.
  let entriesPerShard = Atomic<Int>(16_384)
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

/// The looks of a reader: in the key's home; while entries move, where they come from, and then where they go to.
struct ShardLooks {
  private(set) var position: UInt64
  private let last: UInt64
  private var isLast: Bool
  #if DEBUG
    private var number = 0
  #endif

  @inline(__always)
  init(_ key: EngineKey, _ mask: ShardMask) {
    let home = mask.home(of: key.shardHash)
    (position, last) = mask.isMoving && mask.comesFromFounder ? (0, home) : (home, 0)
    isLast = !mask.isMoving
  }

  /// Goes on to the next look; false after the last.
  @inline(__always)
  mutating func next() -> Bool {
    guard !isLast else { return false }
    (position, isLast) = (last, true)
    #if DEBUG
      number += 1
    #endif
    return true
  }

  #if DEBUG
    func callHook(_ sizes: ShardSizes) { sizes.lookHook.load()?.body(number) }
  #endif
}
