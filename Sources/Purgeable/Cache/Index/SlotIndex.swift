// SPDX-License-Identifier: MIT
// The index of one shard: 64-byte buckets of eight slots, two buckets for every tag, read without a lock.
//
//     tag --> bucket a = tag * buckets / 2^26          |s|s|s|s|s|s|s|s|   one cache line
//         \-> bucket b = tag' * buckets / 2^26         |s|s|s|s|s|s|s|s|
//
// Sizes grow by a quarter, so that a full table of some size is never less than two thirds full after it grew. The smallest table
// lies in the index's first page, its home. Every other size has a mapping of its own, which stays mapped once it was used. The
// memory of a table that is no longer current goes back to the system, and the table then reads as empty. A reader that was still
// looking at it finds afterwards that `current` has changed, and looks again.

import CPurgeable
import Synchronization

/// A handle of one shard's index: a plain pointer, so that a look-up touches no reference count.
///
/// `@unchecked Sendable`: the words are atomics; everything but look-ups happens under the shard's mutex.
@safe struct SlotIndex: @unchecked Sendable {
  /// The home: 4 KiB, of which the words take 1,280 bytes, an owner's notes 768 (`notes`), and the smallest table the other half.
  /// Behind it, on a page that is not touched before, the last uses of that table's entries.
  /// What every look-up loads is rarely written, and shares no cache line (8 words) with what stores or look-ups write.
  ///
  /// [0] `current`: a version in the upper bits, the size class in the lower 8; 0 in a forked child, where all of this is wiped.
  /// [1] whether the ghost may remember a key (`remembersKeys`). [2] and [3] tables of the cache (`sumsWord`, `slabNotesWord`).
  /// From 8 on the tables' addresses by size class, from 72 on their numbers of buckets. The last class of all has the first word
  /// of a line of counters; a table of that size, of 800 MB, does not notice.
  /// From 65 on: the ageing hand's steps; the same when the policy last evicted for a limit; births; the shard's sums
  /// (`publish`); whether last uses are kept. From 129 on, a line for every few processors: hits, misses, and misses with no
  /// reason known.
  private let words: SlotPointer

  private static let basesAt = 8
  private static let bucketsAt = 8 + 64
  private static let handAt = 65
  private static let handAtEvictionAt = 66
  private static let birthsAt = 67
  private static let countAt = 68
  private static let lowCostAt = 69
  private static let highCostAt = 70
  private static let keepsUsesAt = 71
  private static let lookUpsAt = 129
  /// A power of two.
  private static let lookUpLineCount = 4
  private static let wordCount = lookUpsAt - 1 + 8 * lookUpLineCount
  static let homeBytes = 4096
  private static let smallestTableAt = 2048
  static let classCount = 57
  static let slotsPerBucket = 8
  /// 4 KiB, the smallest page.
  private static let slotsPerTouch = 512

  /// A table as one look-up sees it.
  @safe struct Table {
    let word: UInt64
    let slots: SlotPointer?
    let bucketCount: UInt64

    /// The first slot of the first and of the second bucket of an identity.
    @inline(__always) func buckets(of identity: UInt64) -> (Int, Int) {
      let tag = identity >> Slot.tagShift
      let other = (tag &* 0x2F0_B4C7 &+ 0x1D3_A5B9) & ((1 << Slot.tagBits) - 1)
      let first = (tag &* bucketCount) >> Slot.tagBits
      let second = (other &* bucketCount) >> Slot.tagBits
      return (Int(truncatingIfNeeded: first) &* 8, Int(truncatingIfNeeded: second) &* 8)
    }

    var slotCount: Int { Int(bucketCount) * SlotIndex.slotsPerBucket }

    /// Of the entry of one of the table's slots.
    @inline(__always) func lastUse(of slot: SlotPointer) -> LastUse {
      unsafe lastUse(at: (slot.raw - (slots ?? slot).raw) / MemoryLayout<UInt64>.stride)
    }
    @inline(__always) fileprivate func lastUse(at number: Int) -> LastUse {
      LastUse(at: number, behind: slots!, slotCount: slotCount)
    }

    /// Prefetches the two buckets of an identity.
    @inline(__always) func prefetch(identity: UInt64) { candidates(of: identity).prefetch() }

    /// In a pass over this table: prefetches the two buckets in another one, or in this, of a slot that comes soon. Where slots
    /// come in the order of their first buckets, the second ones are scattered.
    @inline(__always) func prefetch(aheadOf number: Int, in other: Table) {
      let ahead = number &+ 16
      if let slots, ahead < slotCount { other.prefetch(identity: Slot(bits: slots[ahead].relaxed).identity) }
    }

    /// The slots in use in an identity's two buckets, whatever their identity.
    @inline(__always) func neighbours(of identity: UInt64) -> Candidates { Candidates(self, identity, mask: 0) }

    /// The slots with the identity.
    @inline(__always) func candidates(of identity: UInt64) -> Candidates { Candidates(self, identity, mask: .max) }
  }

  /// A look through two buckets. Acquire: pairs with the release that stored a slot.
  struct Candidates: Sequence, IteratorProtocol {
    private let slots: SlotPointer?
    private let identity: UInt64
    /// Which bits of it count.
    private let mask: UInt64
    private var at: Int
    private var end: Int
    /// Negative: the second bucket's turn has come, or there is none, as for a few identities.
    private var second: Int

    @inline(__always) fileprivate init(_ table: Table, _ identity: UInt64, mask: UInt64) {
      slots = table.slots
      (self.identity, self.mask) = (identity, mask)
      (at, second) = table.buckets(of: identity)
      end = at &+ SlotIndex.slotsPerBucket
      if at == second { second = -1 }
    }

    /// Prefetches both buckets, since the slot may be in either.
    @inline(__always) func prefetch() {
      guard let slots else { return }
      slots[at].prefetch()
      if second >= 0 { slots[second].prefetch() }
    }

    @inline(__always) mutating func next() -> FoundSlot? {
      guard let slots else { return nil }
      while true {
        while at < end {
          let pointer = slots[at]
          at &+= 1
          let slot = Slot(bits: pointer.acquired)
          if !slot.isEmpty, (slot.identity ^ identity) & mask == 0 { return FoundSlot(pointer: pointer, slot: slot) }
        }
        guard second >= 0 else { return nil }
        (at, end, second) = (second, second &+ SlotIndex.slotsPerBucket, -1)
      }
    }
  }

  /// An empty index of the smallest size; nil when there is no memory.
  init?() {
    guard let raw = unsafe purgeable_bookkeeping_map(Self.mappedHomeBytes) else { return nil }
    words = unsafe SlotPointer(raw, count: Self.homeBytes / 8)
    beginAnew()
  }

  /// Unmaps all of it. No thread may use the index any more.
  func destroy() {
    for sizeClass in 1..<Self.classCount {
      if let slots = table(sizeClass).slots {
        unsafe purgeable_bookkeeping_unmap(slots.raw, Self.mappedBytes(of: sizeClass))
      }
    }
    unsafe purgeable_bookkeeping_unmap(words.raw, Self.mappedHomeBytes)
  }

  // MARK: Home

  /// Memory in the home for small data of the index's owner. Zeros at first and after a fork.
  var notes: UnsafeMutableRawBufferPointer {
    unsafe UnsafeMutableRawBufferPointer(
      start: words[Self.wordCount].raw, count: Self.smallestTableAt - Self.wordCount * MemoryLayout<UInt64>.stride)
  }
  /// Words for what begins in the founder's home: the tables of page sums and of notes on slabs.
  var sumsWord: SlotPointer { words[2] }
  var slabNotesWord: SlotPointer { words[3] }

  /// How many elements were ever allocated in the shard. Changed under its mutex.
  var births: UInt64 { words[Self.birthsAt].relaxed }
  func countBirth() { words[Self.birthsAt].store(relaxed: births &+ 1) }

  /// Whether the shard's ghost may have a reason for a miss. Changed under the shard's mutex.
  var remembersKeys: Bool { words[1].relaxed != 0 }
  func noteRemembers(_ remembers: Bool) {
    if remembersKeys != remembers { words[1].store(relaxed: remembers ? 1 : 0) }
  }

  // MARK: The shard's sums, for readers without its mutex

  /// While the upper half of the cost changes.
  private static let changing = UInt64.max

  /// Shard's mutex held.
  @inline(__always) func publish(count: Int, cost: UInt128) {
    // Release: pairs with the acquire in `publishedCount`. Who sees that an entry has left one shard for another sees it there.
    words[Self.countAt].store(releasing: UInt64(bitPattern: Int64(count)))
    let high = UInt64(truncatingIfNeeded: cost >> 64)
    let highCost = words[Self.highCostAt]
    let isOtherHigh = highCost.relaxed != high
    // Release, twice: a reader that finds the new lower half finds the mark or the new upper half.
    if isOtherHigh { highCost.store(releasing: Self.changing) }
    words[Self.lowCostAt].store(releasing: UInt64(truncatingIfNeeded: cost))
    if isOtherHigh { highCost.store(releasing: high) }
  }

  /// As it was last published.
  var publishedCount: Int { Int(Int64(bitPattern: words[Self.countAt].acquired)) }
  var publishedCost: UInt128 {
    while true {
      let high = words[Self.highCostAt].acquired
      let low = words[Self.lowCostAt].acquired
      if high != Self.changing, words[Self.highCostAt].relaxed == high { return UInt128(high) << 64 | UInt128(low) }
    }
  }

  // MARK: Sizes

  /// 32 buckets, which is half of the home, then 64, one page, growing by a quarter, rounded to whole pages of 64.
  static func bucketCount(of sizeClass: Int) -> Int {
    if sizeClass == 0 { return 32 }
    var count = 64.0
    for _ in 1..<sizeClass { count *= 1.25 }
    return (Int(count) + 63) / 64 * 64
  }

  /// The next size with more buckets: some small sizes are rounded to the same number. A full table does not fit well into one
  /// that is no larger. `classCount` after the last.
  static func nextSizeClass(after sizeClass: Int) -> Int {
    (sizeClass + 1..<classCount).first { bucketCount(of: $0) > bucketCount(of: sizeClass) } ?? classCount
  }

  static func byteCount(of sizeClass: Int) -> Int { bucketCount(of: sizeClass) * 64 }

  var sizeClass: Int { Int(words[0].relaxed & 0xFF) }

  private static func lastUseBytes(of sizeClass: Int) -> Int { byteCount(of: sizeClass) / 2 }
  private static func mappedBytes(of sizeClass: Int) -> Int { byteCount(of: sizeClass) + lastUseBytes(of: sizeClass) }
  private static var mappedHomeBytes: Int { homeBytes + lastUseBytes(of: 0) }

  /// Ordinary memory in use: the home, the present table where that lies elsewhere, and last uses.
  var byteCount: Int { byteCount(ofSize: sizeClass) }
  func byteCount(ofSize sizeClass: Int) -> Int {
    Self.homeBytes + (sizeClass == 0 ? 0 : Self.byteCount(of: sizeClass))
      + (keepsLastUses ? Self.lastUseBytes(of: sizeClass) : 0)
  }

  /// Whether last uses are kept, of all entries. Changed under the shard's mutex.
  var keepsLastUses: Bool { words[Self.keepsUsesAt].relaxed != 0 }
  func keepLastUses() { words[Self.keepsUsesAt].store(relaxed: 1) }

  /// Whether this is a forked child in which the index reads as zeros.
  var isWiped: Bool { words[0].acquired == 0 }

  /// Maps the table of a size, if it is not mapped yet.
  private func map(_ sizeClass: Int) -> Bool {
    if words[Self.basesAt + sizeClass].relaxed != 0 { return true }
    guard let raw = unsafe purgeable_bookkeeping_map(Self.mappedBytes(of: sizeClass)) else { return false }
    words[Self.basesAt + sizeClass].store(relaxed: UInt64(UInt(bitPattern: raw)))
    return true
  }

  private func table(_ sizeClass: Int, word: UInt64 = 0) -> Table {
    let address = words[Self.basesAt + sizeClass].relaxed
    let buckets = words[Self.bucketsAt + sizeClass].relaxed
    return Table(word: word, slots: SlotPointer(address: address), bucketCount: buckets)
  }

  // MARK: Looking

  /// The present table. The acquire pairs with the release in `resize`, so the table's address is visible.
  @inline(__always) func current() -> Table {
    let word = words[0].acquired
    return table(Int(word & 0xFF), word: word)
  }

  /// Whether a table that was looked through is still the present one: only then is "not found" an answer.
  @inline(__always) func isCurrent(_ table: Table) -> Bool {
    atomicMemoryFence(ordering: .acquiring)
    return words[0].relaxed == table.word
  }

  /// Calls `body` for the slots in use, in no order. Under the shard's mutex.
  func forEachSlot(_ body: (Slot) -> Void) {
    let table = current()
    guard let slots = table.slots else { return }
    for i in 0..<table.slotCount {
      let slot = Slot(bits: slots[i].relaxed)
      if !slot.isEmpty { body(slot) }
    }
  }

  /// Whether there is a slot with an identity.
  func has(_ identity: UInt64) -> Bool {
    while true {
      let table = current()
      for _ in table.candidates(of: identity) { return true }
      if isCurrent(table) { return false }
    }
  }

  /// The line of counters for the processor that this thread runs on: threads that look up at the same time write to different
  /// lines, as long as there are no more of them than lines.
  @inline(__always) private var lookUps: SlotPointer {
    words[Self.lookUpsAt &+ 8 &* (Int(truncatingIfNeeded: purgeable_processor_hint()) & (Self.lookUpLineCount - 1))]
  }

  private func sum(_ word: Int) -> UInt64 {
    (0..<Self.lookUpLineCount).reduce(0) { $0 &+ words[Self.lookUpsAt + 8 * $1 + word].relaxed }
  }

  @inline(__always) func countHit() {
    let before = lookUps.add(1)
    if before % Self.hitsPerAging == 0 { age() }
  }
  @inline(__always) func countMiss() { lookUps[1].add(1) }
  /// A miss whose reason nobody knows, beside `countMiss`.
  @inline(__always) func countUnknownMiss() { lookUps[2].add(1) }
  var hitCount: UInt64 { sum(0) }
  var missCount: UInt64 { sum(1) }
  var unknownMissCount: UInt64 { sum(2) }

  // MARK: Ageing
  //
  // Counters of use go up to 3. In a cache that always evicts for a limit, eviction lowers them again. In a cache that is only
  // read, nearly all of them would soon be at 3, and would tell nothing when memory gets short. There, reads age the counters: a
  // hand goes round the table, two buckets every 64 hits, and halves the counters it finds. Hits are counted by processor, and
  // each 64th of a line moves the hand.

  /// A power of two.
  private static let hitsPerAging: UInt64 = 64
  private static let slotsPerAging = 16

  /// Notes an eviction for a limit: reads age counters only after four hits for each slot without one.
  func noteEviction() { words[Self.handAtEvictionAt].store(relaxed: words[Self.handAt].relaxed) }

  /// Relaxed, and the exchange may fail: then a reader has just used the entry.
  @inline(never)
  private func age() {
    let hand = words[Self.handAt].add(1)
    let table = current()
    guard let slots = table.slots else { return }
    // The table has a whole number of such steps: its size is a multiple of 256 slots.
    let stepsPerRound = UInt64(table.slotCount / Self.slotsPerAging)
    guard hand &- words[Self.handAtEvictionAt].relaxed >= stepsPerRound else { return }
    let start = Int(hand % stepsPerRound) * Self.slotsPerAging
    for i in start..<start + Self.slotsPerAging {
      let slot = Slot(bits: slots[i].relaxed)
      if slot.counter > 0 { slots[i].tryExchange(slot.bits, for: slot.with(counter: S3FIFOOrder().aged(slot.counter))) }
    }
  }

  // MARK: Changing (the shard's mutex held)

  /// Puts a slot into the emptier of its two buckets. Answers its number in the table; nil: both are full. `lastUse`: of its
  /// entry, where that is kept. `table`: nil for the present one.
  func insert(_ slot: Slot, lastUse: UseTime? = nil, into table: Table? = nil) -> Int? {
    assert(!slot.isEmpty, "PurgeableCache: an empty slot is inserted")
    let table = table ?? current()
    guard let slots = table.slots else { return nil }
    let (first, second) = table.buckets(of: slot.identity)
    let inFirst = Self.room(in: slots, at: first)
    // When more than half of the first bucket is empty, the second is not looked at.
    let inSecond = inFirst.count > Self.slotsPerBucket / 2 ? (count: 0, at: 0) : Self.room(in: slots, at: second)
    guard inFirst.count + inSecond.count > 0 else { return nil }
    let best = inFirst.count >= inSecond.count ? inFirst.at : inSecond.at
    if let lastUse { table.lastUse(at: best).set(lastUse) }
    // Release: a reader that sees the slot sees the committed element, and its last use.
    slots[best].store(releasing: slot.bits)
    return best
  }

  /// How many slots of a bucket are empty, and one of them.
  @inline(__always)
  private static func room(in slots: SlotPointer, at start: Int) -> (count: Int, at: Int) {
    var count = 0
    var at = start
    for i in start..<start &+ slotsPerBucket where slots[i].relaxed == 0 {
      count &+= 1
      at = i
    }
    return (count, at)
  }

  /// Prefetches the two buckets of an identity.
  @inline(__always) func prefetch(identity: UInt64) { current().prefetch(identity: identity) }

  /// The slot of an entry whose place is known.
  func find(identity: UInt64, place: UInt64) -> FoundSlot? {
    for found in current().candidates(of: identity) where found.slot.place == place { return found }
    return nil
  }

  /// The last use of an entry that was found in the present table, where last uses are kept.
  func lastUse(of found: FoundSlot) -> UseTime? { keepsLastUses ? current().lastUse(of: found.pointer).time : nil }

  /// The same of an entry whose place is known.
  func lastUse(identity: UInt64, place: UInt64) -> UseTime? {
    keepsLastUses ? find(identity: identity, place: place).flatMap { lastUse(of: $0) } : nil
  }

  /// Moves every slot into the table of another size. False, with nothing changed, when there is no memory or the slots do not
  /// fit. `order`: whose positions are the numbers of slots, where there is one. Allocates nothing: a closure in place of `order`
  /// would, where it is made of an optional.
  func resize(to sizeClass: Int, carryingOver order: (any EntryOrder)? = nil) -> Bool {
    let old = current()
    let oldClass = Int(old.word & 0xFF)
    guard sizeClass >= 0, sizeClass < Self.classCount, sizeClass != oldClass, map(sizeClass) else { return false }
    guard let slots = old.slots else { return false }
    let new = table(sizeClass)
    assert(new.slotCount % (2 * Self.slotsPerBucket) == 0, "PurgeableCache: a table with an odd number of buckets")
    // Each page is written before it is read. If it were read first, the kernel would map its page of zeros there and replace it
    // at the first write, which interrupts the other processors.
    if let newSlots = new.slots {
      for i in stride(from: 0, to: new.slotCount, by: Self.slotsPerTouch) { newSlots[i].store(relaxed: 0) }
    }
    let keepsLastUses = keepsLastUses
    func carry(_ number: Int) -> Int? {
      insert(Slot(bits: slots[number].relaxed), lastUse: keepsLastUses ? old.lastUse(at: number).time : nil, into: new)
    }
    let isDone =
      if let order {
        order.resize(slotCount: new.slotCount) { carry(Int($0)).map { UInt32(truncatingIfNeeded: $0) } }
      } else {
        (0..<old.slotCount).allSatisfy { number in
          old.prefetch(aheadOf: number, in: new)
          return slots[number].relaxed == 0 || carry(number) != nil
        }
      }
    guard isDone else {
      if let newSlots = new.slots { clear(newSlots, sizeClass) }
      return false
    }
    let version = (old.word >> 8) &+ 1
    // Release: pairs with `current`. The old table is emptied only after this, so a reader that finds it empty finds the new word
    // too.
    words[0].store(releasing: version << 8 | UInt64(sizeClass))
    clear(slots, oldClass)
    return true
  }

  private func clear(_ slots: SlotPointer, _ sizeClass: Int) {
    // The smallest table shares its page with other data, so it is cleared slot by slot.
    let byteCount = keepsLastUses ? Self.mappedBytes(of: sizeClass) : Self.byteCount(of: sizeClass)
    if sizeClass > 0, unsafe purgeable_bookkeeping_clear(slots.raw, byteCount) == 0 { return }
    // So is memory that the kernel did not take back. Release: as in `empty`.
    for i in 0..<Self.bucketCount(of: sizeClass) * Self.slotsPerBucket { slots[i].store(releasing: 0) }
  }

  /// Makes the index empty and as small as it can be.
  func empty() {
    let old = current()
    // Release, before any slot is emptied: a reader that finds a slot empty finds that its table is no longer the present one.
    // The table of the smallest size is mapped from the beginning, and was cleared when it was left.
    words[0].store(releasing: ((old.word >> 8) &+ 1) << 8)
    if let slots = old.slots { clear(slots, Int(old.word & 0xFF)) }
    words[Self.keepsUsesAt].store(relaxed: 0)
  }

  /// The number of a slot in the present table. Shard's mutex held.
  func number(of pointer: SlotPointer) -> Int {
    guard let slots = current().slots else { return 0 }
    assert(unsafe pointer.raw >= slots.raw, "PurgeableCache: a slot of another table")
    return unsafe (pointer.raw - slots.raw) / MemoryLayout<UInt64>.stride
  }

  /// Makes the index empty: at first, and in a forked child, where the parent's tables read as zeros.
  func beginAnew() {
    for sizeClass in 0..<Self.classCount {
      words[Self.bucketsAt + sizeClass].store(relaxed: UInt64(Self.bucketCount(of: sizeClass)))
    }
    let smallest = unsafe words.raw + Self.smallestTableAt
    words[Self.basesAt].store(relaxed: UInt64(UInt(bitPattern: smallest)))
    words[0].store(releasing: 1 << 8)
  }
}
