// SPDX-License-Identifier: MIT
// A walk over the entries of all shards in the order of eviction, the least recently used first, that holds no mutex between two
// of them.

/// An entry, and what tells it from all others.
struct NotedObject<Key: Hashable & Sendable, Value: Sendable> {
  let entry: CacheEntry<Key, Value>
  let shard: Int
  let hash: UInt32
  let stamp: UInt64
  let birth: UInt64

  /// Without `now`, the entry's remaining time has no meaning.
  init(_ table: borrowing ObjectTable<Key, Value>, _ position: UInt32, shard: Int, now: UInt64 = 0) {
    entry = CacheEntry(table, position, now: now)
    (self.shard, hash) = (shard, table[position].hash)
    (stamp, birth) = (table[position].stamp, table[position].birth)
  }
}

/// The walk sees the entries that were last used before it began, each once. It knows the next entry of each queue by position
/// and stamp, and looks for it from the queue's beginning when it is no longer there.
@safe struct ObjectWalk<Key: Hashable & Sendable, Value: Sendable>: ~Copyable {
  private struct Place {
    /// The next entry; `.max` where the queue has none left.
    var stamp = UInt64.max
    var position = noPosition
    /// The entries up to this stamp have been seen.
    var passed: UInt64 = 0
  }

  /// For each queue, one for each shard.
  private var places = InlineArray<192, Place>(repeating: Place())
  /// How many of these may have entries.
  private let placeCount: Int
  /// Entries that were used from here on are not seen.
  private let end: UInt64

  /// Over the queues that `includes` names.
  init(_ store: ObjectStore<Key, Value>, before end: UInt64, includes: (ObjectQueue) -> Bool) {
    self.end = end
    let queueCount = store.queueLimit
    placeCount = queueCount * ObjectGate.count
    for queue in 0..<queueCount where includes(ObjectQueue(queue)) {
      for shard in 0..<ObjectGate.count {
        places[queue * ObjectGate.count + shard].stamp = unsafe store.gates[shard].oldestStamp(queue)
      }
    }
  }

  /// The next entry; nil at the end.
  mutating func next(in store: ObjectStore<Key, Value>) -> NotedObject<Key, Value>? {
    while true {
      var (least, turn) = (0, UInt64.max)
      for at in 0..<placeCount where places[at].stamp < end {
        let its = ObjectQueue(at / ObjectGate.count).turn(ofStamp: places[at].stamp)
        if its < turn { (least, turn) = (at, its) }
      }
      guard turn != .max else { return nil }
      let (shard, stamp) = (least % ObjectGate.count, places[least].stamp)
      let noted = store.hold(shard: shard) { held -> NotedObject<Key, Value>? in
        advance(least, in: held.table)
        // Another queue's next entry may be older than what stands there now.
        guard places[least].stamp == stamp else { return nil }
        let position = places[least].position
        places[least].passed = stamp
        point(least, to: held.table[position].newer, in: held.table)
        return NotedObject(held.table, position, shard: shard)
      }
      if let noted { return noted }
    }
  }

  /// Finds the next entry of a queue that has not been seen.
  private mutating func advance(_ at: Int, in table: borrowing ObjectTable<Key, Value>) {
    if table.holds(places[at].position, places[at].stamp) { return }
    var position = table.oldest[at / ObjectGate.count]
    while position != noPosition, table[position].stamp <= places[at].passed { position = table[position].newer }
    point(at, to: position, in: table)
  }

  private mutating func point(_ at: Int, to position: UInt32, in table: borrowing ObjectTable<Key, Value>) {
    places[at].position = position
    places[at].stamp = position == noPosition ? .max : table[position].stamp
  }
}

/// Where the entry with a stamp stands in a list.
@usableFromInline
struct PlaceInOrder {
  let stamp: UInt64
  @usableFromInline let place: Int

  @usableFromInline
  init(_ stamp: UInt64, _ place: Int) { (self.stamp, self.place) = (stamp, place) }

  @usableFromInline
  static func sort(_ places: inout [PlaceInOrder]) { places.sort { $0.stamp < $1.stamp } }
}

extension ObjectStore {
  /// What `make` makes of each entry, the least recently used first. Under a shard's mutex: none of the program's code. `atOnce`:
  /// under the mutexes of all shards.
  @inlinable
  func all<T>(
    atOnce: Bool = false, _ make: (borrowing ObjectTable<Key, Value>, _ position: UInt32, _ shard: Int) -> T
  ) -> [T] {
    var made: [T] = []
    var order: [PlaceInOrder] = []
    // In the order of forks.
    if atOnce { for at in 0..<ObjectGate.count { unsafe gates[at].mutex.lock() } }
    for at in 0..<ObjectGate.count {
      if !atOnce { unsafe gates[at].mutex.lock() }
      defer { if !atOnce { unsafe gates[at].mutex.unlock() } }
      for queue in 0..<ObjectQueue.count {
        var position = unsafe shards[at].table.oldest[queue]
        while position != noPosition {
          unsafe order.append(PlaceInOrder(ObjectQueue(queue).turn(ofStamp: shards[at].table[position].stamp), made.count))
          unsafe made.append(make(shards[at].table, position, at))
          unsafe position = shards[at].table[position].newer
        }
      }
    }
    if atOnce { for at in 0..<ObjectGate.count { unsafe gates[at].mutex.unlock() } }
    PlaceInOrder.sort(&order)
    return order.map { made[$0.place] }
  }

  /// Takes an entry out, unless it was replaced since or, without `evenIfUsed`, used. A verdict is void where it was pinned
  /// meanwhile. Returns whether it went for this reason: where its time is over by now, it goes for that.
  /// `begun`: as in `enforceLimits`.
  func remove(
    _ noted: NotedObject<Key, Value>, _ reason: DepartureReason, evenIfUsed: Bool = false,
    keepingContentSince begun: UInt64 = .max
  ) -> Bool {
    var isExpired = false
    let departed = hold(shard: noted.shard) { shard -> Departed? in
      let position = shard.table.position(withHash: noted.hash, birth: noted.birth)
      guard position != noPosition, evenIfUsed || shard.table[position].stamp == noted.stamp else { return nil }
      isExpired = reason != .discarded && isOver(position, in: shard.table)
      let isVoid = reason != .removed && reason != .discarded && shard.table[position].queue.isPinned
      return isVoid && !isExpired ? nil : remove(position, isExpired ? .expired : reason, from: &shard)
    }
    guard var departed else { return false }
    if noted.stamp >= begun { departed.isDiscardable = false }
    finish(departed)
    return !isExpired
  }
}
