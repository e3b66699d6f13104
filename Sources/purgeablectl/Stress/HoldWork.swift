// SPDX-License-Identifier: MIT
// Threads that hold entries locked: each checks an entry's bytes when it locks the entry, and again before it unlocks it.

import Glibc
import Purgeable
import Synchronization
import ToolSupport

/// State that all holders share.
final class HoldWork: Sendable {
  /// The most bytes held locked at a time: the cache's own limit, which the threads test.
  let capBytes: UInt64
  /// How many entries a thread holds at a time.
  let depth: Int
  let end: UInt64
  let lockedBytes = Atomic<UInt64>(0)
  let peakBytes = Atomic<UInt64>(0)
  let holds = Atomic<UInt64>(0)
  let misses = Atomic<UInt64>(0)
  let refused = Atomic<UInt64>(0)
  let wrongBytes = Atomic<UInt64>(0)
  let running = Atomic<Int>(0)

  init(capBytes: UInt64, depth: Int, end: UInt64) {
    self.capBytes = capBytes
    self.depth = depth
    self.end = end
  }

  var tally: Tally {
    [
      "holds": holds.load(ordering: .relaxed), "misses": misses.load(ordering: .relaxed),
      "refused": refused.load(ordering: .relaxed), "peakBytes": peakBytes.load(ordering: .relaxed),
      "wrongBytes": wrongBytes.load(ordering: .relaxed),
    ]
  }
}

/// One of the threads.
struct Holder {
  let cache: PurgeableCache<UInt64, [UInt8]>
  let content: Content
  let spoils: Bool
  let work: HoldWork
  var numbers: ZipfNumbers
  private var buffer: [UInt8]

  init(
    _ cache: PurgeableCache<UInt64, [UInt8]>, _ load: StressContent, _ content: Content, _ work: HoldWork, seed: UInt64,
    spoils: Bool
  ) {
    self.cache = cache
    self.content = content
    self.work = work
    self.spoils = spoils
    numbers = ZipfNumbers(count: load.keyCount, seed: seed)
    buffer = [UInt8](repeating: 0, count: content.sizes.upperBound)
  }

  consuming func run() {
    var holder = self
    while Clock.now < holder.work.end { holder.hold(holder.work.depth) }
    holder.work.running.subtract(1, ordering: .releasing)
  }

  /// Locks one more entry, and within that the next; the innermost waits.
  private mutating func hold(_ depth: Int) {
    guard depth > 0 else {
      usleep(2000)
      return
    }
    let key = content.key(numbers.next() ?? 0)
    let size = UInt64(content.size(of: key))
    let found: Void? = cache.withBytes(forKey: key) { span in
      let locked = work.lockedBytes.add(size, ordering: .relaxed).newValue
      defer { work.lockedBytes.subtract(size, ordering: .relaxed) }
      work.peakBytes.max(locked, ordering: .relaxed)
      check(key, span)
      hold(depth - 1)
      check(key, span)
    }
    if found == nil, cache.containsValue(forKey: key) {
      // Refused by the cap: the entries held already are held for a moment. (Or another thread stores the entry now: the same.)
      work.refused.add(1, ordering: .relaxed)
      usleep(2000)
    } else if found == nil {
      work.misses.add(1, ordering: .relaxed)
      let bytes = unsafe buffer.withUnsafeMutableBytes { buffer in
        let size = unsafe content.write(key, to: buffer)
        return unsafe Array(buffer[..<size])
      }
      cache.setValue(bytes, forKey: key)
      hold(depth - 1)
    }
  }

  private func check(_ key: UInt64, _ span: RawSpan) {
    let holds = work.holds.add(1, ordering: .relaxed).newValue
    var wrong = unsafe span.withUnsafeBytes { unsafe content.wrongBytes(key, $0) }
    // For a test, to check that the error is found.
    if spoils, holds == 1 { wrong += 1 }
    if wrong > 0 { work.wrongBytes.add(wrong, ordering: .relaxed) }
  }
}
