// SPDX-License-Identifier: MIT
// The order of eviction alone, without a cache: against a simulation of S3-FIFO, and rule by rule.

import CPurgeable
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

/// A cache of single entries that does what the order decides, and decides nothing by itself.
private struct OrderedEntries {
  private struct Entry {
    var queue: EvictionQueue
    var counter: UInt64
    var credit: Int
  }
  private let order = S3FIFOOrder()
  private let capacity: Int
  private var entries: [Int: Entry] = [:]
  private var queues = [KeyQueue(), KeyQueue()]
  private var ghost = KeyQueue()
  private var ghosts: Set<Int> = []
  private var hasEvicted = false

  init(capacity: Int) { self.capacity = capacity }

  /// Requests a key. Returns whether it was a hit.
  mutating func request(_ key: Int, credit: Int = 0) -> Bool {
    if let entry = entries[key] {
      entries[key]!.counter = min(Slot.highestCounter, entry.counter + 1)
      return true
    }
    let lastDeparture: Ghost.Reason? = ghosts.remove(key) == nil ? nil : .evicted
    let fillsMain =
      !hasEvicted && entries.count < capacity
      && order.fillsMain(beside: QueueSums(count: queues[0].count), limit: .counting(capacity))
    let queue = order.queue(ofNew: lastDeparture, credit: credit, fillsMain: fillsMain)
    while entries.count >= capacity { takeTurn() }
    entries[key] = Entry(queue: queue, counter: order.counter(ofNew: credit, replacing: nil), credit: credit)
    queues[queue.rawValue].append(key)
    return false
  }

  private mutating func takeTurn() {
    let queue = order.next(
      probation: UInt128(queues[0].count), main: UInt128(queues[1].count), limit: UInt128(capacity))
    guard let key = queues[queue.rawValue].popFirst(), let entry = entries[key] else { return }
    var rule = order.rule(queue, .limit(.count))
    switch order.fate(counter: entry.counter, credit: entry.credit, byteCount: 1, &rule) {
    case .move(let queue, let counter):
      entries[key] = Entry(queue: queue, counter: counter, credit: entry.credit)
      queues[queue.rawValue].append(key)
    case .stay: Issue.record("an entry stays at a limit")
    case .drop(let reason):
      #expect(reason == .count)
      entries[key] = nil
      hasEvicted = true
      guard order.remembered(of: reason, from: queue) == .evicted else { return }
      ghost.append(key)
      ghosts.insert(key)
      while ghost.count > order.rememberedCount(ofLiving: capacity), let old = ghost.popFirst() { ghosts.remove(old) }
    }
  }
}

@Suite("S3FIFOOrder")
struct S3FIFOOrderTests {
  private let order = S3FIFOOrder()

  @Test(
    "one entry at a time it is S3-FIFO, with credits and without: the same hits, request by request", arguments: [10, 80, 800],
    (TestRun.isFull ? [1, 2, 3, 4] : [1, 3]) as [UInt64])
  func againstSimulation(capacity: Int, seed: UInt64) {
    let hasCredits = seed > 2
    func credit(_ key: Int) -> Int { !hasCredits ? 0 : key % 5 + RecomputeCredit.lowest }
    var ordered = OrderedEntries(capacity: capacity)
    var exact = ExactS3FIFO(capacity: capacity, asksAnew: hasCredits)
    var hits = 0
    let count = TestRun.isFull ? 30_000 : 15_000
    for (number, key) in skewedRequests(count: count, objects: 8000, seed: seed).enumerated() {
      let (isHit, expected) = (ordered.request(key, credit: credit(key)), exact.request(key, credit: credit(key)))
      guard isHit == expected else {
        Issue.record("request \(number), key \(key): \(isHit), the simulation says \(expected)")
        return
      }
      hits += isHit ? 1 : 0
    }
    #expect(hits > count / 30)
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

  @Test("what came back soon goes to main, what was removed, had its time in main or is unknown to probation")
  func newEntries() {
    #expect(order.queue(ofNew: .evicted) == .main)
    #expect(order.queue(ofNew: .evictedFromMain) == .probation)
    #expect(order.queue(ofNew: .discarded) == .main)
    #expect(order.queue(ofNew: .removed) == .probation)
    #expect(order.queue(ofNew: nil) == .probation)
  }

  @Test("at first main is filled behind probation's tenth")
  func filling() {
    #expect(order.queue(ofNew: nil, fillsMain: true) == .main)
    #expect(order.queue(ofNew: nil, credit: -1, fillsMain: true) == .probation)
    func fillsMain(_ probation: QueueSums, _ limit: QueueSums) -> Bool { order.fillsMain(beside: probation, limit: limit) }
    #expect(!fillsMain(QueueSums(count: 29), .counting(300)))
    #expect(fillsMain(QueueSums(count: 30), .counting(300)))
    // A few entries are in probation first, however small the limit is.
    #expect(!fillsMain(QueueSums(count: 9), .counting(20)))
    #expect(fillsMain(QueueSums(count: 10), .counting(20)))
    // By whichever limit is full first; of no limit all is for probation.
    #expect(fillsMain(QueueSums(cost: 10, count: 10), QueueSums(cost: 100, count: .max, byteCount: .max)))
    #expect(fillsMain(QueueSums(count: 10, byteCount: 10), QueueSums(cost: UInt128(Int.max), count: .max, byteCount: 100)))
    #expect(!fillsMain(QueueSums(count: .max / 10 - 1), .counting(.max)))
  }

  @Test("of what leaves main for a limit only the reason is remembered; of what leaves it for memory, that it may come back")
  func remembered() {
    for reason in DepartureReason.allCases {
      let (main, probation) = (order.remembered(of: reason, from: .main), order.remembered(of: reason, from: .probation))
      switch reason {
      case .count, .cost, .bytes, .growth, .decider:
        #expect(main == .evictedFromMain)
        #expect(probation == .evicted)
      case .pressure, .idle, .trimmed:
        #expect(main == .evicted)
        #expect(probation == .evicted)
      default: #expect(main == probation)
      }
    }
  }

  @Test("credit: a new entry has it as uses, and joins main with two; below 0 a use less counts at each turn")
  func credits() {
    for credit in RecomputeCredit.lowest...RecomputeCredit.highest {
      #expect(order.queue(ofNew: nil, credit: credit) == (credit >= 2 ? .main : .probation))
      #expect(order.counter(ofNew: credit, replacing: nil) == UInt64(max(0, credit)))
      #expect(order.counter(ofNew: credit, replacing: 3) == 3)
      #expect(order.counter(ofNew: credit, replacing: 0) == UInt64(max(1, credit)))
    }
    func fate(_ counter: UInt64, _ credit: Int, _ queue: EvictionQueue, _ cause: EvictionCause) -> S3FIFOOrder.Fate {
      var rule = order.rule(queue, cause)
      return order.fate(counter: counter, credit: credit, byteCount: 100, &rule)
    }
    #expect(fate(2, 0, .probation, .limit(.bytes)) == .move(.main, counter: 0))
    #expect(fate(2, 3, .probation, .limit(.bytes)) == .move(.main, counter: 3))
    #expect(fate(2, -1, .probation, .limit(.bytes)) == .drop(.bytes))
    #expect(fate(3, -1, .probation, .limit(.bytes)) == .move(.main, counter: 0))
    #expect(fate(2, 3, .main, .limit(.count)) == .move(.main, counter: 1))
    #expect(fate(2, -1, .main, .limit(.count)) == .move(.main, counter: 0))
    #expect(fate(1, -1, .main, .relief(.pressure)) == .drop(.pressure))
    #expect(fate(0, -1, .main, .relief(.pressure)) == .drop(.pressure))
    // What moves entries and drops none goes by uses alone.
    for cause in [EvictionCause.compaction, .busy] { #expect(fate(1, -1, .main, cause) == .move(.main, counter: 1)) }
    #expect(fate(1, -1, .main, .idle) == .move(.main, counter: 0))
  }

  /// The fates of entries with the counters 0 to 3, each of so many bytes.
  private func fates(_ rule: S3FIFOOrder.Rule, byteCount: Int = 100) -> [S3FIFOOrder.Fate] {
    (0...3 as ClosedRange<UInt64>).map { counter in
      var rule = rule
      return order.fate(counter: counter, byteCount: byteCount, &rule)
    }
  }

  @Test("an entry alone: the counter from which it stays, and what is left of it")
  func entries() {
    func main(_ counter: UInt64) -> S3FIFOOrder.Fate { .move(.main, counter: counter) }
    // By queue and cause: the fates for counters 0 to 3.
    let expected: [(EvictionQueue, EvictionCause, [S3FIFOOrder.Fate])] = [
      (.probation, .limit(.count), [.drop(.count), .drop(.count), main(0), main(0)]),
      (.main, .limit(.bytes), [.drop(.bytes), main(0), main(1), main(2)]),
      (.probation, .relief(.pressure), [.drop(.pressure), main(0), main(1), main(2)]),
      (.main, .relief(.trimmed), [.drop(.trimmed), main(0), main(1), main(2)]),
      (.probation, .idle, [.drop(.idle), main(0), main(0), main(0)]),
      (.main, .idle, [.drop(.idle), main(0), main(0), main(0)]),
    ]
    for (queue, cause, fates) in expected {
      let rule = order.rule(queue, cause)
      #expect(self.fates(rule, byteCount: 1 << 40) == fates, "\(queue), \(cause)")
    }
    // An eviction that has spared enough spares none.
    for queue in EvictionQueue.all {
      #expect(fates(order.rule(queue, .limit(.cost), spares: false)) == Array(repeating: .drop(.cost), count: 4))
    }
  }

  @Test("an entry that cannot be copied leaves where another one takes its place or memory is given back, else it stays")
  func unmoved() {
    #expect(order.fate(unmoved: 2, .limit(.bytes)) == .drop(.bytes))
    #expect(order.fate(unmoved: 2, .relief(.trimmed)) == .drop(.trimmed))
    for cause in [EvictionCause.idle, .compaction, .busy] { #expect(order.fate(unmoved: 2, cause) == .stay(counter: 2)) }
  }

  @Test("of a slab no more is kept than there is room for: the most used")
  func slabs() {
    var random = SplitMix64(seed: 5)
    for _ in 0..<2000 {
      let bytes = SIMD4<Int>((0..<4).map { _ in random.index(below: 3) == 0 ? 0 : random.index(below: 10_000) })
      let room = random.index(below: 20_000)
      // As full as need be not to be sparse.
      let slab = SlabFacts(heldBytes: 2 * room, livingBytes: 40_000)
      for queue in EvictionQueue.all {
        for cause in [EvictionCause.limit(.bytes), .relief(.pressure)] {
          let lowest = Int(order.rule(queue, cause).threshold)
          let fitting = (lowest...3).first { from in (from...3).reduce(0) { $0 + bytes[$1] } <= room }
          let rule = order.rule(queue, cause, of: slab, byteCounts: bytes)
          #expect(rule == S3FIFOOrder.Rule(queue: queue, cause: cause, threshold: UInt64(fitting ?? 3), room: room))
        }
      }
    }
  }

  @Test("beyond the room even the most used entry goes; what is spared takes room, and a piece has its share of it")
  func room() {
    let slab = SlabFacts(heldBytes: 400, livingBytes: 400)
    var rule = order.rule(.main, .limit(.bytes), of: slab, byteCounts: [0, 0, 0, 400])
    #expect(order.fate(counter: 3, byteCount: 120, &rule) == .move(.main, counter: 2))
    #expect(order.fate(counter: 3, byteCount: 81, &rule) == .drop(.bytes))
    #expect(order.fate(counter: 3, byteCount: 80, &rule) == .move(.main, counter: 2))
    #expect(rule.room == 0)
    let piece = order.rule(.main, .limit(.bytes), of: slab, byteCounts: [0, 0, 100, 0], isWhole: false)
    #expect(piece.threshold == 3 && piece.room == 50)
    // A large entry moves with its slab: it needs no room, and is spared until the eviction has spared enough.
    let large = SlabFacts(heldBytes: 400, livingBytes: 400, isLarge: true)
    let spared = order.rule(.main, .limit(.bytes), of: large, byteCounts: [0, 400, 0, 0])
    #expect(fates(spared, byteCount: 400)[1] == .move(.main, counter: 0))
    let gone = order.rule(.main, .limit(.bytes), of: large, byteCounts: [0, 400, 0, 0], spares: false)
    #expect(fates(gone, byteCount: 400)[3] == .drop(.bytes))
    // A slab of small entries has always room for half of them.
    #expect(order.rule(.main, .limit(.bytes), of: slab, byteCounts: [0, 0, 0, 400], spares: false).threshold == 3)
  }

  @Test("entries of a slab that is hardly alive move within their queue, and keep their counters")
  func sparseSlabs() {
    let sparse = SlabFacts(heldBytes: 4001, livingBytes: 1000)
    #expect(order.isSparse(sparse))
    #expect(!order.isSparse(SlabFacts(heldBytes: 4000, livingBytes: 1000)))
    #expect(order.isSparse(SlabFacts(heldBytes: 1)))
    for except in [\SlabFacts.isOpen, \.isLarge, \.isLocked] {
      var slab = sparse
      slab[keyPath: except] = true
      #expect(!order.isSparse(slab))
    }
    for queue in EvictionQueue.all {
      for cause in [EvictionCause.limit(.bytes), .relief(.pressure), .compaction] {
        let rule = order.rule(queue, cause, of: sparse, byteCounts: [1000, 0, 0, 0])
        #expect(fates(rule) == (0...3).map { .move(queue, counter: $0) }, "\(queue), \(cause)")
      }
    }
  }

  @Test("of a slab whose time has come, used entries move to main; of one that is locked or mostly in use, they stay")
  func idleSlabs() {
    let bytes = SIMD4<Int>(1000, 200, 0, 300)
    let moving = [S3FIFOOrder.Fate.drop(.idle)] + Array(repeating: .move(.main, counter: 0), count: 3)
    let staying = [S3FIFOOrder.Fate.drop(.idle)] + Array(repeating: .stay(counter: 0), count: 3)
    var slab = SlabFacts(heldBytes: 1000, livingBytes: 1500)
    #expect(fates(order.rule(.probation, .idle, of: slab, byteCounts: bytes)) == moving)
    #expect(fates(order.rule(.probation, .idle, of: slab, byteCounts: bytes &+ SIMD4(0, 1, 0, 0))) == staying)
    slab.isLocked = true
    #expect(fates(order.rule(.probation, .idle, of: slab, byteCounts: bytes)) == staying)
    let large = SlabFacts(heldBytes: 1000, livingBytes: 1000, isLarge: true)
    #expect(fates(order.rule(.main, .idle, of: large, byteCounts: [0, 10, 0, 0])) == staying)
    #expect(fates(order.rule(.main, .idle, of: large, byteCounts: [1000, 0, 0, 0])) == moving)
  }

  @Test("of a busy slab the entries in use move within their queue, unless they are most of it; none leaves")
  func busySlabs() {
    let slab = SlabFacts(heldBytes: 4000, livingBytes: 2000)
    #expect((0...16).filter { order.isBusy(slab, rounds: $0) } == [8, 16])
    #expect(!order.isBusy(SlabFacts(isLarge: true), rounds: 8))
    for queue in EvictionQueue.all {
      let some = order.rule(queue, .busy, of: slab, byteCounts: [500, 0, 0, 500])
      #expect(fates(some) == (0...3).map { .move(queue, counter: $0) })
      let most = order.rule(queue, .busy, of: slab, byteCounts: [500, 1, 0, 500])
      #expect(fates(most) == (0...3).map { .stay(counter: $0) })
    }
  }

  @Test("given back together or one by one, entries come into main with the same counters", arguments: [false, true])
  func sameCounters(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<UInt32, [UInt8]>(tracksKeys: tracksKeys)
    let count: UInt32 = TestRun.isFull ? 12_000 : 5000
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
    #expect(byCounter[2] > Int(count) / 120)
    #expect(byCounter == [0, 0, byCounter[2], 0])
    cache.checkBooksSwept()
  }
}

extension QueueSums {
  /// A limit on the count alone.
  fileprivate static func counting(_ count: Int) -> QueueSums { QueueSums(cost: UInt128(Int.max), count: count, byteCount: .max) }
}
