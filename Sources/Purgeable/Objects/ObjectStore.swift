// SPDX-License-Identifier: MIT
// The entries of a cache of objects: sixteen tables, each with a mutex, and one order of last use over all of them.
//
//   key --> hash --> shard: mutex, table (ObjectTable.swift), the stamps of its oldest entries
//                                                                  |
//                        who is next to go: the smallest stamp <---+
//
// Rules for threads and mutexes:
//   - A shard's mutex guards its table. Nobody holds two, but who looks at the whole, in order (`snapshot()`, a fork), and no
//     code of the program runs under one: not the `==` of keys, except
//     for Swift's own types and what `isSurelyEqual` asks, not handlers, and no end of a key or value.
//   - The stamps of oldest entries are published for those who look for the next to go, who check them under the mutex.

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
  /// Keeps the next shard's fields out of this one's cache lines.
  private let space = InlineArray<8, UInt64>(repeating: 0)

  /// Uses an entry, and counts that.
  @inlinable @inline(__always)
  mutating func hit(_ position: UInt32) -> (value: Value, isDiscardable: Bool, birth: UInt64) {
    counters.hits += 1
    table.use(position, at: MonotonicTime.now)
    return (table[position].value!, table[position].queue.isDiscardable, table[position].birth)
  }
}

/// A shard's mutex, and what those may read who do not hold it. Apart from the shard: to Swift a change of a part is an access to
/// the whole.
@usableFromInline
struct ObjectGate: ~Copyable, Sendable {
  @usableFromInline let mutex = ShardMutex()
  /// Keeps what is read only, above, out of the cache lines of what is written.
  private let space = InlineArray<8, UInt64>(repeating: 0)
  private let oldestStamps = InlineArray<12, Atomic<UInt64>> { _ in Atomic(.max) }
  private let moreSpace = InlineArray<8, UInt64>(repeating: 0)

  /// The number of shards.
  @inlinable static var count: Int { 16 }

  /// The stamp of a queue's oldest entry, as of the last change; `.max` where there is none.
  func oldestStamp(_ queue: Int) -> UInt64 { oldestStamps[queue].load(ordering: .relaxed) }

  /// Under the mutex.
  @usableFromInline
  func publish(_ stamp: UInt64, ofQueue queue: Int) { oldestStamps[queue].store(stamp, ordering: .relaxed) }
}

/// The entry that was used before all others, as far as is published.
@usableFromInline
struct OldestObject {
  /// `.max` where there is none.
  @usableFromInline var stamp = UInt64.max
  @usableFromInline var shard = 0
  @usableFromInline var queue = 0

  /// In these queues, a bit for each; speculative ones go before all others. `spared`: the stamp of an entry that is passed over
  /// as long as it is speculative, and there is another one.
  @usableFromInline
  init(_ gates: UnsafeMutablePointer<ObjectGate>, _ queues: UInt16, sparing spared: UInt64) {
    if queues & ObjectQueue.speculativeBits != 0 { unsafe look(gates, queues & ObjectQueue.speculativeBits) }
    if stamp != .max, stamp != spared { return }
    let itself = self
    stamp = .max
    unsafe look(gates, queues & ObjectQueue.normalBits)
    // The spared one is the youngest of its kind.
    if stamp == .max { self = itself }
  }

  private mutating func look(_ gates: UnsafeMutablePointer<ObjectGate>, _ queues: UInt16) {
    for one in 0..<ObjectQueue.count where queues & ObjectQueue(one).bit != 0 {
      for at in 0..<ObjectGate.count {
        let stamp = unsafe gates[at].oldestStamp(one)
        if stamp < self.stamp { (self.stamp, shard, queue) = (stamp, at, one) }
      }
    }
  }
}

/// What a shard has counted. Under its mutex.
@usableFromInline
struct ObjectCounters: Sendable {
  @usableFromInline var hits = 0
  @usableFromInline var misses = 0
  var discardedMisses = 0
  @usableFromInline var expiredMisses = 0
  var outdatedMisses = 0
  @usableFromInline var insertions = 0
  @usableFromInline var replacements = 0
  /// Priorities that were changed.
  var priorities = 0
  var refusals = 0
  @usableFromInline var departures = InlineArray<16, Int>(repeating: 0)

  @inlinable
  mutating func count(_ reason: DepartureReason, _ count: Int = 1) { departures[reason.rawValue] += count }
}

/// `@unchecked Sendable`: what is in a shard is under its mutex.
@usableFromInline @safe
final class ObjectStore<Key: Hashable & Sendable, Value: Sendable>: ObjectBooks, @unchecked Sendable {
  @usableFromInline typealias Shard = ObjectShard<Key, Value>
  @usableFromInline typealias Departed = DepartedObject<Key, Value>

  @usableFromInline let gates: UnsafeMutablePointer<ObjectGate>
  @usableFromInline let shards: UnsafeMutablePointer<Shard>
  /// Whether two keys are equal by what may be asked under a mutex, such as their identity; false is no answer.
  @usableFromInline let isSurelyEqual: @Sendable (Key, Key) -> Bool
  let name: Guarded<String>
  let guardedHandlers: Guarded<ObjectHandlersInForce<Key, Value>>
  let noHandlers = ObjectHandlersInForce(ObjectHandlers<Key, Value>())
  /// The keys that are being loaded.
  @usableFromInline let loads: LoadTable<Key>
  /// As `LoadTable.overtake`: a call from outside would count the table's users.
  @usableFromInline func overtake(_ key: Key) { loads.overtake(key) }
  /// Those who want to know what changed.
  let lazyBoard = AtomicLazyReference<ChangeBoard<Key>>()
  let lazy = LazyParts()

  init(_ options: CacheOptions, clock: MonotonicClock, isSurelyEqual: @escaping @Sendable (Key, Key) -> Bool) {
    self.isSurelyEqual = isSurelyEqual
    name = Guarded(options.name)
    loads = LoadTable(refreshLimit: options.refreshLimit)
    guardedHandlers = Guarded(noHandlers)
    unsafe gates = UnsafeMutablePointer.allocate(capacity: ObjectGate.count)
    unsafe shards = UnsafeMutablePointer.allocate(capacity: ObjectGate.count)
    for at in 0..<ObjectGate.count {
      unsafe (gates + at).initialize(to: ObjectGate())
      unsafe (shards + at).initialize(to: Shard())
    }
    super.init(options, clock: clock)
  }

  deinit {
    for at in 0..<ObjectGate.count { unsafe shards[at].table.destroy() }
    unsafe shards.deinitialize(count: ObjectGate.count)
    unsafe shards.deallocate()
    unsafe gates.deinitialize(count: ObjectGate.count)
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
  func hold<R>(_ key: Key, _ body: (_ shard: inout Shard, _ position: UInt32, _ hash: UInt32) -> R) -> R {
    // Of the process's random seed.
    let hashValue = key.hashValue
    let (number, hash) = (shardNumber(of: hashValue), UInt32(truncatingIfNeeded: hashValue))
    let (gate, shard) = unsafe (gates + number, shards + number)
    guard Self.comparesPlainly else { return holdUnlockedComparing(key, hash, number, body) }
    unsafe gate.pointee.mutex.lock()
    defer { unsafe gate.pointee.mutex.unlock() }
    var position = unsafe shard.pointee.table.first(withHash: hash)
    while position != noPosition, unsafe shard.pointee.table[position].key! != key {
      unsafe position = shard.pointee.table.next(after: position)
    }
    defer { unsafe publish(&shard.pointee.table, gate) }
    return unsafe body(&shard.pointee, position, hash)
  }

  /// As `hold`; compares keys while it holds no mutex.
  @inlinable
  func holdUnlockedComparing<R>(
    _ key: Key, _ hash: UInt32, _ number: Int, _ body: (_ shard: inout Shard, _ position: UInt32, _ hash: UInt32) -> R
  ) -> R {
    let (gate, shard) = unsafe (gates + number, shards + number)
    unsafe gate.pointee.mutex.lock()
    defer { unsafe gate.pointee.mutex.unlock() }
    defer { unsafe publish(&shard.pointee.table, gate) }
    // By the numbers of their values, which stay what they are where the table moves meanwhile, and its chains change their
    // order. The oldest first, so that each is compared once, and there is an end while others store other keys. A value that
    // takes another's place has another number: beside a thread that replaces this key's without a pause, a `==` that takes long
    // is called many times.
    var compared: UInt64 = 0
    while true {
      var position = unsafe shard.pointee.table.oldest(withHash: hash, after: compared)
      if position == noPosition { return unsafe body(&shard.pointee, noPosition, hash) }
      unsafe compared = shard.pointee.table[position].birth
      if unsafe !isSurelyEqual(key, shard.pointee.table[position].key!) {
        guard unsafe isEqual(key, at: position, shard, gate) else { continue }
        unsafe position = shard.pointee.table.position(withHash: hash, birth: compared)
        // It has left meanwhile, or has another value.
        if position == noPosition { continue }
      }
      return unsafe body(&shard.pointee, position, hash)
    }
  }

  /// Whether the key is that of an entry, which may be elsewhere or gone afterwards.
  @inlinable @inline(never)
  func isEqual(
    _ key: Key, at position: UInt32, _ shard: UnsafeMutablePointer<Shard>, _ gate: UnsafeMutablePointer<ObjectGate>
  ) -> Bool {
    var other = unsafe shard.pointee.table[position].key
    unsafe gate.pointee.mutex.unlock()
    let isSame = key == other
    // The entry may have left meanwhile, and this be its key's end.
    other = nil
    unsafe gate.pointee.mutex.lock()
    return isSame
  }

  /// Runs `body` under the mutex of one shard.
  @inlinable @inline(__always)
  func hold<R: ~Copyable>(shard number: Int, _ body: (inout Shard) -> R) -> R {
    let (gate, shard) = unsafe (gates + number, shards + number)
    unsafe gate.pointee.mutex.lock()
    defer { unsafe gate.pointee.mutex.unlock() }
    defer { unsafe publish(&shard.pointee.table, gate) }
    return unsafe body(&shard.pointee)
  }

  /// Publishes the stamps of the oldest entries, if they have changed. Under the mutex.
  @inlinable @inline(__always)
  func publish(_ table: inout ObjectTable<Key, Value>, _ gate: UnsafeMutablePointer<ObjectGate>) {
    while table.unpublished != 0 {
      let queue = table.unpublished.trailingZeroBitCount
      table.unpublished &= table.unpublished - 1
      unsafe gate.pointee.publish(table.oldestStamp(queue), ofQueue: queue)
    }
  }

  // MARK: Leaving

  /// Takes an entry out, and books it.
  @inlinable
  func remove(_ position: UInt32, _ reason: DepartureReason, from shard: inout Shard) -> Departed {
    let departed = shard.table.remove(position, reason)
    shard.counters.count(reason)
    book(entries: -1, cost: 0, less: departed.cost)
    return departed
  }

  /// Puts an empty table in a shard's place, and books that the entries of the old one, which the caller gets, were removed.
  func takeTable(ofShard number: Int) -> ObjectTable<Key, Value> {
    hold(shard: number) { shard in
      shard.counters.count(.removed, shard.table.count)
      book(entries: -shard.table.count, cost: 0, less: 0)
      book(CostSum(), less: shard.table.costs)
      return shard.table.replaceByEmpty()
    }
  }

  /// Ends the entries and the handlers, untold.
  func dropAll() {
    lazy.endIntervals()
    lazyBoard.load()?.removeAll()
    setHandlers { $0 = ObjectHandlers() }
    // Keys are the program's: none is to end where the library lets the cache go.
    loads.forgetAbsent(endsKeys: true)
    for at in 0..<ObjectGate.count {
      var old = takeTable(ofShard: at)
      old.destroy()
    }
  }

  /// What is due to an entry that left: the handler is told, and its content may go then. Under no mutex.
  @inlinable
  func finish(_ departed: Departed) {
    if isWatched { noteChange(of: departed.key) }
    finishRefused(departed)
  }

  /// As `finish`, for what never was an entry.
  @inlinable
  func finishRefused(_ refused: Departed) {
    if tells { tell(refused) } else if refused.isDiscardable { discardContent(of: refused) }
  }

  /// A key was stored, or its entry has left. Under no mutex.
  @usableFromInline
  func noteChange(of key: Key) { lazyBoard.load()?.note(key) }

  @usableFromInline
  func discardContent(of departed: Departed) {
    (departed.value as? any DiscardableContent)?.discardContentIfPossible()
  }

  // MARK: When memory is short (ProgramClient.swift)

  override var holdsAnything: Bool { count > 0 || loads.absentBytes.value > 0 }
  override var size: Int { count }
  override func beginRelief() -> Bool {
    loads.forgetAbsent(endsKeys: true)
    return dropExpired() + sweep() > 0
  }
  override func giveSlice() -> Bool { evictSixteenth() }

  override func upkeepRound() -> UInt64 {
    lazy.knownIntervals?.resume()
    change()
    return min(untilDue(), untilIdleRound())
  }

  override func upkeep() {
    dropExpired()
    dropIdle()
  }

  override func endRelief(before: Int) {
    for shard in 0..<ObjectGate.count { hold(shard: shard) { $0.table.shrink() } }
    growth.begin(before: before, held: count, now: clock.now())
  }

  // MARK: Forks (ForkGuard.swift)

  override func forEachCompanion(_ body: (any ForkProtected) -> Void) {
    body(loads)
    if let board = lazyBoard.load() { body(board) }
    lazy.forEach(body)
  }

  override func lockForFork() {
    for at in 0..<ObjectGate.count { unsafe gates[at].mutex.lock() }
    guardedHandlers.lock()
    name.lock()
    budget.lock()
    super.lockForFork()
  }

  override func unlockAfterFork() {
    super.unlockAfterFork()
    budget.unlock()
    name.unlock()
    guardedHandlers.unlock()
    for at in 0..<ObjectGate.count { unsafe gates[at].mutex.unlock() }
  }
}
