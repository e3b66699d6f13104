// SPDX-License-Identifier: MIT
// Fingerprints of keys whose entries left not long ago: S3-FIFO's ghost queue, and the reasons for misses.
//
// A queue of as many keys as the main queue holds would need a link or a ring beside a table. Here a fingerprint carries the time
// it was noted, counted in insertions; it is forgotten when it is older than the capacity, or when its bucket needs the room.
//
//   31         15 14    12 11          0
//   | fingerprint | reason | time stamp |
//
// What left main for a limit is remembered in the room that the others leave, and is none of the insertions that time is counted
// in: so the others are remembered as long as if there were no such keys.

/// Its allocation may fail: then there is no ghost, or the old one stays. Only stores make it or let it grow
/// (`HeldShard.readyGhost`), never code that gives memory back.
struct Ghost: ~Copyable {
  enum Reason: UInt32 {
    case evicted = 0
    case removed = 1
    case discarded = 2
    case expired = 3
    case evictedFromMain = 4
  }

  /// Where its bytes are counted.
  private let totals: CacheTotals?
  /// There are some wherever `rememberedLimit` is above 0.
  private var entries = BookkeepingArray<UInt32>()
  /// How many keys it remembers.
  private(set) var rememberedLimit = 0
  private var insertionCount: UInt64 = 0
  private var stampUnit: UInt64 = 1

  private static let bucketSize = 8
  /// A table takes no more than this for each key, whole pages aside.
  static let mostBytesOfKey = 6
  private static let stampMask: UInt32 = 0xFFF
  private static let fingerprintMask: UInt32 = 0x1FFFF
  private static let reasonAt: UInt32 = 12
  private static let fingerprintAt: UInt32 = 15
  /// A fingerprint's age in stamps at which it is forgotten.
  private static let maximumAge: UInt32 = 0x800

  init(countedIn totals: CacheTotals? = nil) { self.totals = totals }

  var byteCount: Int { entries.byteCount }

  /// Prefetches the bucket that `note` will touch.
  func prefetch(_ identity: UInt64) {
    guard rememberedLimit > 0 else { return }
    entries.prefetch(bucket(of: Self.mixed(identity)))
  }

  /// Makes room for the last `newCapacity` keys, if that is much more than now. All fingerprints are forgotten then, since a
  /// fingerprint alone does not tell its bucket in a table of another size. The ghost never shrinks here: a cache that has just
  /// lost most of its entries will be asked for them. Without memory, nothing is changed.
  mutating func reserve(_ newCapacity: Int) {
    guard newCapacity > rememberedLimit + rememberedLimit / 2 else { return }
    let before = byteCount
    let wanted = max(newCapacity, 16)
    // A third more room than keys: buckets fill unevenly. An even number: it can be halved.
    let buckets = (wanted + wanted / 3) / Self.bucketSize / 2 * 2 + 2
    guard let made = BookkeepingArray<UInt32>(zeros: buckets * Self.bucketSize) else { return }
    entries = made
    rememberedLimit = wanted
    // Rounded up: no key is forgotten for its age before `rememberedLimit` others have come.
    stampUnit = (UInt64(rememberedLimit) + UInt64(Self.maximumAge) - 1) / UInt64(Self.maximumAge)
    insertionCount = stampUnit
    noteBytes(since: before)
  }

  private func noteBytes(since before: Int) { totals?.ghostBytes.add(byteCount - before, ordering: .relaxed) }

  /// Halves the table until it remembers fewer than twice `count` keys, or cannot be halved; the younger half of each two buckets
  /// stays. For times when memory is needed more than reasons are. In place, without an allocation.
  mutating func shrink(toRemember count: Int) {
    let before = byteCount
    defer { noteBytes(since: before) }
    while rememberedLimit >= 2 * max(16, count), entries.count % (4 * Self.bucketSize) == 0 {
      // In a table of half the size, two neighbouring buckets become one. Fingerprints are written in front of those that are
      // still to be read.
      for start in stride(from: 0, to: entries.count, by: 2 * Self.bucketSize) { mergeBuckets(at: start) }
      entries.shrink(to: entries.count / 2)
      rememberedLimit /= 2
    }
  }

  /// Moves the younger half of two neighbouring buckets, youngest first, into the bucket that both become.
  private mutating func mergeBuckets(at start: Int) {
    var both = InlineArray<16, UInt32>(repeating: 0)
    for i in 0..<2 * Self.bucketSize {
      let entry = entries[start + i]
      let itsAge = entry == 0 ? .max : age(entry)
      var at = i
      while at > 0, (both[at - 1] == 0 ? .max : age(both[at - 1])) > itsAge {
        both[at] = both[at - 1]
        at -= 1
      }
      both[at] = entry
    }
    for i in 0..<Self.bucketSize { entries[start / 2 + i] = both[i] }
  }

  mutating func note(_ identity: UInt64, _ reason: Reason) {
    guard rememberedLimit > 0 else { return }
    if reason != .evictedFromMain || isBlank { insertionCount += 1 }
    insert(Self.mixed(identity), reason)
  }

  /// Whether nothing was ever noted, so that the memory need not be touched.
  private var isBlank: Bool { insertionCount <= stampUnit }

  /// Why an entry of this identity left, if that is remembered.
  func reason(of identity: UInt64) -> Reason? { memory(of: identity)?.reason }

  /// The same, and how many entries have left since then, at most.
  func memory(of identity: UInt64) -> (reason: Reason, age: Int)? {
    guard rememberedLimit > 0, !isBlank, let found = find(Self.mixed(identity)) else { return nil }
    let entry = entries[found]
    return Self.reason(of: entry).map { ($0, Int(UInt64(age(entry) + 1) * stampUnit)) }
  }

  /// Forgets a key that was stored again.
  mutating func forget(_ identity: UInt64) {
    guard rememberedLimit > 0, !isBlank, let found = find(Self.mixed(identity)) else { return }
    entries[found] = 0
  }

  mutating func removeAll() {
    let before = byteCount
    defer { noteBytes(since: before) }
    entries = BookkeepingArray()
    rememberedLimit = 0
  }

  // MARK: Inside

  /// The tag's 26 bits, mixed: the upper ones choose the bucket, and the lower 17 are the fingerprint.
  private static func mixed(_ identity: UInt64) -> UInt64 {
    let mask: UInt64 = (1 << Slot.tagBits) - 1
    let tag = (identity >> Slot.tagShift) ^ (identity & Slot.trackedFlag != 0 ? 0x155_5555 : 0)
    let once = (tag &* 0x34F_1BD5) & mask
    return ((once ^ once >> 13) &* 0x1B8_73E9) & mask
  }

  private func bucket(of mixed: UInt64) -> Int {
    assert(entries.count > 0 && entries.count % Self.bucketSize == 0, "PurgeableCache: a ghost without whole buckets")
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
      if entry != 0, entry >> Self.fingerprintAt == fingerprint, age(entry) <= Self.maximumAge { return i }
    }
    return nil
  }

  private static func reason(of entry: UInt32) -> Reason? { Reason(rawValue: entry >> reasonAt & 7) }

  private mutating func insert(_ mixed: UInt64, _ reason: Reason) {
    let fingerprint = UInt32(truncatingIfNeeded: mixed) & Self.fingerprintMask
    var entry = fingerprint << Self.fingerprintAt | reason.rawValue << Self.reasonAt | stamp
    // All zeros means empty.
    if entry == 0 { entry = Reason.removed.rawValue << Self.reasonAt }
    let start = bucket(of: mixed)
    var victim = start
    var victimAge: UInt32 = 0
    for i in start..<start + Self.bucketSize {
      let old = entries[i]
      if old == 0 || old >> Self.fingerprintAt == fingerprint {
        (victim, victimAge) = (i, .max)
        break
      }
      let itsAge = age(old) + (Self.reason(of: old) == .evictedFromMain ? Self.maximumAge + 1 : 0)
      if itsAge >= victimAge { (victim, victimAge) = (i, itsAge) }
    }
    if reason == .evictedFromMain, victimAge <= Self.maximumAge { return }
    entries[victim] = entry
  }
}
