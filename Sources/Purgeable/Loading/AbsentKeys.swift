// SPDX-License-Identifier: MIT
// Keys of which a load found that they have no value, each remembered until a moment of the cache's clock.
//
//   hash --> set of four --> note: key, moment           the hashes of notes are read under no mutex
//
// A set is full of four notes: the next one takes the place of the one that ends first. Of one hash there is one note. So keys
// that are made to collide push out each other, and whatever is asked for, no more than the table is remembered.

import Synchronization

/// Of a `LoadTable`, under whose mutex notes are made and taken out. What is taken out ends under none.
///
/// `@safe`: places are below the number of hashes. `@unchecked Sendable`: all but `hashes` and `isStale` is under the mutex.
@safe final class AbsentKeys<Key: Hashable & Sendable>: @unchecked Sendable {
  struct Note {
    let key: Key
    /// That the load was asked for.
    let version: String?
    let end: UInt64
    /// What key and version take beside the note.
    let ownByteCount: Int
  }

  /// Of the notes; 0 for none.
  private let hashes: UnsafeMutablePointer<Atomic<Int>>
  private let capacity: Int
  /// As many as `capacity`, or none.
  private var notes: [Note?] = []
  /// All notes are forgotten, and have not ended yet.
  private let isStale = Atomic<Bool>(false)
  let byteCount: ByteCount

  private static var waysPerSet: Int { 4 }
  private static var mostSets: Int { 1024 }
  /// Keys of more bytes than this are not remembered.
  static var mostOwnBytes: Int { 256 }
  private static var bytesPerNote: Int { MemoryLayout<Note?>.stride + MemoryLayout<Int>.stride }

  /// nil where not even a set has room in half of the bytes; the other half is for the keys.
  init?(mostBytes: Int, _ byteCount: ByteCount) {
    var sets = Self.mostSets
    while sets > 0, sets * Self.waysPerSet * Self.bytesPerNote > mostBytes / 2 { sets /= 2 }
    guard sets > 0 else { return nil }
    capacity = sets * Self.waysPerSet
    unsafe hashes = UnsafeMutablePointer.allocate(capacity: capacity)
    for place in 0..<capacity { unsafe (hashes + place).initialize(to: Atomic(0)) }
    self.byteCount = byteCount
    byteCount.add(capacity * MemoryLayout<Int>.stride)
  }

  deinit {
    unsafe hashes.deinitialize(count: capacity)
    unsafe hashes.deallocate()
  }

  // MARK: Under no mutex

  /// Whether `end` or `removeStale` has something to do. Relaxed: who has to see a note knows of the load that made it.
  func mayHave(_ hash: Int) -> Bool { place(of: hash) != nil || isStale.load(ordering: .relaxed) }

  private func place(of hash: Int) -> Int? {
    let hash = Self.noted(hash)
    return set(of: hash).first { unsafe hashes[$0].load(ordering: .relaxed) == hash }
  }

  private func set(of hash: Int) -> Range<Int> {
    // Not the lowest bits, by which dictionaries scatter.
    let first = Int(UInt(bitPattern: hash) >> 32) & (capacity / Self.waysPerSet - 1) * Self.waysPerSet
    return first..<first + Self.waysPerSet
  }

  private static func noted(_ hash: Int) -> Int { hash == 0 ? 1 : hash }

  // MARK: Under the mutex

  /// What is noted for a hash, if its time is not over.
  func note(_ hash: Int, at now: UInt64) -> Note? {
    guard let place = place(of: hash), let note = notes[place], now < note.end else { return nil }
    return note
  }

  /// The bytes of all, with one more key.
  func byteCount(with ownByteCount: Int) -> Int {
    byteCount.value + (notes.isEmpty ? capacity * MemoryLayout<Note?>.stride : 0) + ownByteCount
  }

  /// Returns the note that made room.
  func add(_ note: Note, _ hash: Int) -> Note? {
    if notes.isEmpty {
      notes = Array(repeating: nil, count: capacity)
      byteCount.add(capacity * MemoryLayout<Note?>.stride)
    }
    let place = place(of: hash) ?? set(of: Self.noted(hash)).min { (notes[$0]?.end ?? 0) < (notes[$1]?.end ?? 0) }!
    let old = notes[place]
    notes[place] = note
    unsafe hashes[place].store(Self.noted(hash), ordering: .relaxed)
    byteCount.add(note.ownByteCount - (old?.ownByteCount ?? 0))
    return old
  }

  /// Takes the note of a hash out.
  func end(_ hash: Int) -> Note? {
    guard let place = place(of: hash) else { return nil }
    unsafe hashes[place].store(0, ordering: .relaxed)
    let note = notes[place]
    notes[place] = nil
    byteCount.add(-(note?.ownByteCount ?? 0))
    return note
  }

  /// Forgets all. Ends nothing, and uses no type that the runtime would have to make: for a forked child, too.
  func forgetAll() {
    for place in 0..<capacity { unsafe hashes[place].store(0, ordering: .relaxed) }
    isStale.store(true, ordering: .relaxed)
  }

  /// What a forked child does first, done once before (ForkGuard.swift).
  func rehearseFork() {
    notes = Array(repeating: nil, count: 1)
    byteCount.add(capacity * MemoryLayout<Note?>.stride)
    forgetAll()
    _ = removeStale()
  }

  /// Takes out what was forgotten.
  func removeStale() -> [Note?] {
    guard isStale.exchange(false, ordering: .relaxed), !notes.isEmpty else { return [] }
    let own = notes.reduce(0) { $0 + ($1?.ownByteCount ?? 0) }
    byteCount.add(-own - capacity * MemoryLayout<Note?>.stride)
    return exchange(&notes, with: [])
  }
}

/// Bytes that two objects count, neither of which refers to the other.
final class ByteCount: Sendable {
  private let count = Atomic<Int>(0)

  func add(_ change: Int) { count.add(change, ordering: .relaxed) }
  var value: Int { count.load(ordering: .relaxed) }
}

/// What a cache's engine, which knows no types, has to do with absent keys.
protocol AbsenceKeeper: ForkProtected {
  var absentBytes: ByteCount { get }
  func forgetAbsent(endsKeys: Bool)
}
