// SPDX-License-Identifier: MIT
// Keys in ordinary memory: those without bytes of their own, and all keys of a cache that has to name what it lost.
//
// In every shard a tracked key has a number, which is what the engine's slot and element know of it. The table of a shard is
// touched only under that shard's mutex; its own mutex says so to the compiler, and is never waited for.

import Synchronization

/// An entry that left, as the delegate is told.
public struct Departure<Key: Hashable & Sendable, Value: PurgeableValue>: Sendable {
  public let key: Key
  /// The value, where it still exists: not when the kernel took it.
  public let value: Value?
  public let cost: UInt64
  public let reason: DepartureReason
}

final class KeyTable<Key: Hashable & Sendable, Value: PurgeableValue>: EngineObserver {
  struct Shard {
    var numbers: [Key: UInt32] = [:]
    var keys: [Key?] = []
    var hashes: [UInt64] = []
    var free: [UInt32] = []
  }

  /// What waits to be told, and keys that wait to be destroyed outside of all mutexes.
  struct Pending {
    var departures: [(key: Key, departure: EngineDeparture)] = []
    var keys: [Key] = []
  }

  let shards: [Mutexed<Shard>]
  private let pending = Guarded(Pending())
  private let tell: (@Sendable (Departure<Key, Value>) -> Void)?

  init(shardCount: Int, tell: (@Sendable (Departure<Key, Value>) -> Void)?) {
    shards = (0..<shardCount).map { _ in Mutexed(Shard()) }
    self.tell = tell
  }

  var wantsValues: Bool { tell != nil }

  var byteCount: Int {
    let perKey = MemoryLayout<Key>.stride + 8 + (MemoryLayout<Key?>.stride + 12)
    return shards.reduce(0) { sum, shard in shard.mutex.withLock { sum + max($0.keys.capacity, $0.numbers.capacity) * perKey } }
  }

  /// The number of a key, nil if it has none.
  func number(of key: Key, shard: Int) -> UInt32? { shards[shard].mutex.withLock { $0.numbers[key] } }

  /// The number of a key, a fresh one if it has none; nil when a shard has no more numbers.
  func numberOrFresh(of key: Key, hash: UInt64, shard: Int) -> (number: UInt32, isFresh: Bool)? {
    shards[shard].mutex.withLock { table in
      if let number = table.numbers[key] { return (number, false) }
      let number: UInt32
      if let free = table.free.popLast() {
        number = free
        table.keys[Int(number)] = key
        table.hashes[Int(number)] = hash
      } else {
        guard table.keys.count < Int(EngineKey.trackedNumberLimit) else { return nil }
        number = UInt32(table.keys.count)
        table.keys.append(key)
        table.hashes.append(hash)
      }
      table.numbers[key] = number
      return (number, true)
    }
  }

  /// Takes back a number that came to nothing.
  func release(_ number: UInt32, shard: Int) {
    let key = shards[shard].mutex.withLock { Self.take(number, from: &$0) }
    if let key { pending.withLock { $0.keys.append(key) } }
  }

  private static func take(_ number: UInt32, from table: inout Shard) -> Key? {
    guard Int(number) < table.keys.count, let key = table.keys[Int(number)] else { return nil }
    table.keys[Int(number)] = nil
    table.numbers[key] = nil
    table.free.append(number)
    if table.numbers.isEmpty {
      // Nothing left: the memory goes back too.
      table = Shard()
    }
    return key
  }

  func hash(ofNumber number: UInt32, shard: Int) -> UInt64? {
    shards[shard].mutex.withLock { Int(number) < $0.hashes.count ? $0.hashes[Int(number)] : nil }
  }

  func entriesDeparted(_ departures: [EngineDeparture], shard: Int) {
    for departure in departures {
      let key = shards[shard].mutex.withLock { table -> Key? in
        if departure.keepsKey {
          return Int(departure.number) < table.keys.count ? table.keys[Int(departure.number)] : nil
        }
        return Self.take(departure.number, from: &table)
      }
      guard let key else { continue }
      pending.withLock { pending in
        pending.keys.append(key)
        if tell != nil { pending.departures.append((key, departure)) }
      }
    }
  }

  /// Adds a departure that the engine never saw: a value that was refused.
  func refuse(_ departure: Departure<Key, Value>) {
    guard let tell else { return }
    tell(departure)
  }

  func lockForFork() {
    for shard in shards { shard.mutex.lock() }
    pending.lock()
  }

  func unlockAfterFork() {
    pending.unlock()
    for shard in shards { shard.mutex.unlock() }
  }

  func deliver() {
    let taken = pending.withLock { pending in
      let taken = pending
      pending = Pending()
      return taken
    }
    guard let tell else { return }
    for (key, departure) in taken.departures {
      // Made of its bytes only here: decoding is the user's code.
      let value = departure.value.flatMap { unsafe Value(purgeableBytes: $0.span.bytes) }
      tell(Departure(key: key, value: value, cost: departure.cost, reason: departure.reason))
    }
    // `taken.keys` end here, outside of every mutex: a key's deinit may use the cache.
  }
}

/// A mutex that can stand in an array.
final class Mutexed<Value: Sendable>: Sendable {
  let mutex: Guarded<Value>
  init(_ value: Value) { mutex = Guarded(value) }
}
