// SPDX-License-Identifier: MIT
// What left not long ago, by fingerprint: S3-FIFO's ghost queue, and the reason for a miss.
//
// A queue of as many keys as the main queue holds would need a link or a ring beside a table. Here a fingerprint carries the time
// it was noted, counted in insertions; it is forgotten when it is older than the capacity, or when its bucket needs the room.
//
//   31         14 13    12 11          0
//   | fingerprint | reason | time stamp |

import CPurgeable

struct Ghost {
  enum Reason: UInt32 {
    case evicted = 0
    case removed = 1
    case discarded = 2
    case expired = 3
  }

  private var entries: [UInt32] = []
  private var capacity = 0
  private var insertionCount: UInt64 = 0
  private var stampUnit: UInt64 = 1

  private static let bucketSize = 8
  private static let stampMask: UInt32 = 0xFFF
  private static let fingerprintMask: UInt32 = 0x3FFFF
  /// A fingerprint's age in stamps at which it is forgotten.
  private static let maximumAge: UInt32 = 0x800

  var byteCount: Int { entries.capacity * MemoryLayout<UInt32>.stride }

  /// How many keys it remembers.
  var rememberedLimit: Int { capacity }

  /// Whether `reserve` would do anything.
  func isSmall(for newCapacity: Int) -> Bool { newCapacity > capacity + capacity / 2 }

  /// Has the processor fetch what `note` will touch.
  func prefetch(_ identity: UInt64) {
    guard capacity > 0 else { return }
    let start = bucket(of: Self.mixed(identity))
    // In bounds: a bucket of the table. Only its address is used.
    unsafe entries.withUnsafeBufferPointer { unsafe purgeable_prefetch($0.baseAddress! + start) }
  }

  /// Makes room for the last `newCapacity` keys, where that is much more than now: then it forgets what it knew, since a
  /// fingerprint alone does not say which bucket of another size it belongs to. Never smaller: a cache that has just lost most of
  /// its entries is the one that will be asked for them.
  mutating func reserve(_ newCapacity: Int) {
    guard isSmall(for: newCapacity) else { return }
    capacity = max(newCapacity, 16)
    stampUnit = max(1, UInt64(capacity) / UInt64(Self.maximumAge))
    // A third more room than keys: buckets fill unevenly.
    // An even number: it can be halved.
    let buckets = (capacity + capacity / 3) / Self.bucketSize / 2 * 2 + 2
    entries = [UInt32](repeating: 0, count: buckets * Self.bucketSize)
    insertionCount = stampUnit
  }

  /// Halves its room until it is no more than is needed for so many keys, or a little more: the younger half of each two buckets
  /// stays. For when memory is needed more than reasons are.
  mutating func shrink(toRemember count: Int) {
    while capacity >= 2 * max(16, count), entries.count % (4 * Self.bucketSize) == 0 {
      var kept: [UInt32] = []
      kept.reserveCapacity(entries.count / 2)
      for start in stride(from: 0, to: entries.count, by: 2 * Self.bucketSize) {
        // Twice as many buckets have the same upper bits, so two neighbours become one.
        let both = entries[start..<start + 2 * Self.bucketSize].sorted { ($0 == 0 ? .max : age($0)) < ($1 == 0 ? .max : age($1)) }
        kept.append(contentsOf: both.prefix(Self.bucketSize))
      }
      entries = kept
      capacity /= 2
    }
  }

  mutating func note(_ identity: UInt64, _ reason: Reason) {
    guard capacity > 0 else { return }
    insertionCount += 1
    insert(Self.mixed(identity), reason: reason.rawValue)
  }

  /// Why an entry of this identity left, if that is remembered.
  func reason(of identity: UInt64) -> Reason? {
    guard capacity > 0 else { return nil }
    return find(Self.mixed(identity)).flatMap { Reason(rawValue: (entries[$0] >> 12) & 3) }
  }

  /// Forgets one: it is back.
  mutating func forget(_ identity: UInt64) {
    guard capacity > 0, let found = find(Self.mixed(identity)) else { return }
    entries[found] = 0
  }

  mutating func removeAll() {
    entries = []
    capacity = 0
  }

  // MARK: Inside

  /// The tag's 26 bits, mixed: the upper ones lead to the bucket, the lower 18 are the fingerprint, together all of them.
  private static func mixed(_ identity: UInt64) -> UInt64 {
    let mask: UInt64 = (1 << Slot.tagBits) - 1
    let tag = (identity >> Slot.tagShift) ^ (identity & Slot.trackedFlag != 0 ? 0x155_5555 : 0)
    let once = (tag &* 0x34F_1BD5) & mask
    return ((once ^ once >> 13) &* 0x1B8_73E9) & mask
  }

  private func bucket(of mixed: UInt64) -> Int {
    let buckets = UInt64(entries.count / Self.bucketSize)
    return Int((mixed &* buckets) >> Slot.tagBits) * Self.bucketSize
  }

  private var stamp: UInt32 { UInt32(truncatingIfNeeded: insertionCount / stampUnit) & Self.stampMask }

  private func age(_ entry: UInt32) -> UInt32 { (stamp &- (entry & Self.stampMask)) & Self.stampMask }

  private func find(_ mixed: UInt64) -> Int? {
    let start = bucket(of: mixed)
    let fingerprint = UInt32(truncatingIfNeeded: mixed) & Self.fingerprintMask
    for i in start..<start + Self.bucketSize {
      let entry = entries[i]
      if entry != 0, entry >> 14 == fingerprint, age(entry) <= Self.maximumAge { return i }
    }
    return nil
  }

  private mutating func insert(_ mixed: UInt64, reason: UInt32) {
    let fingerprint = UInt32(truncatingIfNeeded: mixed) & Self.fingerprintMask
    var entry = fingerprint << 14 | reason << 12 | stamp
    // All zeros means empty.
    if entry == 0 { entry = 1 << 12 }
    let start = bucket(of: mixed)
    var victim = start
    var victimAge: UInt32 = 0
    for i in start..<start + Self.bucketSize {
      if entries[i] == 0 || entries[i] >> 14 == fingerprint {
        victim = i
        break
      }
      let itsAge = age(entries[i])
      if itsAge >= victimAge {
        victimAge = itsAge
        victim = i
      }
    }
    entries[victim] = entry
  }
}
