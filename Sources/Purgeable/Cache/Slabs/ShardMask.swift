// SPDX-License-Identifier: MIT
// Which shard a key belongs to.
//
//     63 ...... 5   version: raised when all entries begin to move, and when they have
//      4 ...... 0   masks a key's `shardHash`, which has the bit of 16 and no higher one: 0 leads to the founder, 16 + n - 1 to
//                   one of the n others, n a power of two

/// Where entries are (CacheShards+Opening.swift).
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
