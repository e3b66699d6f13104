// SPDX-License-Identifier: MIT
// Small caches: what an empty one takes, what making and ending it costs, and thousands of them.

import CPurgeable
import Foundation
import Purgeable
import ToolSupport

enum Small {
  static func figures(_ scale: Scale) throws -> [Figure] {
    // So many that what the process takes once, and some 64 KiB that it takes in one run of four, are no part of it.
    let emptyCount = 4000
    let empty = try ChildRun.run("small-caches", [emptyCount, 0])
    let many = try ChildRun.run("small-caches", [8000, 1])
    let life = try ChildRun.run("cache-life", [scale(20_000, quick: 2000)])
    return [
      Figure(
        "empty cache, resident", .count, try empty.value("resident") / Double(emptyCount) / 1024, .atMost(16), "KiB",
        note: "\(Figure.text(try empty.value("mappings") / Double(emptyCount))) mappings each"),
      Figure("create and destroy a cache", .time, try life.value("microseconds"), .atMost(30), "us"),
      Figure(
        "8,000 caches of one entry, resident", .count, try many.value("resident") / 1e6, .atMost(200), "MB",
        note: "\(Figure.text(try many.value("reserved") / 1e9)) GB of address space"),
      Figure("8,000 caches of one entry, mappings", .count, try many.value("mappings"), .atMost(8000), "mappings"),
    ]
  }

  /// Arguments: how many caches, how many entries in each.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    // Everything that is made once is there before the first look.
    let first = try PurgeableCache<Int, Int>()
    first[0] = 0
    var caches: [PurgeableCache<Int, Int>] = []
    caches.reserveCapacity(arguments[0])
    let (resident, mappings, reserved) = (try OwnMemory.residentBytes(), try mappingCount(), try reservedBytes())
    for i in 0..<arguments[0] {
      let cache = try PurgeableCache<Int, Int>()
      for key in 0..<arguments[1] { cache[key] = i }
      caches.append(cache)
    }
    let numbers: Numbers = [
      "resident": Double(try OwnMemory.residentBytes() - resident), "mappings": Double(try mappingCount() - mappings),
      "reserved": Double(try reservedBytes() - reserved),
    ]
    for (i, cache) in caches.enumerated() {
      for key in 0..<arguments[1] {
        guard let value = cache[key] else { continue }
        guard value == i else { throw ToolFailure("a wrong value") }
      }
    }
    return numbers
  }

  /// Arguments: how many caches, one after the other.
  @Sendable static func measureLife(_ arguments: [Int]) throws -> Numbers {
    let first = try PurgeableCache<Int, Int>()
    first[0] = 0
    let clock = ContinuousClock()
    let time = try clock.measure {
      for _ in 0..<arguments[0] { _ = try PurgeableCache<Int, Int>() }
    }
    return ["microseconds": time / .microseconds(arguments[0])]
  }

  private static func mappingCount() throws -> Int {
    guard let text = SmallFile.text("/proc/self/maps", limit: 1 << 26) else { throw ToolFailure("no /proc/self/maps") }
    return text.utf8.count { $0 == UInt8(ascii: "\n") }
  }

  private static func reservedBytes() throws -> Int {
    guard let text = SmallFile.text("/proc/self/status"), let bytes = SmallFile.number(after: "VmSize", in: text) else {
      throw ToolFailure("no VmSize in /proc/self/status")
    }
    return Int(bytes)
  }
}
