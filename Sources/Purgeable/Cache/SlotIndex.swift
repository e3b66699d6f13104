// SPDX-License-Identifier: MIT
// The index of one shard: 64-byte buckets of eight slots, two buckets for every tag, read without a lock.
//
//     tag --> bucket a = tag * buckets / 2^26          |s|s|s|s|s|s|s|s|   one cache line
//         \-> bucket b = tag' * buckets / 2^26         |s|s|s|s|s|s|s|s|
//
// Sizes grow by a quarter, so that a full table is never less than two thirds full after it grew. Every size has a mapping of
// its own that stays mapped for good once it was used: a table that is left is given back to the system (it then reads as empty),
// and a reader that was still looking at it finds, after its look, that `current` has changed, and looks again.

import CPurgeable
import Synchronization

/// Words that threads share, of memory that outlives everybody who looks at it.
///
/// `@safe`: made only of mappings that stay until the cache is destroyed, and indexed only within a table's bounds.
/// `@unchecked Sendable`: all it does is atomic.
@safe struct SlotPointer: @unchecked Sendable {
  private let words: UnsafeMutablePointer<Atomic<UInt64>>

  /// Zeroed memory is valid as atomics: an `Atomic<UInt64>` is a plain word.
  init(_ start: UnsafeMutableRawPointer, count: Int) {
    unsafe words = start.bindMemory(to: Atomic<UInt64>.self, capacity: count)
  }

  init?(address: UInt64) {
    guard let words = unsafe UnsafeMutablePointer<Atomic<UInt64>>(bitPattern: UInt(address)) else { return nil }
    unsafe self.words = words
  }

  private init(_ words: UnsafeMutablePointer<Atomic<UInt64>>) { unsafe self.words = words }

  @inline(__always) subscript(index: Int) -> SlotPointer { unsafe SlotPointer(words + index) }

  var raw: UnsafeMutableRawPointer { unsafe UnsafeMutableRawPointer(words) }

  @inline(__always) func prefetch() { unsafe purgeable_prefetch(words) }
  @inline(__always) var relaxed: UInt64 { unsafe words.pointee.load(ordering: .relaxed) }
  @inline(__always) var acquired: UInt64 { unsafe words.pointee.load(ordering: .acquiring) }
  @inline(__always) func store(relaxed value: UInt64) { unsafe words.pointee.store(value, ordering: .relaxed) }
  @inline(__always) func store(releasing value: UInt64) { unsafe words.pointee.store(value, ordering: .releasing) }
  /// Answers what was there before.
  @discardableResult
  @inline(__always) func add(_ value: UInt64) -> UInt64 {
    unsafe words.pointee.wrappingAdd(value, ordering: .relaxed).oldValue
  }

  /// Exchanges, and answers what was there.
  @inline(__always) func exchange(_ expected: UInt64, for desired: UInt64) -> (exchanged: Bool, original: UInt64) {
    unsafe words.pointee.compareExchange(expected: expected, desired: desired, ordering: .acquiringAndReleasing)
  }

  /// May fail for no reason, and orders nothing.
  @inline(__always) func tryExchange(_ expected: UInt64, for desired: UInt64) {
    _ = unsafe words.pointee.weakCompareExchange(expected: expected, desired: desired, ordering: .relaxed)
  }
}

/// Handles of one shard's index: plain pointers, so that a look-up touches no reference count.
///
/// `@unchecked Sendable`: the words are atomics; everything but look-ups happens under the shard's mutex.
@safe struct SlotIndex: @unchecked Sendable {
  /// [0] `current`: a version in the upper bits, the size class in the lower 8; 0 in a forked child, where all of this is wiped.
  /// [1] hits. [2] misses. [3] hits when the policy last evicted for a limit. From 8 on the tables' addresses by size class, from 8 + 64 on their numbers of buckets.
  private let words: SlotPointer

  private static let basesAt = 8
  private static let bucketsAt = 8 + 64
  private static let wordCount = 8 + 128
  static let classCount = 56
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
  }

  /// An empty index of the smallest size; nil when there is no memory.
  init?() {
    guard let raw = unsafe purgeable_bookkeeping_map(Self.wordCount * 8) else { return nil }
    words = unsafe SlotPointer(raw, count: Self.wordCount)
    for sizeClass in 0..<Self.classCount {
      words[Self.bucketsAt + sizeClass].store(relaxed: UInt64(Self.bucketCount(of: sizeClass)))
    }
    guard map(0) else {
      unsafe purgeable_bookkeeping_unmap(words.raw, Self.wordCount * 8)
      return nil
    }
    words[0].store(releasing: 1 << 8)
  }

  /// Ends all mappings; nobody may look any more.
  func destroy() {
    for sizeClass in 0..<Self.classCount {
      if let slots = table(sizeClass).slots {
        unsafe purgeable_bookkeeping_unmap(slots.raw, Self.byteCount(of: sizeClass))
      }
    }
    unsafe purgeable_bookkeeping_unmap(words.raw, Self.wordCount * 8)
  }

  // MARK: Sizes

  /// 64 buckets, one page, growing by a quarter, rounded to whole pages of 64.
  static func bucketCount(of sizeClass: Int) -> Int {
    var count = 64.0
    for _ in 0..<sizeClass { count *= 1.25 }
    return (Int(count) + 63) / 64 * 64
  }

  static func byteCount(of sizeClass: Int) -> Int { bucketCount(of: sizeClass) * 64 }

  var sizeClass: Int { Int(words[0].relaxed & 0xFF) }

  /// Ordinary memory in use: the present table and the words.
  var byteCount: Int { Self.byteCount(of: sizeClass) + Self.wordCount * 8 }

  /// In a forked child all of this reads as zeros.
  var isWiped: Bool { words[0].acquired == 0 }

  /// Maps the table of a size, if it is not mapped yet.
  private func map(_ sizeClass: Int) -> Bool {
    if words[Self.basesAt + sizeClass].relaxed != 0 { return true }
    guard let raw = unsafe purgeable_bookkeeping_map(Self.byteCount(of: sizeClass)) else { return false }
    words[Self.basesAt + sizeClass].store(relaxed: UInt64(UInt(bitPattern: raw)))
    return true
  }

  private func table(_ sizeClass: Int, word: UInt64 = 0) -> Table {
    let address = words[Self.basesAt + sizeClass].relaxed
    let buckets = words[Self.bucketsAt + sizeClass].relaxed
    return Table(word: word, slots: SlotPointer(address: address), bucketCount: buckets)
  }

  // MARK: Looking

  /// The present table. The acquire pairs with the release in `resize`: the address of its size is there.
  @inline(__always) func current() -> Table {
    let word = words[0].acquired
    return table(Int(word & 0xFF), word: word)
  }

  /// Whether a table that was looked through is still the present one: only then is "not found" an answer.
  @inline(__always) func isCurrent(_ table: Table) -> Bool {
    atomicMemoryFence(ordering: .acquiring)
    return words[0].relaxed == table.word
  }

  @inline(__always) func countHit() {
    let before = words[1].add(1)
    if before % Self.hitsPerAging == 0 { age(before) }
  }
  @inline(__always) func countMiss() { words[2].add(1) }
  var hitCount: UInt64 { words[1].relaxed }
  var missCount: UInt64 { words[2].relaxed }

  // MARK: Ageing
  //
  // Counters of use go no higher than 3. Where a limit has entries evicted all the time, eviction takes them down again; a cache that is
  // only read would soon have nearly all of them at 3, and know nothing when memory gets short. So there reads age them: a hand goes round
  // the table, two buckets every 64 hits, and halves what it finds.

  /// A power of two.
  private static let hitsPerAging: UInt64 = 64
  private static let slotsPerAging = 16

  /// Reads do not age anything before there were four of them for each slot.
  func noteEviction() { words[3].store(relaxed: words[1].relaxed) }

  /// Where the hand stands follows from the number of hits. Relaxed, and a failed exchange is as good: a reader was there meanwhile.
  @inline(never)
  private func age(_ hits: UInt64) {
    let table = current()
    guard let slots = table.slots else { return }
    let hitsPerRound = UInt64(table.slotCount / Self.slotsPerAging) * Self.hitsPerAging
    guard hits &- words[3].relaxed >= hitsPerRound else { return }
    // The table has a whole number of such steps: its size is a multiple of 512 slots.
    let start = Int(hits % hitsPerRound / Self.hitsPerAging) * Self.slotsPerAging
    for i in start..<start + Self.slotsPerAging {
      let slot = Slot(bits: slots[i].relaxed)
      if slot.counter > 0 { slots[i].tryExchange(slot.bits, for: slot.with(counter: slot.counter / 2)) }
    }
  }

  // MARK: Changing (the shard's mutex held)

  /// Puts a slot into the emptier of its two buckets. False: both are full.
  func insert(_ slot: Slot) -> Bool { insert(slot, into: current()) }

  private func insert(_ slot: Slot, into table: Table) -> Bool {
    guard let slots = table.slots else { return false }
    let (first, second) = table.buckets(of: slot.identity)
    let inFirst = Self.room(in: slots, at: first)
    // A bucket that is half empty is as good as the emptier one.
    let inSecond = inFirst.count > Self.slotsPerBucket / 2 ? (count: 0, at: 0) : Self.room(in: slots, at: second)
    guard inFirst.count + inSecond.count > 0 else { return false }
    let best = inFirst.count >= inSecond.count ? inFirst.at : inSecond.at
    // Release: whoever sees the slot sees the committed element.
    slots[best].store(releasing: slot.bits)
    return true
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

  /// Has the processor fetch what `find` will touch.
  func prefetch(identity: UInt64) {
    let table = current()
    guard let slots = table.slots else { return }
    let (first, second) = table.buckets(of: identity)
    slots[first].prefetch()
    slots[second].prefetch()
  }

  /// The slot of an entry whose place is known.
  func find(identity: UInt64, place: UInt64) -> SlotPointer? {
    let table = current()
    guard let slots = table.slots else { return nil }
    let (first, second) = table.buckets(of: identity)
    for i in 0..<2 * Self.slotsPerBucket {
      let pointer = slots[i < Self.slotsPerBucket ? first + i : second + i - Self.slotsPerBucket]
      let slot = Slot(bits: pointer.relaxed)
      if slot.identity == identity, !slot.isEmpty, slot.place == place { return pointer }
    }
    return nil
  }

  /// Moves every slot into the table of another size. False, and nothing is changed: no memory, or they do not fit.
  func resize(to sizeClass: Int) -> Bool {
    let old = current()
    let oldClass = Int(old.word & 0xFF)
    guard sizeClass >= 0, sizeClass < Self.classCount, sizeClass != oldClass, map(sizeClass) else { return false }
    guard let slots = old.slots else { return false }
    let new = table(sizeClass)
    // Written before it is read: else every page would first be the kernel's page of zeros, and then be copied, which interrupts the
    // other processors.
    if let newSlots = new.slots {
      for i in stride(from: 0, to: new.slotCount, by: Self.slotsPerTouch) { newSlots[i].store(relaxed: 0) }
    }
    for i in 0..<old.slotCount {
      let slot = Slot(bits: slots[i].relaxed)
      if slot.isEmpty { continue }
      if !insert(slot, into: new) {
        if let newSlots = new.slots {
          clear(newSlots, sizeClass)
        }
        return false
      }
    }
    let version = (old.word >> 8) &+ 1
    // Release: pairs with `current`. Only then is the old table emptied, so a reader that finds it empty finds this too.
    words[0].store(releasing: version << 8 | UInt64(sizeClass))
    clear(slots, oldClass)
    return true
  }

  private func clear(_ slots: SlotPointer, _ sizeClass: Int) {
    if unsafe purgeable_bookkeeping_clear(slots.raw, Self.byteCount(of: sizeClass)) == 0 { return }
    // Memory that the kernel would not take has to read as empty all the same.
    for i in 0..<Self.bucketCount(of: sizeClass) * Self.slotsPerBucket { slots[i].store(relaxed: 0) }
  }

  /// After a fork: an empty index again. The parent's tables are this process's copies by now, and read as zeros.
  func beginAnew() -> Bool {
    for sizeClass in 0..<Self.classCount {
      words[Self.bucketsAt + sizeClass].store(relaxed: UInt64(Self.bucketCount(of: sizeClass)))
    }
    guard map(0) else { return false }
    words[0].store(releasing: 1 << 8)
    return true
  }
}
