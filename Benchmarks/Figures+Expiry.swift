// SPDX-License-Identifier: MIT
// What a default expiry costs hits and stores, and a million entries that expire within a second.

import Foundation
import Purgeable
import Synchronization
import ToolSupport

enum ExpiryFigures {
  static func figures(_ scale: Scale) throws -> [Figure] {
    let each = try ChildRun.run("expiry", [scale(200_000, quick: 40_000), scale(15, quick: 5)])
    let count = scale(1_000_000, quick: 200_000)
    let flood = try ChildRun.run("expiry-flood", [count, scale(5, quick: 3)])
    func note(_ work: String) throws -> String {
      "with \(Figure.text(try each.value("\(work)-with"))) ns, without \(Figure.text(try each.value("\(work)-without"))) ns"
    }
    return [
      Figure(
        "hits with a count limit and a default expiry, against without an expiry", .time, try Spread(each, "hits"), .atMost(1.1),
        "times their time", note: try note("hits")),
      Figure(
        "hits with a count limit and a default expiry, against without either", .time, try Spread(each, "hits-bare"),
        .atMost(1.1), "times their time"),
      Figure(
        "stores at a count limit with a default expiry, against without", .time, try Spread(each, "stores"), .atMost(1.2),
        "times their time", note: try note("stores")),
      Figure(
        "ordinary memory per entry with a default expiry", .count, try flood.value("ordinary"), .atMost(18), "B an entry",
        note: "by the cache's own count, \(count) entries"),
      Figure(
        "ordinary memory per entry with a default expiry since the last use", .count, try flood.value("ordinary-last-use"),
        .atMost(22), "B an entry", note: "by the cache's own count, \(count) entries"),
      Figure(
        "\(count) entries expire within a second: until their memory is back", .time, try Spread(flood, "back"), .atMost(2),
        "s"),
      Figure(
        "\(count) entries expire within a second: longest call of another thread", .time, try Spread(flood, "longest"),
        .atMost(2), "ms", note: "longest pause of a loop that only computes \(Figure.text(try flood.value("pause"))) ms"),
    ]
  }

  private static func makeCache(_ countLimit: Int?, _ expiry: Expiry?) throws -> PurgeableCache<Int, [UInt8]> {
    var options = CacheOptions(name: "figures", countLimit: countLimit)
    options.expiry = expiry
    return try PurgeableCache(options)
  }

  /// Arguments: entries, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let (count, rounds) = (arguments[0], arguments[1])
    let workload = Workload(count: 2 * count)
    let caches = try [makeCache(count, .sinceCreation(.seconds(3600))), makeCache(count, nil), makeCache(nil, nil)]
    for cache in caches { for key in workload.keys[..<count] { cache.setValue(Workload.value(of: key), forKey: key) } }
    var found = [0, 0, 0]
    let order = workload.order.filter(Set(workload.keys[..<count]).contains)
    func hits(_ side: Int) {
      let cache = caches[side]
      unsafe withUnsafeTemporaryAllocation(byteCount: 128, alignment: 16) { buffer in
        for key in order { if case .hit = unsafe cache.read(forKey: key, into: buffer) { found[side] += 1 } }
      }
    }
    let hitTimes = try Rounds.alternate(rounds, [{ hits(0) }, { hits(1) }, { hits(2) }])
    guard found == [Int](repeating: (rounds + 1) * count, count: 3) else { throw ToolFailure("\(found) hits") }
    var next = [count, count]
    func stores(_ side: Int) {
      for step in next[side]..<next[side] + count {
        let key = workload.keys[step % workload.keys.count]
        caches[side].setValue(Workload.value(of: key), forKey: key)
      }
      next[side] += count
    }
    let storeTimes = try Rounds.alternate(rounds, [{ stores(0) }, { stores(1) }])
    var numbers: Numbers = [:]
    Rounds.ratio(hitTimes, 0, over: 2).write(to: &numbers, "hits-bare")
    for (name, times) in [("hits", hitTimes), ("stores", storeTimes)] {
      Rounds.ratio(times, 0, over: 1).write(to: &numbers, name)
      for (side, with) in ["with", "without"].enumerated() {
        numbers["\(name)-\(with)"] = Spread(times.map { $0[side] / Double(count) }).median
      }
    }
    return numbers
  }

  /// Arguments: entries, rounds.
  @Sendable static func measureFlood(_ arguments: [Int]) throws -> Numbers {
    let count = arguments[0]
    var (back, longest, pause, ordinary): ([Double], [Double], Double, Double) = ([], [], 0, 0)
    for _ in 0..<arguments[1] {
      let cache = try makeCache(nil, nil)
      // Stored within a time that hangs on the machine, and over at one moment, or within a second.
      let end = ContinuousClock.now + .seconds(4)
      for key in 0..<count {
        let part = Duration.seconds(1) * (Double(key) / Double(count))
        cache.setValue(Workload.value(of: key), forKey: key, expiry: .sinceCreation(end - .now + part))
      }
      guard ContinuousClock.now < end else { throw ToolFailure("the machine is too slow for \(count) stores in 4 s") }
      ordinary = Double(cache.statistics.memory.ordinaryBytes) / Double(count)
      let held = cache.statistics.memory.heldBytes
      let isDone = Atomic<Bool>(false)
      let ended = DispatchSemaphore(value: 0)
      let found = Mutex((call: 0.0, pause: 0.0))
      Thread {
        let value = [UInt8](repeating: 7, count: 100)
        var (i, calls, pauses) = (0, Duration.zero, Duration.zero)
        while !isDone.load(ordering: .relaxed) {
          let (begin, key) = (ContinuousClock.now, -1 - i % 1000)
          if i % 2 == 0 { cache.setValue(value, forKey: key) } else { _ = cache.value(forKey: key) }
          let middle = ContinuousClock.now
          while ContinuousClock.now - middle < middle - begin {}
          (calls, pauses) = (max(calls, middle - begin), max(pauses, ContinuousClock.now - middle - (middle - begin)))
          i += 1
        }
        found.withLock { $0 = (calls / .milliseconds(1), pauses / .milliseconds(1)) }
        ended.signal()
      }.start()
      while cache.statistics.memory.heldBytes > held / 20, ContinuousClock.now < end + .seconds(60) { usleep(10_000) }
      back.append((ContinuousClock.now - end - .seconds(1)) / .seconds(1))
      isDone.store(true, ordering: .relaxed)
      ended.wait()
      guard cache.count <= 1000 + count / 10 else { throw ToolFailure("\(cache.count) entries are left") }
      longest.append(found.withLock { $0.call })
      pause = max(pause, found.withLock { $0.pause })
    }
    let cache = try makeCache(nil, .sinceLastUse(.seconds(3600)))
    for key in 0..<count { cache.setValue(Workload.value(of: key), forKey: key) }
    let lastUse = Double(cache.statistics.memory.ordinaryBytes) / Double(count)
    var numbers: Numbers = ["pause": pause, "ordinary": ordinary, "ordinary-last-use": lastUse]
    Spread(back).write(to: &numbers, "back")
    Spread(longest).write(to: &numbers, "longest")
    return numbers
  }
}
