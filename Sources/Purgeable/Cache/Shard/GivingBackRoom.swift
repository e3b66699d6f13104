// SPDX-License-Identifier: MIT
// Working memory for giving back many slabs together: one mapping for the whole process, made with the first cache, before it is
// needed.
//
//   numbers   a table: which slab is which victim               2 bytes * 16,384
//   victims   the slabs that are to go                          4,096 of them
//   leading   slots that lead to a victim                       8 bytes * 65,536
//   worthy    leading slots whose entries are copied, by victim 4 bytes * 65,536
//
// The mapping has a little over a megabyte, of which only the part that one slice needs is ever touched. A reaction to pressure
// therefore makes no allocation.

import CPurgeable
import Synchronization

/// A slab that is to be given back, and what the pass over the index found out about it.
struct Victim {
  let slab: purgeable_slab_t
  let information: SlabInformation
  let queue: EvictionQueue
  /// The slab is sparse (`EvictionOrder.isSparse`): all of its entries are copied.
  let isSparse: Bool
  /// Whether a slot was found for every living element and no key is tracked. Any other slab is emptied entry by entry.
  var isPlain = false
  /// Some slot that leads to the slab has a tracked key.
  var hasTracked = false
  /// How many slots lead to the slab, by counter.
  var counts = SIMD4<UInt32>()
  /// Which of the slab's entries are kept.
  var rule = EvictionOrder.KeepRule(threshold: 0)
  /// The range of `worthy` that belongs to the slab.
  var worthyBegin = 0
  var worthyEnd = 0

  init(_ slab: purgeable_slab_t, _ information: SlabInformation, _ queue: EvictionQueue, isSparse: Bool) {
    (self.slab, self.information, self.queue, self.isSparse) = (slab, information, queue, isSparse)
  }

  /// Sets `isPlain` and `rule` from the counted slots, as if all entries had the same length. A sparse slab needs no rule: all of
  /// its entries are kept.
  mutating func decide(_ order: EvictionOrder, _ cause: EvictionCause, overhead: Int) {
    isPlain = !hasTracked && counts.wrappedSum() == information.element_count
    if isSparse { return }
    let average = Int(information.payload_bytes) / max(1, Int(information.element_count)) + overhead
    rule = order.rule(
      queue, cause, byteCounts: SIMD4<Int>(truncatingIfNeeded: counts) &* average,
      room: order.room(ofBytes: Int(information.held_bytes)))
  }
}

/// A slot that leads to a victim.
struct Leading {
  let slot: UInt32
  let victim: UInt16
  var isDone = false
}

/// The memory, for the thread that holds the mutex of `GivingBackTurn`.
///
/// `@safe`: all pointers lead into one mapping that is never unmapped and has room for the capacities below. Every index from
/// outside is checked against them.
@safe struct GivingBackRoom {
  static let victimCapacity = 4096
  static let entryCapacity = 65_536
  private static let numberCount = 16_384

  private let numbers: UnsafeMutablePointer<UInt16>
  private let victims: UnsafeMutablePointer<Victim>
  private let leading: UnsafeMutablePointer<Leading>
  private let worthy: UnsafeMutablePointer<UInt32>
  private(set) var victimCount = 0
  private(set) var leadingCount = 0

  /// Nothing is read before it was written, so leftovers of an earlier turn do no harm.
  init(_ start: UnsafeMutableRawPointer) {
    unsafe victims = start.bindMemory(to: Victim.self, capacity: Self.victimCapacity)
    let second = unsafe start + Self.victimCapacity * MemoryLayout<Victim>.stride
    unsafe leading = second.bindMemory(to: Leading.self, capacity: Self.entryCapacity)
    let third = unsafe second + Self.entryCapacity * MemoryLayout<Leading>.stride
    unsafe worthy = third.bindMemory(to: UInt32.self, capacity: Self.entryCapacity)
    let fourth = unsafe third + Self.entryCapacity * MemoryLayout<UInt32>.stride
    unsafe numbers = fourth.bindMemory(to: UInt16.self, capacity: Self.numberCount)
  }

  static var byteCount: Int {
    victimCapacity * MemoryLayout<Victim>.stride + entryCapacity * (MemoryLayout<Leading>.stride + MemoryLayout<UInt32>.stride)
      + numberCount * MemoryLayout<UInt16>.stride
  }

  // MARK: Victims

  /// False when there is no room for another victim.
  mutating func append(_ victim: Victim) -> Bool {
    guard victimCount < Self.victimCapacity else { return false }
    unsafe (victims + victimCount).initialize(to: victim)
    victimCount += 1
    return true
  }

  subscript(victim number: Int) -> Victim {
    get {
      precondition(number >= 0 && number < victimCount, "GivingBackRoom: no such victim")
      return unsafe victims[number]
    }
    nonmutating set {
      precondition(number >= 0 && number < victimCount, "GivingBackRoom: no such victim")
      unsafe victims[number] = newValue
    }
  }

  // In bounds: the callers pass numbers of victims.
  @inline(__always) func isPlain(_ number: Int) -> Bool { unsafe victims[number].isPlain }

  @inline(__always) func hasLost(_ number: Int) -> Bool { unsafe victims[number].information.lost_page_count > 0 }

  /// Whether a slab is among the first `count` victims.
  func hasChosen(_ slab: purgeable_slab_t, ofFirst count: Int) -> Bool {
    for i in 0..<min(count, victimCount) where unsafe victims[i].slab.index == slab.index { return true }
    return false
  }

  // MARK: The pass

  /// Fills `numbers`, the hash table from a slab's index to its victim: the index's lowest bits, then linear probing. At most a
  /// quarter of the table is in use.
  func fillNumbers() {
    unsafe numbers.update(repeating: 0, count: Self.numberCount)
    for i in 0..<victimCount {
      var at = Int(unsafe victims[i].slab.index) % Self.numberCount
      while unsafe numbers[at] != 0 { at = (at + 1) % Self.numberCount }
      unsafe numbers[at] = UInt16(i) + 1
    }
  }

  /// The number of the victim at a slab's index; nil for any other slab.
  @inline(__always) func victim(ofSlab index: UInt64) -> Int? {
    var at = Int(truncatingIfNeeded: index) & (Self.numberCount - 1)
    while true {
      let number = unsafe numbers[at]
      if number == 0 { return nil }
      // In bounds: the table holds numbers of victims only.
      if unsafe UInt64(victims[Int(number) - 1].slab.index) == index { return Int(number) - 1 }
      at = (at + 1) & (Self.numberCount - 1)
    }
  }

  /// Counts and notes a slot while there is room. A slot that is not counted leaves its victim not plain. `capacity`: the number
  /// of living elements in all victims.
  @inline(__always) mutating func note(_ slot: Slot, at index: Int, _ victim: Int, capacity: Int) {
    guard leadingCount < min(capacity, Self.entryCapacity) else { return }
    unsafe victims[victim].counts[Int(slot.counter)] &+= 1
    if slot.isTracked { unsafe victims[victim].hasTracked = true }
    unsafe (leading + leadingCount).initialize(
      to: Leading(slot: UInt32(truncatingIfNeeded: index), victim: UInt16(truncatingIfNeeded: victim)))
    leadingCount += 1
  }

  @inline(__always) subscript(leading number: Int) -> Leading {
    precondition(number >= 0 && number < leadingCount, "GivingBackRoom: no such slot")
    return unsafe leading[number]
  }

  func setDone(_ number: Int) {
    precondition(number >= 0 && number < leadingCount, "GivingBackRoom: no such slot")
    unsafe leading[number].isDone = true
  }

  // MARK: What is worth copying

  /// Sorts the noted slots that pass `isWorthy` by victim. Readers may raise counters meanwhile, so each victim has room for all
  /// of its entries.
  func sortWorthy(_ isWorthy: (Leading, Victim) -> Bool) {
    var total = 0
    for i in 0..<victimCount {
      unsafe victims[i].worthyBegin = total
      unsafe victims[i].worthyEnd = total
      unsafe total += victims[i].isPlain ? Int(victims[i].information.element_count) : 0
    }
    for i in 0..<leadingCount {
      let number = unsafe Int(leading[i].victim)
      guard unsafe victims[number].isPlain, isWorthy(unsafe leading[i], unsafe victims[number]) else { continue }
      let at = unsafe victims[number].worthyEnd
      guard at < Self.entryCapacity else { continue }
      unsafe worthy[at] = UInt32(truncatingIfNeeded: i)
      unsafe victims[number].worthyEnd = at + 1
    }
  }

  /// The number of a noted slot, by its place in `worthy`.
  @inline(__always) subscript(worthy number: Int) -> Int {
    precondition(number >= 0 && number < Self.entryCapacity, "GivingBackRoom: no such slot")
    return unsafe Int(worthy[number])
  }
}

/// Serializes the use of the memory. Its mutex is taken while a shard's mutex is held. A fork takes the mutexes of all listed
/// shards, then this one: a cache that its program has let go of is listed no more, and the library's thread may still be giving
/// its memory back.
final class GivingBackTurn: ForkProtected {
  static let shared = GivingBackTurn()
  private let turn = Guarded<Void>(())
  private let address = Atomic<UInt>(0)

  private init() {
    ForkGuard.shared.announce(.turn) { $0.append(GivingBackTurn.shared) }
    rehearseFork()
  }

  /// Called for each cache that is made; the first call maps the memory. False when there is no memory.
  func prepare() -> Bool {
    if address.load(ordering: .acquiring) != 0 { return true }
    guard let raw = unsafe purgeable_bookkeeping_map(GivingBackRoom.byteCount) else { return false }
    let (exchanged, _) = address.compareExchange(
      expected: 0, desired: UInt(bitPattern: raw), ordering: .acquiringAndReleasing)
    // Another thread was first.
    if !exchanged { unsafe purgeable_bookkeeping_unmap(raw, GivingBackRoom.byteCount) }
    return true
  }

  func lockForFork() { turn.lock() }
  func unlockAfterFork() { turn.unlock() }

  /// Runs `body` under the mutex; nil when the memory was never mapped.
  func use<R>(_ body: (inout GivingBackRoom) -> R) -> R? {
    turn.lock()
    defer { turn.unlock() }
    // Acquire: pairs with the exchange in `prepare`. The memory is never unmapped.
    guard let start = unsafe UnsafeMutableRawPointer(bitPattern: address.load(ordering: .acquiring)) else { return nil }
    var room = unsafe GivingBackRoom(start)
    return body(&room)
  }
}
