// SPDX-License-Identifier: MIT
// Regions: locked and unlocked in turn and offered in bulk, against madvise and rescue by hand each time.

import BenchmarkSupport
import CPurgeable
import Foundation
import ToolSupport

enum Regions {
  private static let byteCount = 64 << 10

  /// `@safe`: a region lives as long as the measurement.
  @safe private struct Handle {
    let raw: OpaquePointer
  }

  static func figures(_ scale: Scale) throws -> [Figure] {
    let numbers = try ChildRun.run("regions", [1024, scale(40, quick: 12)])
    return [
      Figure(
        "1,024 regions of 64 KiB, bulk offer, against madvise + rescue each", .time, try Spread(numbers, "regions/hand"),
        .atMost(0.85), "times its time",
        note: "a region \(Figure.text(try numbers.value("regions"))) ns, by hand \(Figure.text(try numbers.value("hand"))) ns"),
      Figure(
        "lock and unlock again before any offer", .time, try Spread(numbers, "relock"), .atMost(100), "ns"),
    ]
  }

  /// Arguments: regions, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let regions = try (0..<arguments[0]).map { _ in try makeRegion() }
    defer { for region in regions { unsafe purgeable_region_destroy(region.raw) } }
    guard let hand = unsafe benchmark_map(arguments[0] * byteCount) else { throw ToolFailure("no memory") }
    for i in 0..<arguments[0] { unsafe benchmark_offer(hand + i * byteCount, byteCount) }
    purgeable_offer_pending(nil)
    let times = try Rounds.alternate(
      arguments[1],
      [
        {
          try lockAll(regions)
          guard purgeable_offer_pending(nil) == 0 else { throw ToolFailure("an offer was refused") }
        },
        { try unsafe handleAll(hand, arguments[0]) },
      ])
    // The first pass rescues. From then on nothing is on offer, since only this thread offers.
    try lockAll(regions)
    let relocks = try (0..<arguments[1]).map { _ in
      try Rounds.nanoseconds { for _ in 0..<8 { try lockAll(regions) } } / Double(8 * arguments[0])
    }
    var numbers: Numbers = [:]
    numbers["regions"] = Spread(times.map { $0[0] / Double(arguments[0]) }).median
    numbers["hand"] = Spread(times.map { $0[1] / Double(arguments[0]) }).median
    Rounds.ratio(times, 0, over: 1).write(to: &numbers, "regions/hand")
    Spread(relocks).write(to: &numbers, "relock")
    return numbers
  }

  /// Filled and unlocked.
  private static func makeRegion() throws -> Handle {
    var made: OpaquePointer?
    guard unsafe purgeable_region_create(byteCount, nil, &made) == 0, let region = unsafe made,
      let bytes = unsafe purgeable_region_bytes(region)
    else { throw ToolFailure("no memory for a region") }
    unsafe memset(bytes, 7, byteCount)
    unsafe purgeable_region_unlock(region)
    return unsafe Handle(raw: region)
  }

  @inline(never)
  private static func lockAll(_ regions: [Handle]) throws {
    for region in regions {
      guard unsafe purgeable_region_lock(region.raw) == .intact else { throw ToolFailure("a region was discarded") }
      unsafe purgeable_region_unlock(region.raw)
    }
  }

  @inline(never)
  private static func handleAll(_ start: UnsafeMutableRawPointer, _ count: Int) throws {
    for i in 0..<count {
      // Within the mapping, which has `count` such parts.
      let part = unsafe start + i * byteCount
      guard unsafe benchmark_rescue(part, byteCount) else { throw ToolFailure("a page was discarded") }
      guard unsafe benchmark_offer(part, byteCount) == 0 else { throw ToolFailure("an offer was refused") }
    }
  }
}
