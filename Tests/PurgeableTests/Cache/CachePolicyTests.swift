// SPDX-License-Identifier: MIT
// The order of eviction, against an exact simulation of S3-FIFO over entries.

import Glibc
import Testing

@testable import Purgeable

/// S3-FIFO as its authors' reference implementation has it: probation a tenth, a ghost as long as main, promotion from two uses on.
private struct ExactS3FIFO {
  private enum Place { case probation, main }
  private struct Entry {
    var place: Place
    var uses: Int
  }
  private let capacity: Int
  private let probationCapacity: Int
  private var entries: [Int: Entry] = [:]
  private var probation = Queue()
  private var main = Queue()
  private var ghost = Queue()
  private var ghosts: Set<Int> = []

  /// First in, first out.
  private struct Queue {
    private var keys: [Int] = []
    private var head = 0
    var count: Int { keys.count - head }
    mutating func append(_ key: Int) { keys.append(key) }
    mutating func popFirst() -> Int? {
      guard head < keys.count else { return nil }
      defer {
        head += 1
        if head > 4096, head * 2 > keys.count {
          keys.removeFirst(head)
          head = 0
        }
      }
      return keys[head]
    }
  }

  init(capacity: Int) {
    self.capacity = capacity
    probationCapacity = max(1, capacity / 10)
  }

  /// Whether it was a hit.
  mutating func request(_ key: Int) -> Bool {
    if var entry = entries[key] {
      entry.uses = min(3, entry.uses + 1)
      entries[key] = entry
      return true
    }
    let wasGhost = ghosts.remove(key) != nil
    while entries.count >= capacity { evict() }
    entries[key] = Entry(place: wasGhost ? .main : .probation, uses: 0)
    if wasGhost { main.append(key) } else { probation.append(key) }
    return false
  }

  private mutating func evict() {
    if main.count > capacity - probationCapacity || probation.count == 0 { evictMain() } else { evictProbation() }
  }

  private mutating func evictProbation() {
    while let key = probation.popFirst() {
      if entries[key]!.uses >= 2 {
        entries[key] = Entry(place: .main, uses: 0)
        main.append(key)
        continue
      }
      entries[key] = nil
      ghost.append(key)
      ghosts.insert(key)
      while ghost.count > capacity - probationCapacity, let old = ghost.popFirst() { ghosts.remove(old) }
      return
    }
  }

  private mutating func evictMain() {
    while let key = main.popFirst() {
      if entries[key]!.uses > 0 {
        entries[key]!.uses -= 1
        main.append(key)
        continue
      }
      entries[key] = nil
      return
    }
  }
}

/// Requests with a skew, and scans that pass through: by a seed, always the same.
private func skewedRequests(count: Int, objects: Int, seed: UInt64) -> [Int] {
  // Zipf with an exponent of 1, by inverting its distribution's integral.
  var random = SeededRandom(seed: seed)
  var ranks = Array(0..<objects)
  ranks.shuffle(using: &random)
  var requests: [Int] = []
  requests.reserveCapacity(count)
  var scanned = objects
  while requests.count < count {
    if random.below(2000) == 0 {
      let length = objects / 10
      requests.append(contentsOf: scanned..<scanned + length)
      scanned += length
    }
    let unit = Double(random.next() >> 11) / Double(1 << 53)
    let rank = Int(pow(Double(objects), unit)) - 1
    requests.append(ranks[min(objects - 1, max(0, rank))])
  }
  return Array(requests.prefix(count))
}

@Suite("PurgeableCache, order of eviction")
struct CachePolicyTests {
  private func missRatio(_ requests: [Int], _ cache: PurgeableCache<Int, [UInt8]>, size: (Int) -> Int = { _ in 24 }) -> Double {
    var misses = 0
    for key in requests where cache.value(forKey: key) == nil {
      misses += 1
      cache[key] = [UInt8](repeating: UInt8(truncatingIfNeeded: key), count: size(key))
    }
    return Double(misses) / Double(requests.count)
  }

  @Test("misses as often as exact S3-FIFO does, within 0.01", arguments: [1, 10], [false, true])
  func againstExact(percent: Int, tracksKeys: Bool) throws {
    let objects = 8000
    let requests = skewedRequests(count: 50_000 / slowness, objects: objects, seed: 42)
    let capacity = objects * percent / 100
    var exact = ExactS3FIFO(capacity: capacity)
    let expected = Double(requests.count { !exact.request($0) }) / Double(requests.count)
    let cache = try PurgeableCache<Int, [UInt8]>(countLimit: capacity, tracksKeys: tracksKeys)
    let measured = missRatio(requests, cache)
    #expect(abs(measured - expected) <= 0.01, "\(measured) against \(expected)")
    #expect(cache.count <= capacity)
    cache.checkBooksSwept()
  }

  @Test("by bytes, whole slabs at a time, it misses little more often than exact S3-FIFO by entries")
  func byBytes() throws {
    let objects = 40_000
    let requests = skewedRequests(count: 100_000 / slowness, objects: objects, seed: 43)
    let cache = try PurgeableCache<Int, [UInt8]>(byteLimit: 4 << 20)
    let measured = missRatio(requests, cache) { 200 + $0 % 600 }
    var exact = ExactS3FIFO(capacity: cache.count)
    let expected = Double(requests.count { !exact.request($0) }) / Double(requests.count)
    #expect(cache.byteCount <= 4 << 20)
    #expect(measured <= expected + 0.02, "\(measured) against \(expected) with \(cache.count) entries")
    cache.checkBooksSwept()
  }

  @Test("what is used again survives a scan of many times the capacity")
  func scan() throws {
    let cache = try PurgeableCache<Int, Int>(countLimit: 1000)
    for _ in 0..<4 {
      for key in 0..<500 where cache[key] == nil { cache[key] = key }
    }
    for key in 10_000..<60_000 { cache[key] = key }
    let kept = (0..<500).count { cache.contains($0) }
    #expect(kept > 450, "\(kept) of 500")
  }

  @Test("a ghost remembers what left, as many as main may hold, and says why")
  func ghosts() {
    var ghost = Ghost()
    #expect(ghost.reason(of: 5 << Slot.tagShift) == nil)
    ghost.note(5 << Slot.tagShift, .evicted)
    #expect(ghost.reason(of: 5 << Slot.tagShift) == nil)
    ghost.reserve(1000)
    let reasons: [Ghost.Reason] = [.evicted, .removed, .discarded, .expired]
    for i in 0..<UInt64(1000) { ghost.note(i &* 7919 << Slot.tagShift, reasons[Int(i % 4)]) }
    let known = (0..<UInt64(1000)).count { ghost.reason(of: $0 &* 7919 << Slot.tagShift) == reasons[Int($0 % 4)] }
    #expect(known > 900, "\(known) of 1000")
    ghost.forget(7919 << Slot.tagShift)
    #expect(ghost.reason(of: 7919 << Slot.tagShift) == nil)
    for i in 0..<UInt64(20_000) { ghost.note((1 << 20 + i) << Slot.tagShift, .evicted) }
    let old = (0..<UInt64(1000)).count { ghost.reason(of: $0 &* 7919 << Slot.tagShift) != nil }
    #expect(old < 50, "\(old) of 1000 still remembered")
    ghost.removeAll()
    #expect(ghost.byteCount == 0)
  }
}
