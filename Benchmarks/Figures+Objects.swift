// SPDX-License-Identifier: MIT
// Caches of objects: against a textbook LRU, NSCache, and one thread against two. Keys and objects are made beforehand.

import Foundation
import Purgeable
import PurgeableFoundation
import ToolSupport

/// What a cache keeps.
final class Thing: Counted, Sendable {
  let number: Int
  init(_ number: Int) { self.number = number }
  var countedBytes: Int { 0 }
}

/// A key of a cache of objects, and the object that says the same to NSCache.
protocol ObjectWorkloadKey: Hashable, Sendable, Counted {
  init(number: Int)
  var foundation: NSObject { get }
}

extension Int: ObjectWorkloadKey {
  init(number: Int) { self = Int(truncatingIfNeeded: SplitMix64.mix(UInt64(number) &+ 1)) }
  var foundation: NSObject { NSNumber(value: self) }
}

extension String: ObjectWorkloadKey {
  init(number: Int) { self = "https://example.org/image/" + String(Int(number: number).magnitude, radix: 36) }
  var foundation: NSObject { NSString(string: self) }
}

/// What is measured, in one shape. The loops are compiled for each of them.
protocol ObjectPeer<Key> {
  associatedtype Key
  func get(_ key: Key) -> Thing?
  func put(_ thing: Thing, _ key: Key, _ cost: Int)
}

extension ObjectCache: ObjectPeer where Value == Thing {
  func get(_ key: Key) -> Thing? { value(forKey: key) }
  func put(_ thing: Thing, _ key: Key, _ cost: Int) { setValue(thing, forKey: key, cost: cost) }
}

extension TextbookLRU: ObjectPeer where Value == Thing {
  func get(_ key: Key) -> Thing? { value(forKey: key) }
  func put(_ thing: Thing, _ key: Key, _ cost: Int) { setValue(thing, forKey: key, cost: cost) }
}

struct FoundationPeer: ObjectPeer {
  let cache: NSCache<NSObject, Thing>
  func get(_ key: NSObject) -> Thing? { cache.object(forKey: key) }
  func put(_ thing: Thing, _ key: NSObject, _ cost: Int) { cache.setObject(thing, forKey: key, cost: cost) }
}

struct ShapePeer: ObjectPeer {
  let cache: PurgeableNSCache<NSObject, Thing>
  func get(_ key: NSObject) -> Thing? { cache.object(forKey: key) }
  func put(_ thing: Thing, _ key: NSObject, _ cost: Int) { cache.setObject(thing, forKey: key, cost: cost) }
}

enum ObjectWork: Int {
  case hits, stores, fullStores
}

/// Twice as many keys and objects as there are entries, so that half of them can be new ones.
struct ObjectWorkload<Key> {
  let work: ObjectWork
  let entries: Int
  let keys: [Key]
  let things: [Thing]
  /// The keys of the first half, and their places.
  let asked: [Key]
  private let places: [Int]

  init(_ work: ObjectWork, entries: Int, _ key: (Int) -> Key) {
    (self.work, self.entries) = (work, entries)
    keys = (0..<2 * entries).map(key)
    things = (0..<2 * entries).map { Thing($0) }
    var generator = SplitMix64()
    places = Array(0..<entries).shuffled(using: &generator)
    asked = places.map { [keys] in keys[$0] }
  }

  var countLimit: Int? { work == .fullStores ? entries : nil }

  /// Falling, so that NSCache, which keeps its entries by rising costs, files each one at once.
  func fill(_ peer: some ObjectPeer<Key>) {
    for at in 0..<entries { peer.put(things[at], keys[at], work == .hits ? 0 : 2 * entries - at) }
  }

  /// A part of the work, from where the last one ended: `count` operations of a cache that was filled.
  @inline(never)
  func perform<P: ObjectPeer>(_ peer: P, _ cursor: inout Int, _ count: Int) throws where P.Key == Key {
    let from = cursor
    cursor += count
    var missing = 0
    switch work {
    case .hits: for at in from..<from + count where peer.get(asked[at % entries]) == nil { missing += 1 }
    case .stores:
      for at in from..<from + count {
        // A known key, and another cost than the last time.
        peer.put(things[places[at % entries]], asked[at % entries], cost(at))
      }
    case .fullStores:
      for at in from + entries..<from + entries + count { peer.put(things[at % keys.count], keys[at % keys.count], cost(at)) }
    }
    if missing > 0 { throw ToolFailure("\(missing) of \(count) keys were not found") }
  }

  @inline(__always)
  private func cost(_ at: Int) -> Int { Int(SplitMix64.mix(UInt64(at)) % UInt64(2 * entries)) + 1 }
}

extension ObjectWorkload: Sendable where Key: Sendable {}

enum Objects {
  private static let kinds = ["Int", "String"]
  private static let works = ["hits", "stores of known keys", "stores at a count limit of 100,000"]

  static func figures(_ scale: Scale) throws -> [Figure] {
    var figures: [Figure] = []
    for (kind, keys) in kinds.enumerated() {
      for (work, name) in works.enumerated() {
        let numbers = try ChildRun.run("objects", [kind, work, 100_000, scale(15, quick: 3)])
        let note = try ["cache", "lru", "nscache"].map { "\($0) \(Figure.text(try numbers.value($0))) ns" }
        figures += [
          Figure(
            "objects, \(keys) keys: \(name), against a textbook LRU", .time, try Spread(numbers, "cache/lru"), .atMost(1.2),
            "times its time", note: note.joined(separator: ", ")),
          Figure(
            "objects, \(keys) keys: \(name), against NSCache", .time, try Spread(numbers, "nscache/cache"),
            .atLeast([4, 10, 50][work]), "times as fast"),
        ]
      }
    }
    guard ThreadPair.isPossible else { return figures }
    for (kind, keys) in kinds.enumerated() {
      let numbers = try ChildRun.run("object-threads", [kind, 100_000, scale(15, quick: 3)])
      let note = try ["one", "two", "lru-one", "lru-two"].map { "\($0) \(Figure.text(try numbers.value($0))) ns" }
      figures.append(
        Figure(
          "objects, \(keys) keys: hits by two threads", .time, try Spread(numbers, "two/one"), .atLeast(1.5),
          "times one thread's", note: note.joined(separator: ", ")))
    }
    return figures
  }

  /// Arguments: keys, work, entries, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    arguments[0] == 0 ? try measure(Int.self, arguments) : try measure(String.self, arguments)
  }

  private static func measure<Key: ObjectWorkloadKey>(_: Key.Type, _ arguments: [Int]) throws -> Numbers {
    let (entries, rounds) = (arguments[2], arguments[3])
    let work = ObjectWork(rawValue: arguments[1])!
    let workload = ObjectWorkload(work, entries: entries) { Key(number: $0) }
    let foundationWorkload = ObjectWorkload(work, entries: entries) { Key(number: $0).foundation }
    let cache = try ObjectCache<Key, Thing>(countLimit: workload.countLimit)
    let lru = TextbookLRU<Key, Thing>(Limits(count: workload.countLimit ?? .max))
    let nsCache = FoundationPeer(cache: NSCache())
    nsCache.cache.countLimit = workload.countLimit ?? 0
    workload.fill(cache)
    workload.fill(lru)
    foundationWorkload.fill(nsCache)
    // Where NSCache looks for the place of each cost, a hundredth will do.
    let fewer = work == .hits ? entries : entries / 100
    var (at, lruAt, nsCacheAt) = (0, 0, 0)
    let times = try Rounds.alternate(
      rounds,
      [
        { try workload.perform(cache, &at, entries) }, { try workload.perform(lru, &lruAt, entries) },
        { try foundationWorkload.perform(nsCache, &nsCacheAt, fewer) },
      ]
    ).map { [$0[0] / Double(entries), $0[1] / Double(entries), $0[2] / Double(fewer)] }
    guard cache.count == entries, lru.count == entries else { throw ToolFailure("\(cache.count) entries, not \(entries)") }
    var numbers: Numbers = [:]
    for (side, name) in ["cache", "lru", "nscache"].enumerated() { numbers[name] = Spread(times.map { $0[side] }).median }
    Rounds.ratio(times, 0, over: 1).write(to: &numbers, "cache/lru")
    Rounds.ratio(times, 2, over: 0).write(to: &numbers, "nscache/cache")
    return numbers
  }

  /// Arguments: keys, entries, rounds.
  @Sendable static func measureThreads(_ arguments: [Int]) throws -> Numbers {
    arguments[0] == 0 ? try measureThreads(Int.self, arguments) : try measureThreads(String.self, arguments)
  }

  private static func measureThreads<Key: ObjectWorkloadKey>(_: Key.Type, _ arguments: [Int]) throws -> Numbers {
    let (entries, rounds) = (arguments[1], arguments[2])
    let workload = ObjectWorkload(.hits, entries: entries) { Key(number: $0) }
    let cache = try ObjectCache<Key, Thing>()
    let lru = TextbookLRU<Key, Thing>(Limits())
    workload.fill(cache)
    workload.fill(lru)
    /// Each thread asks for a half of the keys.
    func nanoseconds(_ peer: some ObjectPeer<Key> & Sendable, threads: Int) -> Double {
      ThreadPair.wallNanoseconds(threads: threads) { thread in
        for _ in 0..<4 {
          var at = thread * entries / 2
          do { try workload.perform(peer, &at, entries / 2) } catch { fatalError("\(error)") }
        }
      } / Double(2 * entries)
    }
    var times: [[Double]] = []
    for round in 0...rounds {
      let row = [
        nanoseconds(cache, threads: 1), nanoseconds(cache, threads: 2), nanoseconds(lru, threads: 1),
        nanoseconds(lru, threads: 2),
      ]
      if round > 0 { times.append(row) }
    }
    var numbers: Numbers = [:]
    for (side, name) in ["one", "two", "lru-one", "lru-two"].enumerated() {
      numbers[name] = Spread(times.map { $0[side] }).median
    }
    Spread(times.map { 2 * $0[0] / $0[1] }).write(to: &numbers, "two/one")
    return numbers
  }
}
