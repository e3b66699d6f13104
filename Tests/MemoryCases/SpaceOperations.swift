// SPDX-License-Identifier: MIT
// Large caches at the limit of the address space, with the allocator refusing too: every call that gives memory back has to work
// there, and has to give memory back.

import Glibc
import MemoryFaults
import Purgeable
import Synchronization

/// All calls that make a full cache smaller, one after the other, with reads in between; then the cache is filled again, as far
/// as possible.
@inline(__always)
private func shrink<Key>(_ cache: PurgeableCache<Key, [UInt8]>, _ keys: [Key], _ value: [UInt8], _ buffer: Buffer) -> Bool {
  /// Fails where `body` leaves as many bytes held, or so many of the process in memory, as before.
  func mustFree(_ what: StaticString, atLeast byteCount: Int, _ body: () -> Void) {
    let (held, resident) = (cache.byteCount, Int(memory_faults_resident()))
    body()
    let (nowHeld, nowResident) = (cache.byteCount, Int(memory_faults_resident()))
    if nowHeld > held - byteCount { fail("\(what): \(held) bytes held, then \(nowHeld)") }
    if nowResident > resident - byteCount / 2 { fail("\(what): \(resident) bytes resident, then \(nowResident)") }
  }
  func read(atLeast share: Double) {
    var hits = 0
    for at in stride(from: 0, to: keys.count, by: 101) {
      guard case .hit(let count) = unsafe cache.read(forKey: keys[at], into: buffer.bytes) else { continue }
      if unsafe count != value.count || buffer.bytes[0] != value[0] || buffer.bytes[count - 1] != value[0] { fail("other bytes") }
      hits += 1
    }
    if hits < Int(share * Double(keys.count / 101)) { fail("\(hits) hits") }
  }
  let mebibyte = 1 << 20
  // Copies of entries that stay take some of it back.
  let some = mebibyte / 8
  let isFull = cache.count == keys.count
  if isFull {
    read(atLeast: 1)
    let before = cache.count
    for at in 0..<keys.count / 50 where !cache.remove(forKey: keys[at]) { fail("a key that is there is not removed") }
    if cache.count != before - keys.count / 50 { fail("\(cache.count) entries after removals") }
    cache.offerIdle()
    cache.sweep()
    mustFree("trim to a count", atLeast: some) { cache.trim(toCount: keys.count / 10 * 9) }
    if cache.count > keys.count / 10 * 9 { fail("\(cache.count) entries are more than asked for") }
    read(atLeast: 0.7)
    mustFree("trim to a cost", atLeast: some) { cache.trim(toCost: cache.totalCost / 10 * 9) }
    mustFree("trim to bytes", atLeast: 2 * mebibyte) { cache.trim(toBytes: cache.byteCount - 2 * mebibyte) }
    mustFree("trim to a fraction", atLeast: some) { cache.trim(toFraction: 0.9) }
    mustFree("a reaction at warning", atLeast: some) { cache.trim(level: .warning) }
    mustFree("a reaction at critical", atLeast: some) { cache.trim(level: .critical) }
    mustFree("a count limit", atLeast: some) { try! cache.setCountLimit(cache.count / 10 * 9) }
    mustFree("a cost limit", atLeast: some) { try! cache.setCostLimit(cache.totalCost / 10 * 9) }
    mustFree("a byte limit", atLeast: 2 * mebibyte) { try! cache.setByteLimit(cache.byteCount - 2 * mebibyte) }
    read(atLeast: 0.2)
    for at in 0..<1000 { if !cache.containsValue(forKey: keys[at]) { cache.setValue(value, forKey: keys[at]) } }
    if cache.byteCount > cache.byteLimit ?? .max { fail("more bytes than the limit") }
    if cache.statistics.memory.residentBytes == 0 { fail("nothing is resident") }
  }
  try! cache.setCountLimit(nil)
  try! cache.setCostLimit(nil)
  try! cache.setByteLimit(nil)
  if isFull { mustFree("removeAll", atLeast: 2 * mebibyte) { cache.removeAll() } } else { cache.removeAll() }
  if !cache.isEmpty { fail("it is not empty") }
  var isStored = true
  for key in keys where cache.setValue(value, forKey: key) != .stored { isStored = false }
  return isStored && isFull
}

let spaceOperations: [Operation] = [
  Operation("space: a cache of a million entries", isLong: true) {
    let cache = try IntCache()
    let (keys, value, buffer) = (Array(0..<1_000_000), bytes(100), Buffer())
    for key in keys { cache.setValue(value, forKey: key) }
    return { shrink(cache, keys, value, buffer) }
  },
  Operation("space: a cache of 200,000 entries with string keys", isLong: true) {
    let cache = try StringCache()
    let (keys, value, buffer) = (stringKeys(200_000), bytes(100), Buffer())
    for key in keys { cache.setValue(value, forKey: key) }
    return { shrink(cache, keys, value, buffer) }
  },
  Operation("space: a cache of 200,000 entries with tracked keys", takes: .result, isLong: true) {
    let cache = try PairCache()
    let (keys, value, buffer) = ((0..<200_000).map { PairKey(left: $0, right: 2) }, bytes(100), Buffer())
    for key in keys { cache.setValue(value, forKey: key) }
    return { shrink(cache, keys, value, buffer) }
  },
  Operation("space: a cache of 200,000 entries that tells of departures", takes: .result, isLong: true) {
    let told = ToldCount()
    let cache = try IntCache { departure in
      told.count.add(1, ordering: .relaxed)
      if let value = departure.value, value.count != 100 { fail("another value was told") }
    }
    let (keys, value, buffer) = (Array(0..<200_000), bytes(100), Buffer())
    for key in keys { cache.setValue(value, forKey: key) }
    return {
      let before = told.count.load(ordering: .relaxed)
      let isDone = shrink(cache, keys, value, buffer)
      if isDone, told.count.load(ordering: .relaxed) < before + keys.count { fail("not all departures were told") }
      return isDone
    }
  },
]

private final class ToldCount: Sendable {
  let count = Atomic<Int>(0)
}
