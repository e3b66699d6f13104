// SPDX-License-Identifier: MIT
// Statistics as JSON.

import Foundation
import Purgeable
import PurgeableFoundation
import PurgeableTestSupport
import Testing

@Suite("statistics as JSON")
struct StatisticsCodingTests {
  private func object(_ value: some Encodable) throws -> [String: Any] {
    try #require(JSONSerialization.jsonObject(with: JSONEncoder().encode(value)) as? [String: Any])
  }

  @Test("each property is there under its name, times in seconds, reasons by their words, nil as null")
  func cache() throws {
    let cache = try PurgeableCache<String, [UInt8]>(name: "pages", countLimit: 2, byteLimit: 64 << 20)
    for key in ["a", "b", "c"] { cache[key] = [1, 2, 3] }
    _ = (cache["c"], cache["none"])
    _ = cache.value(forKey: "d") { [4] }
    let statistics = cache.statistics
    let members = try object(statistics)
    #expect(Set(members.keys) == Set(Mirror(reflecting: statistics).children.compactMap(\.label)))
    #expect(members["name"] as? String == "pages" && members["count"] as? Int == 2 && members["hitCount"] as? Int == 1)
    #expect(members["countLimit"] as? Int == 2 && members["costLimit"] is NSNull)
    #expect(members["limitReason"] as? String == "byte limit" && members["pressure"] as? String == "\(statistics.pressure)")
    #expect(members["loadTime"] as? Double == statistics.loadTime / .seconds(1) && statistics.loadTime > .zero)
    let departures = try #require(members["departures"] as? [String: Int])
    #expect(departures.count == DepartureReason.allCases.count && departures["count limit"] == 2)
    #expect(try #require(members["missesByReason"] as? [String: Int])["unknown"] == 2)
    let memory = try #require(members["memory"] as? [String: Any])
    #expect(memory["heldBytes"] as? Int == statistics.memory.heldBytes && memory["residentBytes"] is Int)
  }

  @Test("of objects, of pressure, and where there is nothing to tell")
  func others() throws {
    let members = try object(ObjectCache<Int, Int>(name: "numbers").statistics)
    #expect(members["count"] as? Int == 0 && members["name"] as? String == "numbers")
    let pressure = try object(PurgeableMemory.pressureStatistics)
    #expect(pressure["reactionCount"] is Int && pressure["level"] is String && pressure.keys.contains("lastOfferNanoseconds"))
    var memory = MemoryUse()
    memory.residentBytes = nil
    #expect(try object(memory)["residentBytes"] is NSNull)
  }
}
