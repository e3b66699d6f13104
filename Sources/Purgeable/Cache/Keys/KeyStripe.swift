// SPDX-License-Identifier: MIT
// One stripe of a key table: its entries by number, and its living entries by hash. It knows nothing of the keys' type.
//
//   numbers --> entry                                   8 bytes for each number there ever was at a time
//   heads (by hash) --> entry --> entry --> nil         youngest first: stamps fall along a chain
//   a list of departures (KeyTable+Telling.swift) --> entry --> entry --> nil
//
// A living entry is in one chain and a departed one in one list, and both are linked by `next`: so a departure needs no memory.
// The heads grow by linear hashing, one head at a time as entries are made: no store pays for all of them.
//
// Entries leave in any order, and memory goes back all the same: when there are more free places than a segment and a quarter
// has, and an eighth of the entries, the living entries of the last segment move to free places of others. A departed entry stays
// where it is.

import Glibc

/// The head of an entry, before its key. Safe to have; code that follows `next` answers for it.
@safe struct KeyEntry {
  var next: EntryPointer?
  /// Of a living entry: the hash. Of a departed one: where the copy of its value is, 0 for none.
  var hashOrCopy: UInt64
  /// Of a living entry: its stamp, never used twice in a stripe. Of a departed one: the topmost bit, and why it left. 0 for a
  /// free place.
  private var stampOrEnd: UInt64
  var cost: UInt64
  /// The entry's number in the cache.
  var number: UInt32
  /// The entry's place in the stripe's memory: changes when the entry is moved.
  fileprivate var place: UInt32

  private static let departedFlag: UInt64 = 1 << 63

  var isLiving: Bool { stampOrEnd != 0 && stampOrEnd & Self.departedFlag == 0 }
  var isDeparted: Bool { stampOrEnd & Self.departedFlag != 0 }
  var stamp: UInt64 { stampOrEnd }

  /// Of a departed entry: the reason, and why there is no copy (EngineDeparture). Each in 8 bits.
  var reason: UInt8 { UInt8(truncatingIfNeeded: stampOrEnd) }
  var absence: UInt8 { UInt8(truncatingIfNeeded: stampOrEnd >> 8) }

  fileprivate init(hash: UInt64, stamp: UInt64, number: UInt32, place: UInt32) {
    (hashOrCopy, stampOrEnd, cost, self.number, self.place) = (hash, stamp, 0, number, place)
  }

  fileprivate mutating func depart() {
    unsafe next = nil
    (hashOrCopy, stampOrEnd) = (0, Self.departedFlag)
  }

  fileprivate mutating func end() { stampOrEnd = 0 }

  /// Of a departed entry.
  mutating func setEnd(reason: UInt8, absence: UInt8) {
    stampOrEnd = Self.departedFlag | UInt64(absence) << 8 | UInt64(reason)
  }
}

typealias EntryPointer = UnsafeMutablePointer<KeyEntry>

/// Moves the key of the first entry into the second one, which has none.
@safe struct KeyMove: Sendable {
  let move: @Sendable (EntryPointer, EntryPointer) -> Void

  init(_ move: @escaping @Sendable (EntryPointer, EntryPointer) -> Void) { unsafe self.move = move }
}

/// `@unchecked Sendable`: guarded by the mutex of its `KeyStripeHolder`.
@safe struct KeyStripe: @unchecked Sendable {
  /// Stripes of a table. An entry's number names its stripe by its lowest bits.
  static let count = 8
  private static let numberLimit = Int(EngineKey.trackedNumberLimit) / count

  private let number: Int
  private let moveKey: KeyMove
  private var entries: SegmentPool
  /// For each number that is taken: its entry's address, with the lowest bit set.
  private var numbers = SegmentPool(stride: MemoryLayout<UInt>.stride, alignment: MemoryLayout<UInt>.alignment)
  private var heads = SegmentedMemory(
    stride: MemoryLayout<UInt>.stride, alignment: MemoryLayout<UInt>.alignment)
  private var headCount = 0
  private(set) var livingCount = 0
  /// Living and departed.
  private(set) var heldCount = 0
  private var lastStamp: UInt64 = 0
  /// The table's epoch when the entries were made (KeyTable.epoch).
  var epoch: UInt64 = 0

  init(number: Int, entryByteCount: Int, alignment: Int, moveKey: KeyMove) {
    self.number = number
    self.moveKey = moveKey
    entries = SegmentPool(stride: entryByteCount, alignment: alignment)
  }

  var byteCount: Int { entries.byteCount + numbers.byteCount + heads.byteCount }
  /// How many entries there are numbers for.
  var entryCount: Int { numbers.capacity }

  static func stripe(ofHash hash: UInt64) -> Int { Int(hash >> 16 & UInt64(count - 1)) }
  static func stripe(ofNumber number: UInt32) -> Int { Int(number) & (count - 1) }

  // MARK: Finding

  /// A living entry by its number.
  func living(_ number: UInt32) -> EntryPointer? {
    let at = Int(number) / Self.count
    guard at < numbers.capacity, let entry = unsafe held(at) else { return nil }
    return unsafe entry.pointee.isLiving ? entry : nil
  }

  /// The entry of a number that is taken. `at`: the number as counted in this stripe.
  private func held(_ at: Int) -> EntryPointer? {
    guard let word = unsafe numbers.address(of: at)?.load(as: UInt.self), word & 1 != 0 else { return nil }
    return unsafe EntryPointer(bitPattern: word & ~1)
  }

  private func entry(_ place: Int) -> EntryPointer? {
    // The memory holds nothing but entries: zeros are a free place.
    unsafe entries.address(of: place)?.assumingMemoryBound(to: KeyEntry.self)
  }

  private func head(_ at: Int) -> UnsafeMutablePointer<EntryPointer?> {
    // Segments of heads are not dropped singly, so there is memory.
    unsafe heads.address(of: at)!.assumingMemoryBound(to: EntryPointer?.self)
  }

  private func bucket(of hash: UInt64) -> Int {
    let level = Int.bitWidth - 1 - headCount.leadingZeroBitCount
    let bits = Int(truncatingIfNeeded: hash >> 19)
    let at = bits & (2 << level - 1)
    return at < headCount ? at : bits & (1 << level - 1)
  }

  /// The youngest living entry with this hash that is older than `below` and younger than `above`. `last`: the number of the
  /// entry with the stamp `below`; if that entry is still living, the search goes on from it.
  func next(hash: UInt64, below: UInt64, above: UInt64, last: UInt32? = nil) -> EntryPointer? {
    guard headCount > 0 else { return nil }
    var at: EntryPointer?
    if let last, let entry = unsafe living(last), unsafe entry.pointee.stamp == below {
      unsafe at = entry.pointee.next
    } else {
      unsafe at = head(bucket(of: hash)).pointee
    }
    while let entry = unsafe at, unsafe entry.pointee.stamp > above {
      if unsafe entry.pointee.stamp < below && entry.pointee.hashOrCopy == hash { return unsafe entry }
      unsafe at = entry.pointee.next
    }
    return nil
  }

  /// The first living entry from `at` on, by number.
  func firstLiving(from at: inout Int) -> EntryPointer? {
    while at < numbers.capacity {
      let entry = unsafe held(at)
      at += 1
      if let entry = unsafe entry, unsafe entry.pointee.isLiving { return unsafe entry }
    }
    return nil
  }

  // MARK: Changing

  /// A living entry without a key, which the caller puts there before the mutex is released. nil: no memory, or no number.
  mutating func make(hash: UInt64) -> EntryPointer? {
    if headCount == 0 {
      guard heads.grow() else { return nil }
      headCount = SegmentedMemory.firstCapacity
    }
    guard let (at, word) = unsafe numbers.take(limit: Self.numberLimit) else { return nil }
    guard let (place, memory) = unsafe entries.take(limit: .max) else {
      numbers.giveBack(at)
      return nil
    }
    let entry = unsafe memory.assumingMemoryBound(to: KeyEntry.self)
    unsafe word.storeBytes(of: UInt(bitPattern: entry) | 1, as: UInt.self)
    lastStamp += 1
    assert(at < Self.numberLimit, "PurgeableCache: a number that no tag can tell")
    unsafe entry.initialize(
      to: KeyEntry(hash: hash, stamp: lastStamp, number: UInt32(at * Self.count + number), place: UInt32(place)))
    let head = unsafe head(bucket(of: hash))
    unsafe entry.pointee.next = head.pointee
    unsafe head.pointee = entry
    livingCount += 1
    heldCount += 1
    if livingCount > 2 * headCount { addHead() }
    return unsafe entry
  }

  /// The pointer to a living entry: in a head, or in the entry before it.
  private func link(to entry: EntryPointer) -> UnsafeMutablePointer<EntryPointer?> {
    var link = unsafe head(bucket(of: entry.pointee.hashOrCopy))
    while let at = unsafe link.pointee, unsafe at != entry {
      // `next` is the first field.
      unsafe link = UnsafeMutableRawPointer(at).assumingMemoryBound(to: EntryPointer?.self)
    }
    return unsafe link
  }

  /// Takes a living entry out of its chain: it is the caller's from here on, until `giveBack`.
  mutating func depart(_ entry: EntryPointer) {
    assert(unsafe entry.pointee.isLiving, "PurgeableCache: a key departs twice")
    let link = unsafe link(to: entry)
    assert(unsafe link.pointee == entry, "PurgeableCache: a key outside of its chain")
    unsafe link.pointee = entry.pointee.next
    unsafe entry.pointee.depart()
    livingCount -= 1
    assert(livingCount >= 0 && livingCount < heldCount, "PurgeableCache: more keys depart than came")
  }

  /// Frees a departed entry, whose key the caller has taken out. Other entries may be moved. `isEnd`: none is moved, since all
  /// are about to go.
  mutating func giveBack(_ entry: EntryPointer, isEnd: Bool = false) {
    let (at, place) = unsafe (Int(entry.pointee.number) / Self.count, Int(entry.pointee.place))
    unsafe entry.pointee.end()
    numbers.giveBack(at)
    entries.giveBack(place)
    heldCount -= 1
    assert(heldCount >= livingCount, "PurgeableCache: a living key was given back")
    // The first segment is small, and many a cache needs it again at once.
    if heldCount == 0, entries.capacity > SegmentedMemory.firstCapacity {
      releaseStorage()
    } else if !isEnd {
      compact()
    }
  }

  /// Closes a segment when the others have room for its entries. That happens at most once for as many entries given back as a
  /// segment has places, so no more entries are moved than were given back.
  private mutating func compact() {
    let spare = SegmentedMemory.largestCount / 4 + heldCount / 8
    guard entries.freeCount > SegmentedMemory.largestCount + spare, let places = entries.close() else { return }
    for place in places {
      guard let old = unsafe entry(place), unsafe old.pointee.isLiving,
        // There is a free place: the others have more of them than a segment has places.
        let (newPlace, memory) = unsafe entries.take(limit: .max)
      else { continue }
      let new = unsafe memory.assumingMemoryBound(to: KeyEntry.self)
      unsafe new.initialize(to: old.pointee)
      unsafe new.pointee.place = UInt32(newPlace)
      unsafe link(to: old).pointee = new
      unsafe moveKey.move(old, new)
      // Its number is taken, so it has memory.
      unsafe numbers.address(of: Int(new.pointee.number) / Self.count)!.storeBytes(of: UInt(bitPattern: new) | 1, as: UInt.self)
      unsafe old.pointee.end()
      entries.giveBack(place)
    }
  }

  /// Adds a head: the chain of its sibling is divided between the two, each part in its old order.
  private mutating func addHead() {
    // Without memory for it, chains only become longer.
    guard headCount < heads.capacity || heads.grow() else { return }
    let level = Int.bitWidth - 1 - headCount.leadingZeroBitCount
    var kept = unsafe head(headCount - 1 << level)
    var moved = unsafe head(headCount)
    var at = unsafe kept.pointee
    while let entry = unsafe at {
      unsafe at = entry.pointee.next
      let link = unsafe UnsafeMutableRawPointer(entry).assumingMemoryBound(to: EntryPointer?.self)
      if unsafe Int(truncatingIfNeeded: entry.pointee.hashOrCopy >> 19) & 1 << level == 0 {
        unsafe kept.pointee = entry
        unsafe kept = link
      } else {
        unsafe moved.pointee = entry
        unsafe moved = link
      }
    }
    unsafe kept.pointee = nil
    unsafe moved.pointee = nil
    headCount += 1
  }

  private mutating func releaseStorage() {
    entries.release()
    numbers.release()
    heads.release()
    headCount = 0
  }

  /// Begins anew, and returns the old content for the caller to `destroy`, outside of every mutex. Stamps go on, so that no new
  /// entry is taken for an old one.
  mutating func takeAll() -> KeyStripe {
    let taken = self
    entries = SegmentPool(copyingLayoutOf: entries)
    numbers = SegmentPool(copyingLayoutOf: numbers)
    heads = SegmentedMemory(copyingLayoutOf: heads)
    (headCount, livingCount, heldCount) = (0, 0, 0)
    return taken
  }

  /// Calls `body` with each entry that is not free, and gives the memory back.
  mutating func destroy(_ body: (EntryPointer) -> Void) {
    for at in 0..<numbers.capacity {
      if let entry = unsafe held(at) { unsafe body(entry) }
    }
    releaseStorage()
    (livingCount, heldCount) = (0, 0)
  }
}
