// SPDX-License-Identifier: MIT
// A slot: the 8 bytes that the index keeps of an entry.
//
//   63            38 37      36     35    34 33          0
//   |      tag      | tracked |  head  | counter | place + 1 |
//
// The tag is part of the key's hash and decides the entry's two buckets, whatever the number of buckets: so the index grows and
// shrinks without looking at a key. Place 0 exists, hence "+ 1": a slot of 0 is empty.

struct Slot: Equatable {
  var bits: UInt64

  static let placeBits: UInt32 = 34
  static let placeMask: UInt64 = (1 << 34) - 1
  static let counterShift: UInt64 = 34
  static let counterMask: UInt64 = 3 << 34
  /// Uses are counted up to here.
  static let highestCounter: UInt64 = 3
  /// The entry has a head (EntryHead.swift).
  static let headFlag: UInt64 = 1 << 36
  static let trackedFlag: UInt64 = 1 << 37
  static let tagShift: UInt64 = 38
  static let tagBits: UInt64 = 26
  /// Places that a slot can name: 256 GiB of slabs.
  static let placeLimit: UInt64 = placeMask

  @inline(__always) init(bits: UInt64) { self.bits = bits }

  @inline(__always) init(identity: UInt64, place: UInt64, counter: UInt64, hasHead: Bool) {
    assert(place < Self.placeLimit, "PurgeableCache: a place that no slot can name")
    assert(counter <= Slot.highestCounter, "PurgeableCache: a counter of more than two bits")
    assert(identity & ~Self.identityMask == 0, "PurgeableCache: an identity with other bits than tag and flag")
    bits = identity | (place + 1) | counter << Self.counterShift | (hasHead ? Self.headFlag : 0)
  }

  @inline(__always) var isEmpty: Bool { bits == 0 }
  @inline(__always) var place: UInt64 { (bits & Self.placeMask) - 1 }
  @inline(__always) var counter: UInt64 { (bits & Self.counterMask) >> Self.counterShift }
  /// The slot's bits with another counter.
  @inline(__always) func with(counter: UInt64) -> UInt64 { bits & ~Self.counterMask | counter << Self.counterShift }
  @inline(__always) var hasHead: Bool { bits & Self.headFlag != 0 }
  @inline(__always) var isTracked: Bool { bits & Self.trackedFlag != 0 }
  /// Tag and tracked flag, in place: what a look-up compares.
  @inline(__always) var identity: UInt64 { bits & (~UInt64(0) << Self.tagShift | Self.trackedFlag) }
  @inline(__always) func isSameEntry(as other: Slot) -> Bool { (bits ^ other.bits) & ~Self.counterMask == 0 }

  static let identityMask: UInt64 = ~UInt64(0) << tagShift | trackedFlag
}

/// A key as the engine sees it: its shard, and its identities in the index and in the ghost.
struct EngineKey {
  /// Decides the shard, by bits of the hash that the tag does not use: masked, it is a position in `ShardPositions`.
  let shardHash: UInt64
  /// Tag and tracked flag, as they stand in a slot.
  let identity: UInt64
  /// The key's identity in the ghost: always from the hash, because a tracked key's number is used again.
  let ghostIdentity: UInt64

  /// A key that has bytes of its own.
  @inline(__always) init(hash: UInt64) {
    shardHash = Self.shardHash(hash)
    identity = hash & ~UInt64(0) << Slot.tagShift
    ghostIdentity = identity
  }

  /// A key that is kept in a table in ordinary memory under a number, unique in its shard. The tag is that number, spread over
  /// all tags by a multiplication that can be undone, so that the number can be told from the slot alone.
  init(trackedNumber: UInt32, hash: UInt64) {
    assert(trackedNumber < Self.trackedNumberLimit, "PurgeableCache: a number that no tag can tell")
    shardHash = Self.shardHash(hash)
    ghostIdentity = hash & ~UInt64(0) << Slot.tagShift
    let spread = (UInt64(trackedNumber) &* Self.spreadFactor) & Self.tagMask
    identity = spread << Slot.tagShift | Slot.trackedFlag
  }

  /// The founder's position is 0, where a mask of 0 leads; the positions of the others begin here.
  static let firstOther: UInt64 = 16
  /// How many others there may be.
  static let otherCount = Int(firstOther)
  /// Has no bits but those of a position, so that a mask may have others (`ShardMask`).
  @inline(__always) static func shardHash(_ hash: UInt64) -> UInt64 { hash & (firstOther - 1) | firstOther }

  var isTracked: Bool { identity & Slot.trackedFlag != 0 }
  var trackedNumber: UInt32 { Self.trackedNumber(of: Slot(bits: identity)) }

  /// The number that a tracked slot stands for.
  static func trackedNumber(of slot: Slot) -> UInt32 {
    UInt32(truncatingIfNeeded: ((slot.bits >> Slot.tagShift) &* inverseFactor) & tagMask)
  }

  static let trackedNumberLimit: UInt32 = 1 << 26
  private static let tagMask: UInt64 = (1 << Slot.tagBits) - 1
  private static let spreadFactor: UInt64 = 0x278_DDE7
  /// Its inverse modulo 2^26.
  private static let inverseFactor: UInt64 = 0x252_E5D7
}

//   63 ...... 5   version: raised when all entries begin to move, and when they have
//    4 ...... 0   masks a key's `shardHash`, which has the bit of 16 and no higher one: 0 leads to the founder, 16 + n - 1 to one
//                 of the n others, n a power of two

/// Where entries are (CacheShards+Opening.swift): which shard a key belongs to.
struct ShardMask: Equatable {
  let bits: UInt64
  private static let versionShift: UInt64 = 5

  /// The next version.
  func next(openCount: Int) -> Self {
    let version = bits >> Self.versionShift + 1
    return Self(bits: version << Self.versionShift | (openCount > 1 ? EngineKey.firstOther | UInt64(openCount - 1) : 0))
  }

  /// The position of the shard that a key belongs to.
  @inline(__always) func home(of shardHash: UInt64) -> UInt64 { shardHash & bits }

  @inline(__always) var isMoving: Bool { bits & 1 << Self.versionShift != 0 }
  @inline(__always) var comesFromFounder: Bool { bits & 2 << Self.versionShift == 0 }

  /// The number of shards that keys belong to.
  var openCount: Int { Int(bits & (EngineKey.firstOther - 1)) + 1 }
}
