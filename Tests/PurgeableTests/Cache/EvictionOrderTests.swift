// SPDX-License-Identifier: MIT
// The order of eviction alone, without a cache: against a simulation of S3-FIFO, and rule by rule.

import CPurgeable
import Testing
import ToolSupport

@testable import Purgeable

/// A cache of single entries that does what the order decides, and decides nothing by itself.
private struct OrderedEntries {
  private struct Entry {
    var queue: EvictionQueue
    var counter: UInt64
  }
  private let order = EvictionOrder.s3FIFO
  private let capacity: Int
  private var entries: [Int: Entry] = [:]
  private var queues = [KeyQueue(), KeyQueue()]
  private var ghost = KeyQueue()
  private var ghosts: Set<Int> = []

  init(capacity: Int) { self.capacity = capacity }

  /// Requests a key. Returns whether it was a hit.
  mutating func request(_ key: Int) -> Bool {
    if let entry = entries[key] {
      entries[key]!.counter = min(EvictionOrder.highestCounter, entry.counter + 1)
      return true
    }
    let queue = order.queue(ofNew: ghosts.remove(key) == nil ? nil : .evicted)
    while entries.count >= capacity { takeTurn() }
    entries[key] = Entry(queue: queue, counter: 0)
    queues[queue.rawValue].append(key)
    return false
  }

  private mutating func takeTurn() {
    let queue = order.next(
      probation: UInt128(queues[0].count), main: UInt128(queues[1].count), limit: UInt128(capacity))
    guard let key = queues[queue.rawValue].popFirst(), let entry = entries[key] else { return }
    switch order.verdict(counter: entry.counter, byteCount: 1, queue, .limit, order.rule(queue, .limit)) {
    case .keep(let counter):
      entries[key] = Entry(queue: .main, counter: counter)
      queues[EvictionQueue.main.rawValue].append(key)
    case .evict:
      entries[key] = nil
      // As in the reference implementation: the ghost gets entries evicted from probation.
      guard queue == .probation else { return }
      ghost.append(key)
      ghosts.insert(key)
      while ghost.count > order.rememberedCount(ofLiving: capacity), let old = ghost.popFirst() { ghosts.remove(old) }
    }
  }
}

@Suite("EvictionOrder")
struct EvictionOrderTests {
  private let order = EvictionOrder.s3FIFO

  @Test("one entry at a time it is S3-FIFO: the same hits, request by request", arguments: [10, 80, 800], [1, 2, 3] as [UInt64])
  func againstSimulation(capacity: Int, seed: UInt64) {
    var ordered = OrderedEntries(capacity: capacity)
    var exact = ExactS3FIFO(capacity: capacity)
    var hits = 0
    for (number, key) in skewedRequests(count: 30_000, objects: 8000, seed: seed).enumerated() {
      let (isHit, expected) = (ordered.request(key), exact.request(key))
      guard isHit == expected else {
        Issue.record("request \(number), key \(key): \(isHit), the simulation says \(expected)")
        return
      }
      hits += isHit ? 1 : 0
    }
    #expect(hits > 1000)
  }

  @Test("probation gives while it holds more than a tenth, main when it holds more than nine tenths of a limit")
  func turns() {
    #expect(order.next(probation: 11, main: 89) == .probation)
    #expect(order.next(probation: 10, main: 90) == .main)
    #expect(order.next(probation: 0, main: 1) == .main)
    #expect(order.next(probation: 1, main: 0) == .probation)
    #expect(order.next(probation: 1, main: 1000, limit: 0) == .main)
    #expect(order.next(probation: 9, main: 91, limit: 100) == .main)
    #expect(order.next(probation: 1, main: 90, limit: 100) == .probation)
    // Of a limit of a few entries, one is for probation.
    #expect(order.next(probation: 1, main: 3, limit: 4) == .probation)
    #expect(order.next(probation: 1, main: 4, limit: 4) == .main)
    // The largest possible sum of costs.
    let most = UInt128(UInt64.max) << 33
    #expect(order.next(probation: most, main: most) == .probation)
    #expect(order.next(probation: 1, main: most, limit: .max) == .probation)
  }

  @Test("what came back soon goes to main, what was removed or is unknown to probation")
  func newEntries() {
    #expect(order.queue(ofNew: .evicted) == .main)
    #expect(order.queue(ofNew: .discarded) == .main)
    #expect(order.queue(ofNew: .removed) == .probation)
    #expect(order.queue(ofNew: nil) == .probation)
  }

  @Test("an entry alone: the counter from which it stays, and what is left of it")
  func verdicts() {
    // By queue and cause: the verdicts for counters 0 to 3.
    let expected: [(EvictionQueue, EvictionCause, [EvictionOrder.Verdict])] = [
      (.probation, .limit, [.evict, .evict, .keep(counter: 0), .keep(counter: 0)]),
      (.main, .limit, [.evict, .keep(counter: 0), .keep(counter: 1), .keep(counter: 2)]),
      (.probation, .relief, [.evict, .keep(counter: 0), .keep(counter: 1), .keep(counter: 2)]),
      (.main, .relief, [.evict, .keep(counter: 0), .keep(counter: 1), .keep(counter: 2)]),
      (.probation, .idle, [.evict, .keep(counter: 0), .keep(counter: 0), .keep(counter: 0)]),
      (.main, .idle, [.evict, .keep(counter: 0), .keep(counter: 0), .keep(counter: 0)]),
    ]
    for (queue, cause, verdicts) in expected {
      let rule = order.rule(queue, cause)
      let found = (0...3).map { order.verdict(counter: $0, byteCount: 1 << 40, queue, cause, rule) }
      #expect(found == verdicts, "\(queue), \(cause)")
    }
  }

  @Test("of a slab no more is kept than there is room for: the most used")
  func slabs() {
    var random = SplitMix64(seed: 5)
    for _ in 0..<2000 {
      let bytes = SIMD4<Int>((0..<4).map { _ in random.index(below: 3) == 0 ? 0 : random.index(below: 10_000) })
      let room = random.index(below: 20_000)
      for queue in EvictionQueue.both {
        for cause in [EvictionCause.limit, .relief, .idle] {
          let lowest = Int(order.rule(queue, cause).threshold)
          let fitting = (lowest...3).first { from in (from...3).reduce(0) { $0 + bytes[$1] } <= room }
          let rule = order.rule(queue, cause, byteCounts: bytes, room: room)
          #expect(rule == EvictionOrder.KeepRule(threshold: UInt64(fitting ?? 3), room: room))
        }
      }
    }
    // Beyond the room even the most used entry goes.
    let rule = EvictionOrder.KeepRule(threshold: 3, room: 100)
    #expect(order.verdict(counter: 3, byteCount: 101, .main, .limit, rule) == .evict)
    #expect(order.verdict(counter: 3, byteCount: 100, .main, .limit, rule) == .keep(counter: 2))
  }

  @Test("given back together or one by one, entries come into main with the same counters", arguments: [false, true])
  func sameCounters(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    let count: UInt32 = 12_000
    for key in 0..<count { cache.setValue(described(key, version: 1, count: 200), forKey: key) }
    for _ in 0..<3 {
      for key in stride(from: 0, to: count, by: 5) { _ = cache.value(forKey: key) }
    }
    cache.trimUntimed(level: .critical)
    var byCounter = [0, 0, 0, 0]
    let engine = cache.engine
    for shard in engine.shards.all {
      let table = shard.index.current()
      for i in 0..<table.slotCount {
        guard let slot = table.slots.map({ Slot(bits: $0[i].relaxed) }), !slot.isEmpty else { continue }
        if engine.heap.queue(at: slot.place) == .main { byCounter[Int(slot.counter)] += 1 }
      }
    }
    // Each entry was used three times, and has one use less now.
    #expect(byCounter[2] > 100)
    #expect(byCounter == [0, 0, byCounter[2], 0])
    cache.checkBooksSwept()
  }
}
