// SPDX-License-Identifier: MIT
// Two threads on one cache: what they do together against what one does alone, by the clock on the wall.

import BenchmarkSupport
import Foundation
import Purgeable
import Synchronization
import ToolSupport

enum Threads {
  /// What both threads do. Each works on keys of its own, except for the hot key.
  private enum Work: Int, CaseIterable {
    case hits, misses, hotKey, stores, storesAtCostLimit, storesApart, computing

    var name: String {
      [
        "hits", "misses", "hits of one key", "stores", "stores with a cost limit", "stores, each thread on a cache of its own",
        "nothing of it, only computing",
      ][rawValue]
    }
    /// The last two show what the machine gives to threads that share nothing but the process, and to those that use no memory.
    var reach: Double { [1.95, 1.9, 1.8, 1.8, 1.6, 1, 1][rawValue] }
  }

  private static let valueByteCount = 100

  static func figures(_ scale: Scale) throws -> [Figure] {
    guard ThreadPair.isPossible else { return [] }
    var figures: [Figure] = []
    for work in Work.allCases {
      let numbers = try ChildRun.run("threads", [work.rawValue, scale(400_000, quick: 50_000), scale(9, quick: 3)])
      figures.append(
        Figure(
          "two threads on one cache: \(work.name)", .time, try Spread(numbers, "two/one"), .atLeast(work.reach),
          "times one thread's",
          note: "one \(Figure.text(try numbers.value("one"))) ns, two \(Figure.text(try numbers.value("two"))) ns"))
    }
    let numbers = try ChildRun.run("read-beside-writer", [scale(400_000, quick: 50_000), scale(9, quick: 3)])
    figures.append(
      Figure(
        "a read beside a writer of other keys, against alone", .time, try Spread(numbers, "beside/alone"), .atMost(1.3),
        "times its time",
        note: "alone \(Figure.text(try numbers.value("alone"))) ns, beside \(Figure.text(try numbers.value("beside"))) ns"))
    return figures
  }

  /// Arguments: the work, operations of each thread, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let (count, rounds) = (arguments[1], arguments[2])
    let work = Work(rawValue: arguments[0])!
    let cache = try PurgeableCache<Int, [UInt8]>(
      name: "figures", costLimit: work == .storesAtCostLimit ? count * valueByteCount : nil)
    fill(cache, count)
    let other = try PurgeableCache<Int, [UInt8]>(name: "figures")
    if work == .storesApart { fill(other, count) }
    let operations: @Sendable (Int) -> Void = { thread in
      switch work {
      case .hits: read(cache, from: thread * (count / 2), keys: count / 2, count)
      case .misses: read(cache, from: (thread + 1) * 2 * count, keys: count, count)
      case .hotKey: read(cache, from: 0, keys: 1, count)
      case .stores, .storesAtCostLimit: store(cache, from: thread * (count / 2), keys: count / 2, count)
      case .storesApart: store(thread == 0 ? cache : other, from: 0, keys: count / 2, count)
      case .computing: compute(20 * count)
      }
    }
    var times: [(one: Double, two: Double)] = []
    for round in 0...rounds {
      let one = ThreadPair.wallNanoseconds(threads: 1, operations)
      let two = ThreadPair.wallNanoseconds(threads: 2, operations)
      if round > 0 { times.append((one / Double(count), two / Double(count))) }
    }
    var numbers: Numbers = ["one": Spread(times.map { $0.one }).median, "two": Spread(times.map { $0.two }).median]
    Spread(times.map { 2 * $0.one / $0.two }).write(to: &numbers, "two/one")
    return numbers
  }

  /// Arguments: operations of the reader, rounds. The cache is small, so that what is measured is not the way to memory.
  @Sendable static func measureBesideWriter(_ arguments: [Int]) throws -> Numbers {
    let (count, rounds) = (arguments[0], arguments[1])
    let entries = 2000
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    fill(cache, entries)
    var times: [(alone: Double, beside: Double)] = []
    for round in 0...rounds {
      let alone = ThreadPair.wallNanoseconds(threads: 1) { _ in read(cache, from: 0, keys: entries / 2, count) }
      let isDone = Atomic<Bool>(false)
      let beside = Mutex(0.0)
      ThreadPair.run(threads: 2) { thread in
        if thread == 0 {
          let start = ThreadPair.clock()
          read(cache, from: 0, keys: entries / 2, count)
          beside.withLock { $0 = ThreadPair.clock() - start }
          isDone.store(true, ordering: .relaxed)
        } else {
          while !isDone.load(ordering: .relaxed) { store(cache, from: entries / 2, keys: entries / 2, 1000) }
        }
      }
      if round > 0 { times.append((alone / Double(count), beside.withLock { $0 } / Double(count))) }
    }
    var numbers: Numbers = ["alone": Spread(times.map { $0.alone }).median, "beside": Spread(times.map { $0.beside }).median]
    Spread(times.map { $0.beside / $0.alone }).write(to: &numbers, "beside/alone")
    return numbers
  }

  // MARK: Passes

  private static func fill(_ cache: PurgeableCache<Int, [UInt8]>, _ count: Int) {
    store(cache, from: 0, keys: count, count)
    settle(cache)
  }

  /// Visits the keys in an order that no prefetcher knows: every 7,919th.
  @inline(never)
  private static func read(_ cache: PurgeableCache<Int, [UInt8]>, from: Int, keys: Int, _ count: Int) {
    var key = 0
    unsafe withUnsafeTemporaryAllocation(byteCount: 128, alignment: 16) { buffer in
      for _ in 0..<count {
        _ = unsafe cache.read(forKey: from + key, into: buffer)
        key = (key + 7919) % keys
      }
    }
  }

  @inline(never)
  private static func store(_ cache: PurgeableCache<Int, [UInt8]>, from: Int, keys: Int, _ count: Int) {
    let value = [UInt8](repeating: 7, count: valueByteCount)
    var key = 0
    for _ in 0..<count {
      cache.setValue(value, forKey: from + key)
      key = (key + 1) % keys
    }
  }

  /// Keeps as many arithmetic units busy as a thread can get.
  @inline(never)
  private static func compute(_ count: Int) {
    var words = SIMD16<UInt32>(repeating: 1)
    for _ in 0..<count { words = words &* 1_664_525 &+ 1_013_904_223 }
    precondition(words.wrappedSum() != 1, "sixteen equal words add up to a multiple of sixteen")
  }
}
