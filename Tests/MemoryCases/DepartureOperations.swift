// SPDX-License-Identifier: MIT
// Caches that tell of departures, track keys of the program's own or give back idle entries; and settings that change at run
// time.

import Glibc
import Purgeable
import Synchronization
import ToolSupport

/// A key that is an object, so making it takes memory.
private final class ObjectKey: Hashable, Sendable {
  let number: Int
  init(_ number: Int) { self.number = number }
  static func == (left: ObjectKey, right: ObjectKey) -> Bool { left.number == right.number }
  func hash(into hasher: inout Hasher) { hasher.combine(number) }
}

/// The departures that a handler was told.
private final class Told: Sendable {
  let count = Atomic<Int>(0)
  let withoutValue = Atomic<Int>(0)
}

/// A cache with a handler and so many entries, and the departures it has told.
private func telling(
  _ count: Int, bytes length: Int = 100, countLimit: Int? = nil, idleTime: Duration? = nil
) throws(PurgeableError) -> (IntCache, Told) {
  let told = Told()
  let cache = try IntCache(countLimit: countLimit, idleTime: idleTime) { departure in
    told.count.add(1, ordering: .relaxed)
    guard let value = departure.value else {
      told.withoutValue.add(1, ordering: .relaxed)
      return
    }
    if value.count != Int(departure.cost) || value[0] != 7 { fail("another value was told") }
  }
  let value = bytes(length)
  for key in 0..<count { cache.setValue(value, forKey: key) }
  return (cache, told)
}

/// Each departure is told once, with its value or without.
private func tellingOperation(
  _ name: String, count: Int = 3000, bytes length: Int = 100, countLimit: Int? = nil,
  _ body: @escaping @Sendable (IntCache, [UInt8]) -> Void
) -> Operation {
  Operation(name, takes: .result) {
    let (cache, told) = try telling(count, bytes: length, countLimit: countLimit)
    let value = bytes(length)
    return {
      let before = told.count.load(ordering: .relaxed)
      body(cache, value)
      if told.count.load(ordering: .relaxed) == before { fail("nothing was told") }
      for key in 0..<count { cache.setValue(value, forKey: key) }
      let statistics = UInt64(told.withoutValue.load(ordering: .relaxed))
      return statistics == 0
    }
  }
}

private let toldOperations: [Operation] = [
  tellingOperation("cache: departures told: replacements and removals") { cache, value in
    for key in 0..<400 {
      cache.setValue(value, forKey: key)
      cache.remove(forKey: key + 1000)
    }
  },
  tellingOperation("cache: departures told: removeAll") { cache, _ in cache.removeAll() },
  tellingOperation("cache: departures told: stores at a count limit", countLimit: 1000) { cache, value in
    for key in 5000..<7000 { cache.setValue(value, forKey: key) }
  },
  tellingOperation("cache: departures told: trims") { cache, _ in
    cache.trim(toCount: 2500)
    cache.trim(toCost: 200_000)
    cache.trim(toBytes: cache.byteCount - 30_000)
    cache.trim(toFraction: 0.9)
    cache.trim(level: .critical)
  },
  tellingOperation("cache: departures told: values of a mebibyte", count: 12, bytes: 1 << 20) { cache, _ in
    cache.trim(toCount: 4)
    cache.removeAll()
  },
  tellingOperation("cache: departures told: losses found by look-ups and sweeps", count: 12_000) { cache, _ in
    cache.offerIdle()
    cache.offerIdle()
    var hand = PageOutHand()
    _ = try? cache.pageOut(300_000, hand: &hand)
    for key in stride(from: 0, to: 12_000, by: 40) { _ = cache.containsValue(forKey: key) }
    cache.sweep()
    cache.trim(toCount: 11_000)
  },
]

private let trackedOperations: [Operation] = [
  Operation("cache: keys that are objects: stores, removals, trims", takes: .result) {
    let cache = try PurgeableCache<ObjectKey, [UInt8]>(countLimit: 2000)
    let keys = (0..<3000).map { ObjectKey($0) }
    let value = bytes(100)
    for key in keys { cache.setValue(value, forKey: key) }
    // The runtime makes a type's metadata at its first use.
    for key in keys.suffix(300) { cache.remove(forKey: key) }
    return {
      for key in keys { cache.setValue(value, forKey: key) }
      for key in keys.suffix(300) { cache.remove(forKey: key) }
      cache.trim(toCount: 1000)
      cache.trim(level: .critical)
      return true
    }
  },
  Operation("cache: keys that are objects: removeAll", takes: .result) {
    let cache = try PurgeableCache<ObjectKey, [UInt8]>()
    let keys = (0..<3000).map { ObjectKey($0) }
    let value = bytes(100)
    return {
      for key in keys { cache.setValue(value, forKey: key) }
      cache.removeAll()
      return cache.isEmpty
    }
  },
]

private let runTimeOperations: [Operation] = [
  Operation("cache: shares, locked limits and idle times set") {
    let cache = filled(try IntCache())
    return {
      try! cache.setMemoryShare(0.5)
      try! cache.setMemoryShare(nil)
      try! cache.setLockedByteLimit(1 << 20)
      try! cache.setLockedByteLimit(nil)
      try! cache.setIdleTime(.seconds(100))
      try! cache.setIdleTime(nil)
      return cache.byteLimit == nil || cache.count > 0
    }
  },
  Operation(
    "cache: values by their subscript, numbers as values, values that are refused", takes: .result,
    floor: Floor(bytes: 4096, reason: "a value of a generic type is decoded in a box of the runtime's")
  ) {
    let cache = try PurgeableCache<Int, Int>()
    let fussy = try PurgeableCache<Int, Fussy>()
    return {
      for key in 0..<500 { cache[key] = key }
      for key in 0..<500 { if let value = cache[key], value != key { fail("another value") } }
      for key in 0..<500 { cache[key] = nil }
      fussy.setValue(Fussy(number: 2), forKey: 1)
      if fussy.setValue(Fussy(number: 1), forKey: 1) != .notEncodable { fail("it was stored") }
      return cache.isEmpty && fussy.peekValue(forKey: 1) != nil
    }
  },
  Operation("cache: descriptions", takes: .result, floor: valueFloor) {
    let cache = filled(try IntCache())
    return { !cache.description.isEmpty && !cache.statistics.description.isEmpty }
  },
  Operation("cache: a fork beside caches, monitors and sources") {
    let cache = filled(try IntCache())
    let (second, _) = try telling(100)
    let monitor = PressureMonitor()
    return {
      guard forks({ cache.isEmpty && second.isEmpty }) else { return false }
      _ = monitor
      return cache.count > 0
    }
  },
  Operation("cache: a fork, the first one since there is a source that it protects") {
    // So that the library does not open one at some moment.
    PurgeableMemory.pressureSource = ToldSource()
    let cache = filled(try IntCache())
    let monitor = PressureMonitor()
    var isFirst = true
    return {
      guard forks({ cache.isEmpty }) else { return false }
      if isFirst { PurgeableMemory.pressureSource = SystemPressureSource() }
      isFirst = false
      _ = monitor
      return cache.count > 0
    }
  },
]

/// Forks a child, which has to find what it is asked. False where there is no child.
private func forks(_ isWell: () -> Bool) -> Bool {
  let child = fork()
  if child == 0 { _exit(isWell() ? 0 : 1) }
  guard child > 0 else { return false }
  let end = ChildEnd.of(child)
  if end != .exited(0) { fail("the child ended with \(end?.status ?? -1)") }
  return true
}

/// Even numbers can be written as bytes.
private struct Fussy: PurgeableValue, BitwiseCopyable {
  let number: Int

  func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
    guard number % 2 == 0 else { return nil }
    return try withPurgeableBytes(body)
  }
}

let departureOperations: [Operation] = toldOperations + trackedOperations + runTimeOperations

let departureThreadOperations: [Operation] = [
  Operation("the library's thread: gives back what is idle", watchesLibrary: true, isLong: true) {
    let cache = try IntCache(idleTime: .milliseconds(20))
    let value = bytes(100)
    return {
      for key in 0..<3000 { cache.setValue(value, forKey: key) }
      return patiently(seconds: 5) { cache.isEmpty }
    }
  },
  Operation("the library's thread: idle entries, told", takes: .result, watchesLibrary: true, isLong: true) {
    let (cache, told) = try telling(0, idleTime: .milliseconds(20))
    let value = bytes(100)
    return {
      let before = told.count.load(ordering: .relaxed)
      for key in 0..<3000 { cache.setValue(value, forKey: key) }
      _ = patiently(seconds: 5) { cache.isEmpty }
      _ = patiently(seconds: 1) { told.count.load(ordering: .relaxed) >= before + 3000 }
      return cache.isEmpty
    }
  },
]
