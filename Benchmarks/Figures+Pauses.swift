// SPDX-License-Identifier: MIT
// How long one call may take because the cache is large, and how long another thread's call waits meanwhile: by the clock on the
// wall, so a pause of the whole process counts too. Each figure is the median of several runs' longest calls. The notes tell the
// longest processor time of a call, and as a control the longest pause of a loop that only computes.

import Foundation
import Purgeable
import Synchronization
import ToolSupport

enum Pauses {
  /// Arguments of a job that are one of several limits.
  private enum Limited: Int {
    case none, count, cost

    func makeCache(of count: Int) throws -> PurgeableCache<Int, [UInt8]> {
      try PurgeableCache<Int, [UInt8]>(
        name: "figures", countLimit: self == .count ? count : nil, costLimit: self == .cost ? count * Pauses.valueByteCount : nil)
    }
  }

  private static let valueByteCount = 100

  static func figures(_ scale: Scale) throws -> [Figure] {
    try filling(scale) + hot(scale) + removing(scale) + odd(scale)
  }

  private static func figure(_ name: String, _ spread: Spread, _ reach: Figure.Reach, _ unit: String = "ms") -> Figure {
    Figure(name, .time, spread, reach, unit)
  }

  private static func longest(_ name: String, _ numbers: Numbers) throws -> Figure {
    let (own, control) = (try Spread(numbers, "own").median, try Spread(numbers, "control").median)
    return Figure(
      name, .time, try Spread(numbers, "longest"), .atMost(2), "ms",
      note: String(format: "processor time %.1f ms at most; longest pause of a loop that only computes %.1f ms", own, control))
  }

  /// What several runs of `longestStore` found, in milliseconds.
  private struct Longest {
    var wall: [Double] = []
    var own: [Double] = []
    var control: [Double] = []

    /// Runs the control as long as the stores took.
    mutating func append(_ stores: () -> (wall: Double, own: Double)) {
      let begin = Pauses.nanoseconds()
      let (wall, own) = stores()
      let end = Pauses.nanoseconds()
      self.wall.append(wall)
      self.own.append(own)
      control.append(Pauses.longestPause(during: end - begin))
    }

    var numbers: Numbers {
      [("longest", wall), ("own", own), ("control", control)].reduce(into: [:]) { all, one in
        Spread(one.1).write(to: &all, one.0)
      }
    }
  }

  // MARK: Filling

  private static func filling(_ scale: Scale) throws -> [Figure] {
    let count = scale(5_000_000, quick: 500_000)
    return try [(Limited.none, "no limit"), (.cost, "a cost limit")].map { limited, name in
      let numbers = try ChildRun.run("pauses-filling", [limited.rawValue, count, scale(3, quick: 3)])
      return try longest("longest store while \(count) entries are stored, \(name)", numbers)
    }
  }

  /// Arguments: the limit, entries, rounds.
  @Sendable static func measureFilling(_ arguments: [Int]) throws -> Numbers {
    var longest = Longest()
    for _ in 0..<arguments[2] {
      // The limit is never reached: it is there, and so the cache keeps what it needs for it.
      let cache = try Limited(rawValue: arguments[0])!.makeCache(of: 2 * arguments[1])
      longest.append { longestStoreAndOwn(cache, arguments[1]) { $0 } }
    }
    return longest.numbers
  }

  // MARK: All hot

  private static func hot(_ scale: Scale) throws -> [Figure] {
    let count = scale(1_000_000, quick: 100_000)
    return try [(Limited.count, "count limit"), (.cost, "cost limit")].map { limited, name in
      let numbers = try ChildRun.run("pauses-hot", [limited.rawValue, count, scale(3, quick: 3)])
      return try longest("longest store at a \(name), \(count) entries, all of them hot", numbers)
    }
  }

  /// Arguments: the limit, entries, rounds.
  @Sendable static func measureHot(_ arguments: [Int]) throws -> Numbers {
    let count = arguments[1]
    let cache = try Limited(rawValue: arguments[0])!.makeCache(of: count)
    _ = longestStore(cache, count) { $0 }
    var longest = Longest()
    for round in 0..<arguments[2] {
      for _ in 0..<4 { readAll(cache, count + round * 5000) }
      longest.append { longestStoreAndOwn(cache, 5000) { count + round * 5000 + $0 } }
    }
    return longest.numbers
  }

  // MARK: Removing everything

  private static func removing(_ scale: Scale) throws -> [Figure] {
    let count = scale(5_000_000, quick: 500_000)
    let hot = scale(1_000_000, quick: 100_000)
    var figures: [Figure] = []
    for (limited, name) in [(Limited.none, "no limit"), (.cost, "a cost limit")] {
      let numbers = try ChildRun.run("pauses-removing", [limited.rawValue, count, scale(3, quick: 3), 0])
      figures += [
        figure("removeAll of \(count) entries, \(name)", try Spread(numbers, "call"), .atMost(100)),
        figure("longest store of another thread during removeAll, \(name)", try Spread(numbers, "beside"), .atMost(2)),
      ]
    }
    let numbers = try ChildRun.run("pauses-removing", [Limited.none.rawValue, hot, scale(3, quick: 3), 1])
    figures.append(figure("trim(toCount: 0) of \(hot) entries, all of them hot", try Spread(numbers, "call"), .atMost(50)))
    return figures
  }

  /// Arguments: the limit, entries, rounds, 1 for a trim of hot entries. `call` is measured while nothing else runs.
  @Sendable static func measureRemoving(_ arguments: [Int]) throws -> Numbers {
    let (count, trims) = (arguments[1], arguments[3] == 1)
    var calls: [Double] = []
    var beside: [Double] = []
    for _ in 0..<arguments[2] {
      for isBeside in [false, true] {
        let cache = try Limited(rawValue: arguments[0])!.makeCache(of: 2 * count)
        _ = longestStore(cache, count) { $0 }
        if trims { for _ in 0..<4 { readAll(cache, count) } }
        let removing = { trims ? cache.trim(toCount: 0) : cache.removeAll() }
        if isBeside {
          beside.append(longestStoreBeside(cache, count, removing))
        } else {
          calls.append(milliseconds(removing))
          guard cache.count == 0 else { throw ToolFailure("\(cache.count) entries are left") }
        }
      }
    }
    return numbers("call", calls).merging(numbers("beside", beside)) { first, _ in first }
  }

  /// The longest store of a thread that stores new keys while `body` runs on this one.
  private static func longestStoreBeside(
    _ cache: PurgeableCache<Int, [UInt8]>, _ count: Int, _ body: () -> Void
  ) -> Double {
    let isReady = Atomic<Bool>(false)
    let isDone = Atomic<Bool>(false)
    let longest = Mutex(0.0)
    withThread {
      var round = 0
      while !isDone.load(ordering: .relaxed) {
        let begin = 2 * count + round * 100
        let now = longestStore(cache, 100) { begin + $0 }
        if round > 0 { longest.withLock { $0 = max($0, now) } }
        round += 1
        isReady.store(true, ordering: .relaxed)
      }
    } meanwhile: {
      while !isReady.load(ordering: .relaxed) { usleep(1000) }
      body()
      isDone.store(true, ordering: .relaxed)
    }
    return longest.withLock { $0 }
  }

  private static func withThread(_ body: @escaping @Sendable () -> Void, meanwhile: () -> Void) {
    let ended = DispatchSemaphore(value: 0)
    Thread {
      body()
      ended.signal()
    }.start()
    meanwhile()
    ended.wait()
  }

  // MARK: Entries without cost, pages lost unnoticed

  private static func odd(_ scale: Scale) throws -> [Figure] {
    let free = scale(400_000, quick: 100_000)
    let count = scale(1_000_000, quick: 100_000)
    let costless = try ChildRun.run("pauses-costless", [free, scale(3, quick: 3)])
    let lost = try ChildRun.run("pauses-lost", [count, scale(3, quick: 3)])
    return [
      figure("stores at a cost limit beside \(free) entries of cost 0", try Spread(costless, "store"), .atMost(2), "us"),
      figure(
        "stores at a count limit, a quarter of the pages lost unnoticed, against without", try Spread(lost, "lost/whole"),
        .atMost(2), "times its time"),
    ]
  }

  /// Arguments: entries of cost 0, rounds.
  @Sendable static func measureCostless(_ arguments: [Int]) throws -> Numbers {
    let (count, limit) = (arguments[0], 1000)
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures", costLimit: limit)
    let value = [UInt8](repeating: 7, count: valueByteCount)
    for key in 0..<count { cache.setValue(value, forKey: key, cost: 0) }
    var times: [Double] = []
    for round in 0..<arguments[1] {
      // Each store of cost 1 above the limit evicts one.
      let first = count + 2 * limit * round
      let all = milliseconds { for key in first..<first + 2 * limit { cache.setValue(value, forKey: key, cost: 1) } }
      times.append(1000 * all / Double(2 * limit))
    }
    return numbers("store", times)
  }

  /// Arguments: entries, rounds.
  @Sendable static func measureLost(_ arguments: [Int]) throws -> Numbers {
    let count = arguments[0]
    var ratios: [Double] = []
    for _ in 0..<arguments[1] {
      var times: [Double] = []
      for losesPages in [false, true] {
        let cache = try Limited.count.makeCache(of: count)
        _ = longestStore(cache, count) { $0 }
        settle(cache)
        if losesPages {
          var hand = PageOutHand()
          // The hand takes a piece of every slab in turn.
          _ = try cache.pageOut(cache.statistics.memory.heldBytes / 4, hand: &hand)
        }
        times.append(milliseconds { _ = longestStore(cache, count / 4) { count + $0 } })
      }
      ratios.append(times[1] / times[0])
    }
    return numbers("lost/whole", ratios)
  }

  // MARK: Parts

  private static func numbers(_ name: String, _ values: [Double]) -> Numbers {
    var numbers: Numbers = [:]
    Spread(values).write(to: &numbers, name)
    return numbers
  }

  private static func nanoseconds() -> UInt64 { DispatchTime.now().uptimeNanoseconds }

  /// The processor time of this thread.
  private static func ownNanoseconds() -> UInt64 {
    var time = timespec()
    _ = unsafe clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }

  private static func milliseconds(_ body: () -> Void) -> Double {
    let start = nanoseconds()
    body()
    return Double(nanoseconds() - start) / 1e6
  }

  /// Stores so many entries, and returns the milliseconds of the longest call.
  @inline(never)
  private static func longestStore(_ cache: PurgeableCache<Int, [UInt8]>, _ count: Int, _ key: (Int) -> Int) -> Double {
    let value = [UInt8](repeating: 7, count: valueByteCount)
    var longest: UInt64 = 0
    var before = nanoseconds()
    for i in 0..<count {
      cache.setValue(value, forKey: key(i))
      let now = nanoseconds()
      longest = max(longest, now - before)
      before = now
    }
    return Double(longest) / 1e6
  }

  /// As above, and the milliseconds of the call that took this thread the most processor time.
  @inline(never)
  private static func longestStoreAndOwn(
    _ cache: PurgeableCache<Int, [UInt8]>, _ count: Int, _ key: (Int) -> Int
  ) -> (wall: Double, own: Double) {
    let value = [UInt8](repeating: 7, count: valueByteCount)
    var (longest, longestOwn) = (UInt64(0), UInt64(0))
    for i in 0..<count {
      let (before, ownBefore) = (nanoseconds(), ownNanoseconds())
      cache.setValue(value, forKey: key(i))
      longest = max(longest, nanoseconds() - before)
      longestOwn = max(longestOwn, ownNanoseconds() - ownBefore)
    }
    return (Double(longest) / 1e6, Double(longestOwn) / 1e6)
  }

  /// The longest time between two looks at the clock, in milliseconds.
  @inline(never)
  private static func longestPause(during nanoseconds: UInt64) -> Double {
    let begin = Self.nanoseconds()
    var (before, longest) = (begin, UInt64(0))
    while before - begin < nanoseconds {
      let now = Self.nanoseconds()
      longest = max(longest, now - before)
      before = now
    }
    return Double(longest) / 1e6
  }

  private static func readAll(_ cache: PurgeableCache<Int, [UInt8]>, _ count: Int) {
    unsafe withUnsafeTemporaryAllocation(byteCount: 128, alignment: 16) { buffer in
      for key in 0..<count { _ = unsafe cache.read(forKey: key, into: buffer) }
    }
  }
}
