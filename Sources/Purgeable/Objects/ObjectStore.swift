// SPDX-License-Identifier: MIT
// The entries of a cache of objects: sixteen tables, each with a mutex, and one order of last use over all of them.
//
//   key --> hash --> shard: mutex, table (ObjectTable.swift), the stamps of its oldest entries
//                                                                  |
//                        who is next to go: the smallest stamp <---+
//
// Rules for threads and mutexes:
//   - A shard's mutex guards its table. Nobody holds two, and no code of the program runs under one: not the `==` of keys, except
//     for Swift's own types, not handlers, and no end of a key or value.
//   - The stamps of oldest entries are published for those who look for the next to go, who check them under the mutex.

import Glibc
import Synchronization

/// A mutex that threads are often after, and hold for less than it takes to sleep and to wake: `Guarded`'s, without a value, and
/// reachable from code that is compiled into callers.
@usableFromInline @safe
struct ShardMutex: ~Copyable, Sendable {
  private let mutex = Guarded<Void>((), isBusy: true)

  @usableFromInline borrowing func lock() { mutex.lock() }
  @usableFromInline borrowing func unlock() { mutex.unlock() }
}

/// What a shard's mutex guards.
@usableFromInline
struct ObjectShard<Key: Hashable & Sendable, Value: Sendable>: ~Copyable {
  @usableFromInline var table = ObjectTable<Key, Value>()
  @usableFromInline var counters = ObjectCounters()

  init() {}
}

/// A shard's mutex, and what those may read who do not hold it. Apart from the shard: to Swift a change of a part is an access to
/// the whole.
@usableFromInline
struct ObjectGate: ~Copyable, Sendable {
  @usableFromInline let mutex = ShardMutex()
  let oldestStamps = InlineArray<4, Atomic<UInt64>> { _ in Atomic(.max) }
  /// Keeps the next gate's fields out of this one's cache lines.
  private let space = InlineArray<8, UInt64>(repeating: 0)

  init() {}
}

/// What a shard has counted. Under its mutex.
@usableFromInline
struct ObjectCounters: Sendable {
  @usableFromInline var hits = 0
  @usableFromInline var misses = 0
  var discardedMisses = 0
  @usableFromInline var insertions = 0
  @usableFromInline var replacements = 0
  var refusals = 0
  var departures = InlineArray<16, Int>(repeating: 0)

  @usableFromInline
  mutating func count(_ reason: DepartureReason) { departures[reason.rawValue] += 1 }
}

/// `@unchecked Sendable`: what is in a shard is under its mutex.
@usableFromInline @safe
final class ObjectStore<Key: Hashable & Sendable, Value: Sendable>: ProgramClient, @unchecked Sendable {
  @usableFromInline typealias Shard = ObjectShard<Key, Value>
  @usableFromInline typealias Departed = DepartedObject<Key, Value>
  static var shardCount: Int { 16 }

  @usableFromInline let books: ObjectBooks
  @usableFromInline let gates: UnsafeMutablePointer<ObjectGate>
  @usableFromInline let shards: UnsafeMutablePointer<Shard>
  let handlers = Guarded(ObjectHandlers<Key, Value>())
  /// The keys that are being loaded.
  @usableFromInline let loads = LoadTable<Key, Value>()

  init(_ books: ObjectBooks) {
    self.books = books
    unsafe gates = UnsafeMutablePointer.allocate(capacity: Self.shardCount)
    unsafe shards = UnsafeMutablePointer.allocate(capacity: Self.shardCount)
    for at in 0..<Self.shardCount {
      unsafe (gates + at).initialize(to: ObjectGate())
      unsafe (shards + at).initialize(to: Shard())
    }
  }

  deinit {
    for at in 0..<Self.shardCount { unsafe shards[at].table.destroy() }
    unsafe shards.deinitialize(count: Self.shardCount)
    unsafe shards.deallocate()
    unsafe gates.deinitialize(count: Self.shardCount)
    unsafe gates.deallocate()
  }

  // MARK: Under a mutex

  /// Whether `==` of keys is Swift's own code, which may run under the mutex.
  @inlinable static var comparesPlainly: Bool {
    Key.self == String.self || Key.self == Int.self || Key.self == Int64.self || Key.self == Int32.self || Key.self == UInt64.self
      || Key.self == UInt32.self || Key.self == ObjectIdentifier.self
  }

  @inlinable @inline(__always)
  func shardNumber(of hash: Int) -> Int { Int(truncatingIfNeeded: UInt(bitPattern: hash) >> 60) }

  /// Runs `body` under the mutex of the key's shard, with the position of the key's entry or none. What `body` takes out of the
  /// table ends outside of the mutex, if `body` returns it.
  @inlinable @inline(__always)
  func hold<R>(_ key: Key, _ body: (_ shard: inout Shard, _ position: UInt32, _ hash: Int) -> R) -> R {
    // Of the process's random seed.
    let hash = key.hashValue
    let number = shardNumber(of: hash)
    let (gate, shard) = unsafe (gates + number, shards + number)
    guard Self.comparesPlainly else { return holdUnlockedComparing(key, hash, number, body) }
    unsafe gate.pointee.mutex.lock()
    defer { unsafe gate.pointee.mutex.unlock() }
    var position = unsafe shard.pointee.table.first(withHash: hash)
    while position != noPosition, unsafe shard.pointee.table[position].key! != key {
      unsafe position = shard.pointee.table.next(after: position)
    }
    defer { unsafe publish(shard.pointee.table, gate) }
    return unsafe body(&shard.pointee, position, hash)
  }

  /// As `hold`; compares keys while it holds no mutex.
  @inlinable
  func holdUnlockedComparing<R>(
    _ key: Key, _ hash: Int, _ number: Int, _ body: (_ shard: inout Shard, _ position: UInt32, _ hash: Int) -> R
  ) -> R {
    let (gate, shard) = unsafe (gates + number, shards + number)
    unsafe gate.pointee.mutex.lock()
    defer { unsafe gate.pointee.mutex.unlock() }
    search: while true {
      let entered = unsafe shard.pointee.table.entered
      var position = unsafe shard.pointee.table.first(withHash: hash)
      while position != noPosition {
        let birth = unsafe shard.pointee.table[position].birth
        let isSame = unsafe isEqual(key, shard.pointee.table[position].key, whileUnlocked: gate)
        let isThere = unsafe position < shard.pointee.table.capacity && shard.pointee.table[position].birth == birth
        if !isThere { continue search }
        if isSame { break }
        unsafe position = shard.pointee.table.next(after: position)
      }
      // None of those that were there is the key's; one that came meanwhile may be.
      if position == noPosition, unsafe shard.pointee.table.entered != entered { continue }
      defer { unsafe publish(shard.pointee.table, gate) }
      return unsafe body(&shard.pointee, position, hash)
    }
  }

  @inlinable @inline(never)
  func isEqual(_ key: Key, _ other: consuming Key?, whileUnlocked gate: UnsafeMutablePointer<ObjectGate>) -> Bool {
    unsafe gate.pointee.mutex.unlock()
    let isSame = key == other
    // The entry may have left meanwhile, and this be its key's end.
    other = nil
    unsafe gate.pointee.mutex.lock()
    return isSame
  }

  /// Runs `body` under the mutex of one shard.
  func hold<R>(shard number: Int, _ body: (inout Shard) -> R) -> R {
    let (gate, shard) = unsafe (gates + number, shards + number)
    unsafe gate.pointee.mutex.lock()
    defer { unsafe gate.pointee.mutex.unlock() }
    defer { unsafe publish(shard.pointee.table, gate) }
    return unsafe body(&shard.pointee)
  }

  /// Publishes the stamps of the oldest entries. Under the mutex, after a change.
  @usableFromInline
  func publish(_ table: borrowing ObjectTable<Key, Value>, _ gate: UnsafeMutablePointer<ObjectGate>) {
    for queue in 0..<ObjectQueue.count {
      let stamp = table.oldestStamp(queue)
      if unsafe gate.pointee.oldestStamps[queue].load(ordering: .relaxed) == stamp { continue }
      unsafe gate.pointee.oldestStamps[queue].store(stamp, ordering: .relaxed)
    }
  }

  // MARK: Leaving

  /// Takes an entry out, and books it.
  @usableFromInline
  func remove(_ position: UInt32, _ reason: DepartureReason, from shard: inout Shard) -> Departed {
    let departed = shard.table.remove(position, reason)
    shard.counters.count(reason)
    books.book(entries: -1, cost: 0, less: departed.cost)
    return departed
  }

  /// What is due to an entry that left: its content may go, and the handler is told. Under no mutex.
  @usableFromInline
  func finish(_ departed: Departed) {
    if departed.isDiscardable { (departed.value as? any DiscardableContent)?.discardContentIfPossible() }
    if books.hasHandler.load(ordering: .acquiring) { tell(departed) }
  }

  // MARK: When memory is short (ProgramClient.swift)

  override var holdsAnything: Bool { books.count > 0 }
  override var size: Int { books.count }
  override func giveSlice() -> Bool { evictSixteenth() }

  override func upkeepRound() -> Bool {
    books.change()
    return false
  }

  override func endRelief(before: Int) {
    for shard in 0..<Self.shardCount { hold(shard: shard) { $0.table.shrink() } }
    books.growth.begin(before: before, held: books.count, now: books.clock.now())
  }

  // MARK: Forks (ForkGuard.swift)

  override func forEachCompanion(_ body: (any ForkProtected) -> Void) { body(loads) }

  override func lockForFork() {
    for at in 0..<Self.shardCount { unsafe gates[at].mutex.lock() }
    handlers.lock()
    books.budget.lock()
    super.lockForFork()
  }

  override func unlockAfterFork() {
    super.unlockAfterFork()
    books.budget.unlock()
    handlers.unlock()
    for at in 0..<Self.shardCount { unsafe gates[at].mutex.unlock() }
  }
}
