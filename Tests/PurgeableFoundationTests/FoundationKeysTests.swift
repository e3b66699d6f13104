// SPDX-License-Identifier: MIT
// Foundation's types as keys: equal keys find each other's entries, others do not, and none of them takes ordinary memory.

import Foundation
import PurgeableFoundation
import PurgeableTestSupport
import Testing

@Suite("Foundation's types as keys")
struct FoundationKeysTests {
  private func check<Key: Hashable & Sendable>(_ keys: [Key]) throws {
    let cache = try PurgeableCache<Key, Int>()
    let tracked = try PurgeableCache<Key, Int>(tracksKeys: true)
    for (i, key) in keys.enumerated() {
      #expect(!cache.containsValue(forKey: key))
      cache[key] = i
      tracked[key] = i
    }
    #expect(cache.count == Set(keys).count && cache.count == tracked.count)
    for (i, key) in keys.enumerated() { #expect(cache[key] == i && tracked[key] == i) }
    for key in keys { #expect(cache.remove(forKey: key)) }
    #expect(cache.isEmpty)
  }

  @Test("each key finds its own entry")
  func entries() throws {
    try check((0..<200).map { _ in UUID() })
    try check((0..<200).map { Data(repeating: UInt8($0 % 7), count: $0) })
    try check(FoundationValuesTests.urls)
    try check((0..<200).map { URL(string: "https://example.org/\($0)")! })
  }

  @Test("equal keys are one key, however they were made")
  func equal() throws {
    let data = try PurgeableCache<Data, Int>()
    data[Data([1, 2, 3, 4, 5])[1..<4]] = 1
    #expect(data[Data([2, 3, 4])] == 1 && data[Data([1, 2, 3])] == nil)
    let urls = try PurgeableCache<URL, Int>()
    let base = try #require(URL(string: "https://example.org/a/"))
    let relative = try #require(URL(string: "b", relativeTo: base))
    urls[relative] = 1
    #expect(urls[try #require(URL(string: "b", relativeTo: URL(string: "https://example.org/a/")))] == 1)
    #expect(relative != relative.absoluteURL && urls[relative.absoluteURL] == nil)
    urls[relative.absoluteURL] = 2
    #expect(urls.count == 2 && urls[relative] == 1)
    let identifiers = try PurgeableCache<UUID, Int>()
    let identifier = UUID()
    identifiers[identifier] = 1
    #expect(identifiers[try #require(UUID(uuidString: identifier.uuidString.lowercased()))] == 1)
  }

  @Test("keys lie in purgeable memory: they take no ordinary memory of their own")
  func ordinaryMemory() throws {
    let (cache, tracked) = (try PurgeableCache<UUID, Int>(), try PurgeableCache<UUID, Int>(tracksKeys: true))
    let keys = (0..<(TestRun.isFull ? 20_000 : 6000)).map { _ in UUID() }
    for key in keys {
      cache[key] = 1
      tracked[key] = 1
    }
    #expect(cache.count == keys.count && tracked.count == keys.count)
    let (bytes, trackedBytes) = (cache.statistics.memory.ordinaryBytes, tracked.statistics.memory.ordinaryBytes)
    #expect(bytes < trackedBytes - 16 * keys.count, "\(bytes) bytes, tracked \(trackedBytes)")
  }
}
