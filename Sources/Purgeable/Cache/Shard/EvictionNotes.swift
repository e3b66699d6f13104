// SPDX-License-Identifier: MIT
// What an eviction run notes: the slabs that it passes over, and the entries that it found in them.
//
//   victims   [slab a][slab b]...             rule, sums by counter; the first of its entries that may be spared
//   notes     [e][e][e][e][e]...              the number of the slot, and the element that the slot led to
//   numbers   a table, slab -> victim         by the lowest bits of the slab's index
//
// The memory is there before it is needed, because eviction runs when memory is short: for one slab on the stack, for many slabs
// in a mapping of the process (`GivingBackTurn`).

import CPurgeable
import Synchronization

/// A slab that a run passes over.
struct Victim {
  let slab: purgeable_slab_t
  let information: SlabInformation
  let queue: EvictionQueue
  /// The average length of an entry: taken for the length of each where the slab's pages are not touched.
  let averageByteCount: Int
  /// Bytes of the noted entries by counter.
  var byteCounts = SIMD4<Int>()
  /// How many entries are noted.
  var entryCount: UInt32 = 0
  var hasTracked = false
  var rule: S3FIFOOrder.Rule
  /// The first noted entry that may be spared.
  fileprivate(set) var first = EntryNote.none
  /// All that lives in the slab is noted, and leaves it: the entries leave the books page by page, and the elements are freed at
  /// once.
  var endsWhole = false

  init(_ slab: purgeable_slab_t, _ information: SlabInformation, _ queue: EvictionQueue) {
    (self.slab, self.information, self.queue) = (slab, information, queue)
    averageByteCount = Int(information.payload_bytes) / max(1, Int(information.element_count)) + SlabHeap.elementOverhead
    rule = S3FIFOOrder.Rule(queue: queue, cause: .idle, threshold: 0)
  }
}

/// A noted entry.
struct EntryNote {
  static let none = UInt32.max
  private static let doneBit: UInt32 = 1 << 31
  /// The number of the slot, and the top bit once the entry has been spared or has left.
  private var bits: UInt32 = 0
  /// The next entry of the same victim that may be spared.
  fileprivate(set) var next = none
  let victim: UInt16
  /// Where the element begins in its slab.
  let granule: UInt16

  fileprivate init(slot: Int, victim: Int, granule: UInt64) {
    assert(slot < Int(Self.doneBit), "PurgeableCache: a slot number of more than 31 bits")
    bits = UInt32(truncatingIfNeeded: slot)
    self.victim = UInt16(truncatingIfNeeded: victim)
    self.granule = UInt16(truncatingIfNeeded: granule)
  }

  var slot: Int { Int(bits & ~Self.doneBit) }
  var isDone: Bool { bits & Self.doneBit != 0 }
  fileprivate mutating func setDone() { bits |= Self.doneBit }
}

/// `@safe`: the pointers have room for the given capacities as long as the run lasts. Every index from outside is checked.
/// Nothing is read before it was written, so leftovers of an earlier run do no harm.
@safe struct EvictionNotes {
  private let victims: UnsafeMutablePointer<Victim>
  private let notes: UnsafeMutablePointer<EntryNote>
  /// nil for the notes of one slab.
  private let numbers: UnsafeMutablePointer<UInt16>?
  private let capacity: Int
  private(set) var victimCount = 0
  private(set) var count = 0
  private var firstIndex = UInt64.max
  private var lastIndex: UInt64 = 0
  /// `SlotCount.changes` when noting began: while it stands, every note leads to its entry.
  var changes: UInt64 = 0

  // MARK: Memory

  /// Of the notes of one slab. A slab of entries of 32 bytes and more is one piece, unless slabs are large (a byte limit of a
  /// gigabyte and more).
  static let pieceCapacity = 2048
  static let mostVictims = 4096
  static let mostEntries = 65_536
  private static let numberCount = 16_384

  /// Of the mapping for many slabs: a little over a megabyte, of which only the part that one slice needs is ever touched.
  static var byteCount: Int {
    mostVictims * MemoryLayout<Victim>.stride + mostEntries * MemoryLayout<EntryNote>.stride
      + numberCount * MemoryLayout<UInt16>.stride
  }

  /// Notes of many slabs. `start`: of so many bytes.
  init(_ start: UnsafeMutableRawPointer) {
    unsafe victims = start.bindMemory(to: Victim.self, capacity: Self.mostVictims)
    let second = unsafe start + Self.mostVictims * MemoryLayout<Victim>.stride
    unsafe notes = second.bindMemory(to: EntryNote.self, capacity: Self.mostEntries)
    let third = unsafe second + Self.mostEntries * MemoryLayout<EntryNote>.stride
    let numbers = unsafe third.bindMemory(to: UInt16.self, capacity: Self.numberCount)
    unsafe numbers.update(repeating: 0, count: Self.numberCount)
    unsafe self.numbers = numbers
    capacity = Self.mostEntries
  }

  private init(_ victim: UnsafeMutablePointer<Victim>, _ notes: UnsafeMutablePointer<EntryNote>) {
    unsafe (victims, self.notes, numbers) = (victim, notes, nil)
    (victimCount, capacity) = (1, Self.pieceCapacity)
  }

  /// Runs `body` with notes of one slab, on the stack.
  static func with<R>(_ victim: Victim, _ body: (inout EvictionNotes) -> R) -> R {
    var victim = victim
    var memory = InlineArray<2048, EntryNote>(repeating: EntryNote(slot: 0, victim: 0, granule: 0))
    var span = memory.mutableSpan
    return unsafe span.withUnsafeMutableBufferPointer { buffer in
      unsafe withUnsafeMutablePointer(to: &victim) { victim in
        // The buffer has elements, so it has an address.
        var notes = unsafe EvictionNotes(victim, buffer.baseAddress!)
        return body(&notes)
      }
    }
  }

  // MARK: Victims

  /// False when there is no room for another victim, when the slab is one already, or when another slab has its place in the
  /// table: then it is left for another run. Slabs of one age are neighbours, so that is rare.
  mutating func append(_ victim: Victim) -> Bool {
    let index = UInt64(victim.slab.index)
    guard victimCount < Self.mostVictims, let numbers = unsafe numbers, unsafe numbers[Self.place(of: index)] == 0
    else { return false }
    unsafe numbers[Self.place(of: index)] = UInt16(victimCount) + 1
    unsafe (victims + victimCount).initialize(to: victim)
    victimCount += 1
    (firstIndex, lastIndex) = (min(firstIndex, index), max(lastIndex, index))
    return true
  }

  subscript(victim number: Int) -> Victim {
    get {
      precondition(number >= 0 && number < victimCount, "EvictionNotes: no such victim")
      return unsafe victims[number]
    }
    nonmutating _modify {
      precondition(number >= 0 && number < victimCount, "EvictionNotes: no such victim")
      yield unsafe &victims[number]
    }
  }

  private static func place(of index: UInt64) -> Int { Int(truncatingIfNeeded: index) & (numberCount - 1) }

  /// The number of the victim at a slab's index; nil for any other slab.
  @inline(__always) func victim(ofSlab index: UInt64) -> Int? {
    guard index &- firstIndex <= lastIndex &- firstIndex, let numbers = unsafe numbers else { return nil }
    let number = unsafe Int(numbers[Self.place(of: index)]) - 1
    // In bounds: the table holds numbers of victims only.
    guard number >= 0, unsafe UInt64(victims[number].slab.index) == index else { return nil }
    return number
  }

  // MARK: Entries

  var hasRoom: Bool { count < capacity }

  /// Begins another piece of the one slab.
  mutating func beginPiece() {
    assert(victimCount == 1, "PurgeableCache: pieces of several slabs")
    count = 0
    unsafe victims[0].byteCounts = SIMD4()
    unsafe victims[0].entryCount = 0
    unsafe victims[0].hasTracked = false
  }

  /// Notes an entry, if there is room. `slot`: what the slot at `number` leads to. `byteCount`: nil for the average.
  @inline(__always) mutating func note(_ slot: Slot, at number: Int, _ victim: Int, granule: UInt64, byteCount: Int? = nil) {
    guard hasRoom else { return }
    assert(victim < victimCount, "PurgeableCache: a note of no victim")
    unsafe victims[victim].byteCounts[Int(slot.counter)] &+= byteCount ?? victims[victim].averageByteCount
    unsafe victims[victim].entryCount &+= 1
    if slot.isTracked { unsafe victims[victim].hasTracked = true }
    unsafe (notes + count).initialize(to: EntryNote(slot: number, victim: victim, granule: granule))
    count += 1
  }

  @inline(__always) subscript(number: Int) -> EntryNote {
    precondition(number >= 0 && number < count, "EvictionNotes: no such entry")
    return unsafe notes[number]
  }

  /// Notes that an entry was spared or has left.
  mutating func setDone(_ number: Int) {
    precondition(number >= 0 && number < count, "EvictionNotes: no such entry")
    assert(unsafe !notes[number].isDone, "PurgeableCache: an entry is done twice")
    unsafe notes[number].setDone()
  }

  /// Links the entries that pass `isWorthy` to their victims (`Victim.first`, `EntryNote.next`), in the order of the notes.
  func link(_ isWorthy: (EntryNote, borrowing Victim) -> Bool) {
    for i in 0..<victimCount { unsafe victims[i].first = EntryNote.none }
    for i in (0..<count).reversed() {
      let victim = unsafe victims + Int(notes[i].victim)
      guard unsafe isWorthy(notes[i], victim.pointee) else { continue }
      unsafe notes[i].next = victim.pointee.first
      unsafe victim.pointee.first = UInt32(truncatingIfNeeded: i)
    }
  }
}

// MARK: Memory for many slabs

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
    guard let raw = unsafe purgeable_bookkeeping_map(EvictionNotes.byteCount) else { return false }
    let (exchanged, _) = address.compareExchange(
      expected: 0, desired: UInt(bitPattern: raw), ordering: .acquiringAndReleasing)
    // Another thread was first.
    if !exchanged { unsafe purgeable_bookkeeping_unmap(raw, EvictionNotes.byteCount) }
    return true
  }

  func lockForFork() { turn.lock() }
  func unlockAfterFork() { turn.unlock() }

  /// Runs `body` under the mutex, with no notes; nil when the memory was never mapped.
  func use<R>(_ body: (inout EvictionNotes) -> R) -> R? {
    turn.lock()
    defer { turn.unlock() }
    // Acquire: pairs with the exchange in `prepare`. The memory is never unmapped.
    guard let start = unsafe UnsafeMutableRawPointer(bitPattern: address.load(ordering: .acquiring)) else { return nil }
    var notes = unsafe EvictionNotes(start)
    return body(&notes)
  }
}
