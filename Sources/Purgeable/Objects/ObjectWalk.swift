// SPDX-License-Identifier: MIT
// A walk over the entries of all shards, the least recently used first, that holds no mutex between two of them.

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

  private var places = InlineArray<64, Place>(repeating: Place())
  /// Entries that were used from here on are not seen.
  private let end: UInt64

  /// Over the queues that `includes` names.
  init(_ store: ObjectStore<Key, Value>, before end: UInt64, includes: (ObjectQueue) -> Bool) {
    self.end = end
    for queue in 0..<ObjectQueue.count where includes(ObjectQueue(queue)) {
      for shard in 0..<16 { places[shard * 4 + queue].stamp = store.publishedStamp(shard: shard, queue: queue) }
    }
  }

  /// Calls `body` with the next entry, under its shard's mutex; nil at the end.
  mutating func next<R>(in store: ObjectStore<Key, Value>, _ body: (inout ObjectShard<Key, Value>, UInt32) -> R) -> R? {
    while true {
      var least = 0
      for at in places.indices where places[at].stamp < places[least].stamp { least = at }
      let stamp = places[least].stamp
      guard stamp < end else { return nil }
      let result = store.hold(shard: least / 4) { shard -> R? in
        advance(least, in: shard.table)
        // Another queue's next entry may be older than what stands there now.
        guard places[least].stamp == stamp else { return nil }
        let position = places[least].position
        places[least].passed = stamp
        let newer = shard.table[position].newer
        places[least].position = newer
        places[least].stamp = newer == noPosition ? .max : shard.table[newer].stamp
        return body(&shard, position)
      }
      if let result { return result }
    }
  }

  /// Finds the next entry of a queue that has not been seen.
  private mutating func advance(_ at: Int, in table: borrowing ObjectTable<Key, Value>) {
    if table.holds(places[at].position, places[at].stamp) { return }
    var position = table.oldest[at % 4]
    while position != noPosition, table[position].stamp <= places[at].passed { position = table[position].newer }
    places[at].position = position
    places[at].stamp = position == noPosition ? .max : table[position].stamp
  }
}
