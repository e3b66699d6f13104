// SPDX-License-Identifier: MIT
// Enumerating a cache, against the same over a dictionary, which hands out references where the cache copies.

import Purgeable
import ToolSupport

enum Walks {
  private static let names = ["keys", "values", "entries"]

  static func figures(_ scale: Scale) throws -> [Figure] {
    let count = scale(1_000_000, quick: 100_000)
    let numbers = try ChildRun.run("walks", [count, scale(5, quick: 3)])
    return try names.map { name in
      Figure(
        "\(name) of \(count), Int keys, values of 100 bytes, against the same over a Dictionary", .time,
        try Spread(numbers, "\(name)/dictionary"), .atMost(3), "times its time",
        note: "cache \(Figure.text(try numbers.value(name))) ns an entry, "
          + "Dictionary \(Figure.text(try numbers.value("\(name)-dictionary"))) ns")
    }
  }

  /// Arguments: entries, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let count = arguments[0]
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    var dictionary: [Int: [UInt8]] = [:]
    for key in 0..<count {
      let value = [UInt8](repeating: UInt8(truncatingIfNeeded: key), count: 100)
      cache[key] = value
      dictionary[key] = value
    }
    var sums = [Int](repeating: 0, count: 2 * names.count)
    let times = try Rounds.alternate(
      arguments[1],
      [
        { for key in cache.keys { sums[0] &+= key } }, { for key in dictionary.keys { sums[1] &+= key } },
        { for value in cache.values { sums[2] &+= Int(value[99]) } },
        { for value in dictionary.values { sums[3] &+= Int(value[99]) } },
        { for entry in cache.entries { sums[4] &+= entry.key &+ Int(entry.value[99]) } },
        { for (key, value) in dictionary { sums[5] &+= key &+ Int(value[99]) } },
      ])
    guard cache.count == count, sums[0] == sums[1], sums[2] == sums[3], sums[4] == sums[5] else {
      throw ToolFailure("\(cache.count) of \(count) entries, sums \(sums)")
    }
    var numbers: Numbers = [:]
    for (number, name) in names.enumerated() {
      numbers[name] = Spread(times.map { $0[2 * number] / Double(count) }).median
      numbers["\(name)-dictionary"] = Spread(times.map { $0[2 * number + 1] / Double(count) }).median
      Rounds.ratio(times, 2 * number, over: 2 * number + 1).write(to: &numbers, "\(name)/dictionary")
    }
    return numbers
  }
}
