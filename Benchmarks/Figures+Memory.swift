// SPDX-License-Identifier: MIT
// Ordinary memory: what bookkeeping takes, from what the process really has.

import CPurgeable
import Foundation
import Purgeable
import ToolSupport

enum Memory {
  static func figures(_ scale: Scale) throws -> [Figure] {
    try [heap(keepsTags: false), heap(keepsTags: true), entries(scale)]
  }

  // MARK: The slab heap

  private enum Mix: Int, CaseIterable {
    case small, hundred, mixed

    var name: String {
      switch self {
      case .small: "16 B"
      case .hundred: "100 B"
      case .mixed: "16 B to 16 KiB"
      }
    }

    func size(_ generator: inout SplitMix64) -> Int {
      switch self {
      case .small: 16
      case .hundred: 100
      case .mixed: generator.logUniform(16, 16384)
      }
    }
  }

  /// What is more than 1 % of the slab bytes, by element; the worst of three mixes.
  private static func heap(keepsTags: Bool) throws -> Figure {
    var worst = -Double.infinity
    var notes: [String] = []
    for mix in Mix.allCases {
      let numbers = try ChildRun.run("heap-memory", [mix.rawValue, 256 << 20, keepsTags ? 1 : 0])
      let (resident, elements) = (try numbers.value("resident"), try numbers.value("elements"))
      // Slabs as they lie in their chunks, tails that were never touched included.
      let allowed = 0.01 * (try numbers.value("slabs"))
      let real = (try numbers.value("rss") - resident - allowed) / elements
      let told = (try numbers.value("ordinary") - allowed) / elements
      worst = max(worst, real)
      notes.append("\(mix.name): \(Figure.text(real)) by resident bytes, \(Figure.text(told)) by the heap's own count")
    }
    return Figure(
      "ordinary memory of the slab heap beyond 1 % of slab bytes" + (keepsTags ? ", with owner tags" : ""),
      .count, worst, .atMost(keepsTags ? 12 : 4), "B an element", note: notes.joined(separator: "; "))
  }

  /// Arguments: mix, slab bytes, whether to keep tags.
  @Sendable static func measureHeap(_ arguments: [Int]) throws -> Numbers {
    guard let mix = Mix(rawValue: arguments[0]) else { throw ToolFailure("unknown mix") }
    var generator = SplitMix64()
    var filling = try Filling(keepsTags: arguments[2] == 1)
    while filling.payload + 8 * filling.count < arguments[1] { _ = try filling.add(mix.size(&generator)) }
    return try filling.numbers()
  }

  // MARK: Cache entries

  private static func entries(_ scale: Scale) throws -> Figure {
    let (first, last) = (scale(600_000, quick: 600_000), scale(2_000_000, quick: 1_000_000))
    let numbers = try ChildRun.run("entry-memory", [first, last, scale(50_000, quick: 100_000)])
    let note =
      "worst at \(Int(try numbers.value("worst-at"))) entries, mean \(Figure.text(try numbers.value("mean"))), "
      + "\(Figure.text(try numbers.value("told"))) by the cache's own count at the end"
    var figure = Figure(
      "ordinary memory per cache entry, 24-byte keys", .count, try numbers.value("worst"), .atMost(24), "B an entry", note: note)
    figure.spread = try numbers.value("best")...numbers.value("worst")
    return figure
  }

  /// Arguments: first and last number of entries, step.
  @Sendable static func measureEntries(_ arguments: [Int]) throws -> Numbers {
    var value = [UInt8](repeating: 1, count: 100)
    // Everything measuring needs is there before the first look: a cache that is gone again, and a look.
    do {
      let cache = try PurgeableCache<String, [UInt8]>()
      cache.setValue(value, forKey: key(0))
      _ = cache.statistics
    }
    usleep(1_200_000)
    _ = try OwnMemory.residentBytes()
    let empty = try OwnMemory.residentBytes()
    let cache = try PurgeableCache<String, [UInt8]>(name: "figures")
    var costs: [(perEntry: Double, count: Int)] = []
    for i in 1...arguments[1] {
      value[i % 100] = UInt8(truncatingIfNeeded: i)
      cache.setValue(value, forKey: key(i))
      guard i >= arguments[0], i % arguments[2] == 0 else { continue }
      guard cache.count == i else { throw ToolFailure("\(cache.count) entries, not \(i)") }
      let ordinary = try OwnMemory.residentBytes() - (cache.statistics.memory.residentBytes ?? 0) - empty
      costs.append((Double(ordinary) / Double(i), i))
    }
    guard let worst = costs.max(by: { $0.perEntry < $1.perEntry }), let best = costs.min(by: { $0.perEntry < $1.perEntry }) else {
      throw ToolFailure("no look taken")
    }
    return [
      "worst": worst.perEntry, "worst-at": Double(worst.count), "best": best.perEntry,
      "mean": costs.reduce(0) { $0 + $1.perEntry } / Double(costs.count),
      "told": Double(cache.statistics.memory.ordinaryBytes) / Double(arguments[1]),
    ]
  }

  /// 24 characters of ASCII.
  private static func key(_ number: Int) -> String {
    var rest = SplitMix64.mix(UInt64(number))
    return unsafe String(unsafeUninitializedCapacity: 24) { buffer in
      for i in 0..<24 {
        // In bounds: room for 24 was asked for. The last eight say the number once more.
        unsafe buffer[i] = 0x61 + UInt8(i < 16 ? rest & 15 : UInt64(number) >> (4 * UInt64(i - 16)) & 15)
        rest >>= 4
      }
      return 24
    }
  }
}
