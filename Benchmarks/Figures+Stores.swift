// SPDX-License-Identifier: MIT
// Stores: what they cost in system calls until everything is on offer, and their time against NSCache.

import CPurgeable.Testing
import Foundation
import Purgeable
import ToolSupport

enum Stores {
  static func figures(_ scale: Scale) throws -> [Figure] {
    // The index grows in steps, each of some calls: fewer entries would have more of them.
    let count = 1_000_000
    let (numbers, calls) = try ChildRun.runTraced("store-counts", [count])
    let offered = try numbers.value("offered") / numbers.value("held")
    let onOffer = "\(Figure.text(100 * offered)) % of what is held was on offer a second after the last store"
    var perStore = Figure(
      "system calls per stored 100-byte entry", .count,
      try Double(calls ?? Int(numbers.value("table-calls"))) / Double(count), .atMost(0.01), "calls",
      note: Hits.unlessTraced(calls).map { $0 + "; " + onOffer } ?? onOffer)
    // A store that is cheap because nothing was offered does not count.
    perStore.condition = offered >= 0.95
    let times = try ChildRun.run("stores", [scale(count, quick: 200_000), scale(5, quick: 3)])
    return [
      perStore,
      Figure(
        "stores, against NSCache", .time, try Spread(times, "nscache/store"), .atLeast(5), "times as fast",
        note: "store \(Figure.text(try times.value("store"))) ns, nscache \(Figure.text(try times.value("nscache"))) ns"),
    ]
  }

  /// Arguments: entries. One second after the last store everything idle has to be on offer; that counts too.
  @Sendable static func count(_ arguments: [Int]) throws -> Numbers {
    let workload = Workload(count: arguments[0])
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    // Until after the last mark: an array that is freed in between is a system call, and not the cache's.
    defer { withExtendedLifetime(workload) {} }
    let tableBefore = purgeable_testing_call_count(purgeable_testing_call_any.rawValue)
    ChildRun.mark()
    for key in workload.keys { cache.setValue(Workload.value(of: key), forKey: key) }
    usleep(1_000_000)
    ChildRun.mark()
    let calls = purgeable_testing_call_count(purgeable_testing_call_any.rawValue) - tableBefore
    let statistics = cache.statistics
    return [
      "table-calls": Double(calls), "offered": Double(statistics.memory.offeredBytes),
      "held": Double(statistics.memory.heldBytes),
    ]
  }

  /// Arguments: entries, rounds. Values were made before; a fresh cache each time, its end not counted.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let workload = Workload(count: arguments[0])
    let values = workload.keys.map { Workload.value(of: $0) }
    var own: [Double] = []
    var others: [Double] = []
    for round in 0...arguments[1] {
      let (cache, nsCache) = (try PurgeableCache<Int, [UInt8]>(name: "figures"), NSCache<NSNumber, Box>())
      let time = Rounds.nanoseconds { storePass(cache, workload.keys, values) } / Double(arguments[0])
      let otherTime = Rounds.nanoseconds { storePass(nsCache, workload.keys, values) } / Double(arguments[0])
      guard cache.count == arguments[0], readPass(cache, workload.keys) == nsCachePass(nsCache, workload.keys) else {
        throw ToolFailure("stored \(arguments[0]) entries and found \(cache.count), or others")
      }
      // The first round warms up.
      if round == 0 { continue }
      own.append(time)
      others.append(otherTime)
    }
    var numbers = ["store": Spread(own).median, "nscache": Spread(others).median]
    Spread(zip(own, others).map { $1 / $0 }).write(to: &numbers, "nscache/store")
    return numbers
  }

  @inline(never)
  private static func storePass(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: [Int], _ values: [[UInt8]]) {
    for i in keys.indices { cache.setValue(values[i], forKey: keys[i]) }
  }

  @inline(never)
  private static func storePass(_ cache: NSCache<NSNumber, Box>, _ keys: [Int], _ values: [[UInt8]]) {
    for i in keys.indices { cache.setObject(Box(values[i]), forKey: NSNumber(value: keys[i]), cost: 0) }
  }
}
