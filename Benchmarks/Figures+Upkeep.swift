// SPDX-License-Identifier: MIT
// Giving back and sweeping.

import Foundation
import Purgeable
import ToolSupport

enum Upkeep {
  static func figures(_ scale: Scale) throws -> [Figure] {
    try [eviction(scale), sweep(scale)]
  }

  /// A cache of values from 100 B to 4 KiB, log-uniform.
  private static func fill(_ byteCount: Int) throws -> (cache: PurgeableCache<Int, [UInt8]>, count: Int) {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    var generator = SplitMix64()
    let bytes = [UInt8](repeating: 0x5A, count: 4096)
    var stored = 0
    var count = 0
    while stored < byteCount {
      let value = [UInt8](bytes[..<generator.logUniform(100, 4096)])
      guard cache.setValue(value, forKey: count) == .stored else { throw ToolFailure("an entry was not stored") }
      stored += value.count
      count += 1
    }
    return (cache, count)
  }

  // MARK: Giving back

  private static func eviction(_ scale: Scale) throws -> Figure {
    let byteCount = scale(2 << 30, quick: 256 << 20)
    let numbers = try ChildRun.run("eviction", [byteCount])
    let (given, evicted) = (try numbers.value("given"), try numbers.value("evicted"))
    return Figure(
      "resident bytes given back / bytes evicted, half of \(byteCount >> 20) MiB", .count, given / evicted, .atLeast(0.90),
      "ratio",
      note: "\(Figure.text(given / 1e6)) MB of \(Figure.text(evicted / 1e6)) MB, a fifth of the entries read twice before, "
        + "\(Int(try numbers.value("copies"))) of them copied")
  }

  /// Arguments: bytes to store.
  @Sendable static func measureEviction(_ arguments: [Int]) throws -> Numbers {
    let (cache, count) = try fill(arguments[0])
    // Every fifth is worth keeping: the policy copies them.
    for key in stride(from: 0, to: count, by: 5) {
      for _ in 0..<2 where cache.value(forKey: key) == nil { throw ToolFailure("an entry is gone") }
    }
    let before = (resident: try OwnMemory.residentBytes(), statistics: cache.statistics)
    cache.trim(toFraction: 0.5)
    let after = (resident: try OwnMemory.residentBytes(), statistics: cache.statistics)
    return [
      "given": Double(before.resident - after.resident), "copies": Double(after.statistics.copyCount),
      "evicted": Double(before.statistics.memory.payloadBytes - after.statistics.memory.payloadBytes),
    ]
  }

  // MARK: Sweeping

  private static func sweep(_ scale: Scale) throws -> Figure {
    let byteCount = scale(1 << 30, quick: 256 << 20)
    let numbers = try ChildRun.run("sweep", [byteCount, scale(9, quick: 5)])
    let (milliseconds, gigabytes) = (try numbers.value("milliseconds"), try numbers.value("offered") / Double(1 << 30))
    return Figure(
      "sweep", .time, try Spread(numbers, "sweep/allowed"), .atMost(1), "times 1 ms per GiB + 2 ns an entry",
      note: "\(Figure.text(milliseconds)) ms for \(Figure.text(gigabytes)) GiB on offer and \(Int(try numbers.value("entries"))) "
        + "entries, nothing lost")
  }

  /// Arguments: bytes to store, rounds.
  @Sendable static func measureSweep(_ arguments: [Int]) throws -> Numbers {
    let (cache, count) = try fill(arguments[0])
    settle(cache)
    let offered = Double(cache.statistics.memory.offeredBytes)
    let allowed = 1e6 * offered / Double(1 << 30) + 2 * Double(count)
    let times = try (0..<arguments[1]).map { _ in
      try Rounds.nanoseconds { if cache.sweep() != 0 { throw ToolFailure("entries were lost") } }
    }
    var numbers = ["offered": offered, "entries": Double(count), "milliseconds": Spread(times).median / 1e6]
    Spread(times.map { $0 / allowed }).write(to: &numbers, "sweep/allowed")
    return numbers
  }
}
