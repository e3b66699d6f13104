// SPDX-License-Identifier: MIT
// PurgeableNSCache beside the NSCache of this system's Foundation, with the same keys.

import Foundation
import Purgeable
import PurgeableFoundation
import ToolSupport

enum NSCacheShape {
  static func figures(_ scale: Scale) throws -> [Figure] {
    var figures: [Figure] = []
    for (kind, keys) in ["NSNumber", "NSString"].enumerated() {
      for (work, name) in ["hits", "stores with a cost limit, 20,000 entries"].enumerated() {
        let numbers = try ChildRun.run("nscache-shape", [kind, work, 20_000, scale(15, quick: 3)])
        figures.append(
          Figure(
            "shape of NSCache, \(keys) keys: \(name), against NSCache", .time, try Spread(numbers, "nscache/shape"),
            .atLeast([2, 50][work]), "times as fast",
            note: "shape \(Figure.text(try numbers.value("shape"))) ns, NSCache \(Figure.text(try numbers.value("nscache"))) ns"))
      }
    }
    return figures
  }

  /// Arguments: keys, work, entries, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let (entries, rounds) = (arguments[2], arguments[3])
    let isHits = arguments[1] == 0
    let workload = ObjectWorkload<NSObject>(isHits ? .hits : .fullStores, entries: entries) {
      arguments[0] == 0 ? Int(number: $0).foundation : String(number: $0).foundation
    }
    let shape = ShapePeer(cache: PurgeableNSCache())
    let nsCache = FoundationPeer(cache: NSCache())
    workload.fill(shape)
    workload.fill(nsCache)
    if !isHits {
      // Room for as many entries of the mean cost.
      let limit = entries * entries
      (shape.cache.totalCostLimit, nsCache.cache.totalCostLimit) = (limit, limit)
    }
    let fewer = isHits ? entries : entries / 20
    var (at, nsCacheAt) = (0, 0)
    let times = try Rounds.alternate(
      rounds, [{ try workload.perform(shape, &at, entries) }, { try workload.perform(nsCache, &nsCacheAt, fewer) }]
    ).map { [$0[0] / Double(entries), $0[1] / Double(fewer)] }
    var numbers: Numbers = [:]
    for (side, name) in ["shape", "nscache"].enumerated() { numbers[name] = Spread(times.map { $0[side] }).median }
    Rounds.ratio(times, 1, over: 0).write(to: &numbers, "nscache/shape")
    return numbers
  }
}
