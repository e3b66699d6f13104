// SPDX-License-Identifier: MIT
// A simulation of S3-FIFO over single entries, and requests for it: the reference for the cache and its order of eviction.

import Glibc
import ToolSupport

/// A FIFO queue of keys.
struct KeyQueue {
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

/// S3-FIFO as its authors' reference implementation has it: probation a tenth, a ghost as long as main, promotion from two uses
/// on; what comes before the first eviction goes to main when probation has its tenth (and, unlike there, ten entries). A credit
/// stands for as many uses from the beginning, below 0 for one less at each turn.
struct ExactS3FIFO {
  private enum Place { case probation, main }
  private struct Entry {
    var place: Place
    var uses: Int
    let credit: Int
    /// At its turn.
    var counted: Int { uses + min(0, credit) }
  }
  private let capacity: Int
  private let probationCapacity: Int
  /// Whether after each promotion it is asked anew which queue gives, as the cache does. Makes a difference where much is
  /// promoted.
  private let asksAnew: Bool
  private var entries: [Int: Entry] = [:]
  private var probation = KeyQueue()
  private var main = KeyQueue()
  private var ghost = KeyQueue()
  private var ghosts: Set<Int> = []
  private var hasEvicted = false

  init(capacity: Int, asksAnew: Bool = false) {
    (self.capacity, self.asksAnew) = (capacity, asksAnew)
    probationCapacity = max(1, capacity / 10)
  }

  /// Requests a key. Returns whether it was a hit.
  mutating func request(_ key: Int, credit: Int = 0) -> Bool {
    if var entry = entries[key] {
      entry.uses = min(3, entry.uses + 1)
      entries[key] = entry
      return true
    }
    let wasGhost = ghosts.remove(key) != nil
    while entries.count >= capacity { evict() }
    let isFilling = !hasEvicted && probation.count >= max(10, probationCapacity)
    let isInMain = wasGhost || credit >= (isFilling ? 0 : 2)
    entries[key] = Entry(place: isInMain ? .main : .probation, uses: max(0, credit), credit: credit)
    if isInMain { main.append(key) } else { probation.append(key) }
    return false
  }

  private mutating func evict() {
    hasEvicted = true
    if main.count > capacity - probationCapacity || probation.count == 0 { evictMain() } else { evictProbation() }
  }

  private mutating func evictProbation() {
    while let key = probation.popFirst() {
      let entry = entries[key]!
      if entry.counted >= 2 {
        entries[key] = Entry(place: .main, uses: max(0, entry.credit), credit: entry.credit)
        main.append(key)
        if asksAnew { return }
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
      let entry = entries[key]!
      if entry.counted > 0 {
        entries[key]!.uses = entry.counted - 1
        main.append(key)
        continue
      }
      entries[key] = nil
      return
    }
  }
}

/// Skewed requests, with scans between them; the same seed gives the same requests.
func skewedRequests(count: Int, objects: Int, seed: UInt64) -> [Int] {
  // Zipf with an exponent of 1, by inverting its distribution's integral.
  var random = SplitMix64(seed: seed)
  var ranks = Array(0..<objects)
  ranks.shuffle(using: &random)
  var requests: [Int] = []
  requests.reserveCapacity(count)
  var scanned = objects
  while requests.count < count {
    if random.index(below: 2000) == 0 {
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
