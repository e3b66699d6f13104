// SPDX-License-Identifier: MIT
// Foundation's and Codable values: a value read is equal to the one stored, and one that cannot be decoded is a miss.

import Foundation
import PurgeableFoundation
import PurgeableTestSupport
import Testing
import ToolSupport

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
    #expect(cache.totalCost == byteCount)
  }

  @Test("Data that was read can be changed, grown and cut like any other", arguments: [100, 5000])
  func changed(byteCount: Int) throws {
    let cache = try PurgeableCache<Int, Data>()
    let bytes = Data((0..<byteCount).map { UInt8(truncatingIfNeeded: $0 &* 31) })
    cache[1] = bytes
    var (read, expected) = (try #require(cache[1]), bytes)
    let changes: [(inout Data) -> Void] = [
      { $0[3] = 9 }, { $0.append(Data(repeating: 7, count: 100_000)) }, { $0.removeFirst(50) },
    ]
    for change in changes {
      change(&read)
      change(&expected)
      #expect(read == expected)
    }
    #expect(cache[1] == bytes)
    #expect(unsafe Data(purgeableByteCount: 5) { _ in nil } == nil)
  }

  @Test("a slice of Data is stored as its own bytes")
  func slice() throws {
    let cache = try PurgeableCache<Int, Data>()
    cache[1] = Data([1, 2, 3, 4, 5])[1..<4]
    #expect(cache[1] == Data([2, 3, 4]))
  }

  private func check<Value: PurgeableValue & Equatable>(_ values: [Value]) throws {
    let cache = try PurgeableCache<Int, Value>()
    for (i, value) in values.enumerated() { cache[i] = value }
    for (i, value) in values.enumerated() { #expect(cache[i] == value) }
    #expect(cache.count == values.count)
    for (i, value) in values.enumerated() { #expect(cache.removeValue(forKey: i) == value) }
  }

  static let urls: [URL] = {
    let base = URL(string: "https://example.org/a/b?c=d#e")!
    let near = URL(string: "../x/y?z", relativeTo: base)!
    return [
      base, near, near.absoluteURL, URL(string: "x", relativeTo: near)!, URL(string: "mailto:a@example.org")!,
      URL(fileURLWithPath: "/tmp/with space/ü"), URL(fileURLWithPath: "relative", isDirectory: true),
      URL(string: "https://münchen.example/ß?q=%20")!, URL(string: "relative/only")!,
      // Without any text.
      URLComponents().url!, URLComponents().url(relativeTo: base)!, URL(string: "x", relativeTo: URLComponents().url!)!,
    ]
  }()

  @Test("dates, identifiers and addresses come back equal")
  func small() throws {
    try check([Date.distantPast, .distantFuture, Date(timeIntervalSinceReferenceDate: 0.1), .now])
    try check([UUID(), UUID(uuid: (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255))])
    try check(Self.urls)
    for url in Self.urls {
      let copy = url.withPurgeableBytes { URL(purgeableBytes: $0) }
      #expect(copy?.relativeString == url.relativeString && copy?.baseURL == url.baseURL)
      #expect(copy?.absoluteString == url.absoluteString)
    }
  }

  @Test("an error of the library says the same in Foundation's words")
  func localized() {
    let error: any Error = PurgeableError(.busy, in: "PurgeableCache 'a'.save", explanation: "it is at work")
    #expect(error.localizedDescription == "\(error)" && error.localizedDescription.contains("it is at work"))
  }

  @Test("bytes of the wrong size or content are no such value")
  func refused() {
    let bytes: [UInt8] = [1, 2, 3, 0xFF]
    bytes.withPurgeableBytes { span in
      #expect(Date(purgeableBytes: span) == nil)
      #expect(UUID(purgeableBytes: span) == nil)
      #expect(URL(purgeableBytes: span) == nil)
    }
  }

  @Test(
    "after the kernel has taken some of them each value is right or missing, byte for byte",
    .enabled(if: (try? KernelSupport.probe())?.behavior == .works, "the kernel does not discard on demand"))
  func discarded() throws {
    try checkDiscarded { UUID(uuid: ($0, 1, $0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255)) }
    try checkDiscarded { Date(timeIntervalSinceReferenceDate: Double($0) / 3) }
    try checkDiscarded { URL(string: "https://example.org/\($0)", relativeTo: URL(string: "https://example.org/")) }
    try checkDiscarded { Data(repeating: $0, count: 1 + Int($0) * 13) }
  }

  private func checkDiscarded<Value: PurgeableValue & Equatable>(_ make: (UInt8) -> Value?) throws {
    let cache = try PurgeableCache<Int, Value>()
    let count = TestRun.isFull ? 10_000 : 4000
    func value(_ key: Int) -> Value? { make(UInt8(truncatingIfNeeded: key &* 7)) }
    for key in 0..<count { cache[key] = value(key) }
    var hand = PageOutHand()
    // The last pages that another processor offered may be in a batch of its own, where none can be taken for a while.
    let isTaken = patiently(seconds: 60) {
      cache.offerIdle()
      return (try? cache.pageOut(cache.statistics.memory.offeredBytes / 2, hand: &hand)) ?? 0 > 0
    }
    #expect(isTaken)
    var (found, lost, wrong) = (0, 0, 0)
    for key in 0..<count {
      guard let there = cache[key] else {
        lost += 1
        continue
      }
      if there == value(key) { found += 1 } else { wrong += 1 }
    }
    #expect(wrong == 0 && found > 0 && lost > 0 && found + lost == count, "\(found) found, \(lost) lost, \(wrong) wrong")
    // Values that are stored again are found again.
    for key in 0..<count { cache[key] = value(key) }
    #expect((0..<count).allSatisfy { cache[$0] == value($0) })
  }

  @Test("a Codable value comes back equal")
  func codable() throws {
    let cache = try PurgeableCache<UUID, Page>()
    let key = UUID()
    let link = try #require(URL(string: "https://example.org/a?b=c"))
    let page = Page(title: "Ünïcode", links: [link], visited: Date(timeIntervalSince1970: 1e9))
    cache[key] = page
    #expect(cache[key] == page)
    #expect(cache[UUID()] == nil)
  }

  @Test("members of a Codable value are written in the order of their names, in every process")
  func sorted() {
    struct Query: PurgeableCodable { var zoo = 1, sql = "x", page = 2, alpha = true, mode: Int? = 3 }
    let text = Query().withPurgeableBytes { String(purgeableBytes: $0) }
    #expect(text == #"{"alpha":true,"mode":3,"page":2,"sql":"x","zoo":1}"#)
  }

  @Test("a value that does not encode is refused, and the old one stays")
  func notEncodable() throws {
    let cache = try PurgeableCache<Int, Page>()
    let bad = Page(title: "", links: [], visited: .now, weight: .infinity)
    #expect(cache.setValue(bad, forKey: 1) == .notEncodable)
    #expect(cache.isEmpty)
    let good = Page(title: "good", links: [], visited: Date(timeIntervalSince1970: 1e9))
    #expect(cache.setValue(good, forKey: 1) == .stored)
    #expect(cache.setValue(bad, forKey: 1) == .notEncodable)
    cache[1] = bad
    #expect(cache[1] == good && cache.count == 1)
    #expect(cache.statistics.refusalCount == 3)
  }
}
