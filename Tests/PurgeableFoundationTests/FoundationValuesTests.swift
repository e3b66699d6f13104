// SPDX-License-Identifier: MIT
// Data and Codable values: what goes in comes out, and what cannot be decoded is a miss.

import Foundation
import PurgeableFoundation
import Testing

@Suite("Foundation's types as values")
struct FoundationValuesTests {
  struct Page: PurgeableCodable, Equatable {
    var title: String
    var links: [URL]
    var visited: Date
    var weight: Double = 1
  }

  @Test("Data comes back byte for byte", arguments: [0, 1, 100, 5000, 300_000])
  func data(byteCount: Int) throws {
    let cache = try PurgeableCache<String, Data>()
    let bytes = Data((0..<byteCount).map { UInt8(truncatingIfNeeded: $0 &* 31) })
    cache["page"] = bytes
    #expect(cache["page"] == bytes)
    #expect(cache.totalCost == UInt64(byteCount))
  }

  @Test("a slice of Data is stored as its own bytes")
  func slice() throws {
    let cache = try PurgeableCache<Int, Data>()
    cache[1] = Data([1, 2, 3, 4, 5])[1..<4]
    #expect(cache[1] == Data([2, 3, 4]))
  }

  @Test("a Codable value comes back equal")
  func codable() throws {
    let cache = try PurgeableCache<UUID, Page>()
    let key = UUID()
    let page = Page(
      title: "Ünïcode", links: [try #require(URL(string: "https://example.org/a?b=c"))], visited: Date(timeIntervalSince1970: 1e9)
    )
    cache[key] = page
    #expect(cache[key] == page)
    #expect(cache[UUID()] == nil)
  }

  @Test("a value that does not encode is an undecodable miss, not a crash")
  func undecodable() throws {
    let cache = try PurgeableCache<Int, Page>()
    cache[1] = Page(title: "", links: [], visited: .now, weight: .infinity)
    guard case .miss(.undecodable) = cache.lookUp(1) else {
      Issue.record("expected an undecodable miss")
      return
    }
  }
}
