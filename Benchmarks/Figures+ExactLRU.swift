// SPDX-License-Identifier: MIT
// The exact order of last use against a textbook LRU: hits, which change the order, and stores at limits.

import Foundation
import Purgeable
import PurgeableFoundation
import ToolSupport

enum ExactLRU {
  private enum Work: Int, CaseIterable {
    case hits, count, bytes
    var name: String { ["hits", "stores at a count limit", "stores at a byte limit, half of them after hits"][rawValue] }
  }

  static func figures(_ scale: Scale) throws -> [Figure] {
    let count = 1_000_000
    let memory = try ChildRun.run("exact-lru-memory", [count])
    let ordinary = Figure(
      "ordinary memory per entry with exact LRU", .count, try memory.value("ordinary"), .atMost(30), "B an entry",
      note: "by the cache's own count, \(count) entries")
    return try [ordinary]
      + Work.allCases.map { work in
        let numbers = try ChildRun.run("exact-lru", [work.rawValue, scale(200_000, quick: 40_000), scale(7, quick: 3)])
        return Figure(
          "exact LRU, \(work.name), String keys, Data of 100 bytes, against a textbook LRU", .time,
          try Spread(numbers, "cache/lru"), .atMost(work == .hits ? 1.0 : 1.2), "times its time",
          note: "cache \(Figure.text(try numbers.value("cache"))) ns, LRU \(Figure.text(try numbers.value("lru"))) ns")
      }
  }

  /// Arguments: entries.
  @Sendable static func measureMemory(_ arguments: [Int]) throws -> Numbers {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures", evictionOrder: .lru)
    for key in 0..<arguments[0] { cache.setValue(Workload.value(of: key), forKey: key) }
    guard cache.count == arguments[0] else { throw ToolFailure("\(cache.count) entries, not \(arguments[0])") }
    return ["ordinary": Double(cache.statistics.memory.ordinaryBytes) / Double(arguments[0])]
  }

  /// Arguments: the work, entries at the limit, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let (work, entries) = (Work(rawValue: arguments[0])!, arguments[1])
    let workload = NamedWorkload(count: 4 * entries, valueByteCount: 100)
    var limits = Limits()
    if work == .bytes { limits.bytes = entries * (workload.keys[0].utf8.count + 100) } else { limits.count = entries }
    let cache = try PurgeableCache<String, Data>(
      name: "figures", countLimit: work == .bytes ? nil : entries, byteLimit: work == .bytes ? limits.bytes : nil,
      evictionOrder: .lru)
    let lru = TextbookLRU<String, Data>(limits)
    for key in 0..<entries {
      cache.setValue(workload.value(key), forKey: workload.keys[key])
      lru.setValue(workload.value(key), forKey: workload.keys[key], cost: 100)
    }
    /// The key of a step: at random among those that are there, or one after the other, so that each is a new one.
    func key(_ step: Int) -> String { workload.keys[step % workload.keys.count] }
    let read = workload.order.filter { $0 < entries }
    var (next, lruNext, found) = (entries, entries, [0, 0])
    func pass(_ side: Int, _ next: inout Int, _ get: (String) -> Bool, _ set: (Data, String) -> Void) {
      guard work != .hits else {
        found[side] += read.count { get(workload.keys[$0]) }
        return
      }
      for step in next..<next + 2 * entries {
        if work == .bytes, get(key(step - 1 - step % 64 * entries / 100)) { found[side] += 1 }
        set(workload.value(step), key(step))
      }
      next += 2 * entries
    }
    let times = try Rounds.alternate(
      arguments[2],
      [
        { pass(0, &next, { cache.value(forKey: $0) != nil }, { cache.setValue($0, forKey: $1) }) },
        { pass(1, &lruNext, { lru.value(forKey: $0) != nil }, { lru.setValue($0, forKey: $1, cost: 100) }) },
      ])
    guard work != .hits || found[0] == found[1] && found[0] % entries == 0, cache.count > entries / 3, lru.count > entries / 3
    else { throw ToolFailure("\(found) hits, \(cache.count) and \(lru.count) entries of \(entries)") }
    let steps = Double(work == .hits ? entries : 2 * entries)
    var numbers: Numbers = [:]
    for (side, name) in ["cache", "lru"].enumerated() { numbers[name] = Spread(times.map { $0[side] / steps }).median }
    Rounds.ratio(times, 0, over: 1).write(to: &numbers, "cache/lru")
    return numbers
  }
}
