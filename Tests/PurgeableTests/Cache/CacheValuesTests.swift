// SPDX-License-Identifier: MIT
// Values of every kind, and bytes that are none.

import Testing

@testable import Purgeable

private struct Point: PurgeableValue, Hashable, BitwiseCopyable {
  var x: Double
  var y: Int16
}

/// Accepts only what begins with its mark.
private struct Marked: PurgeableValue, Hashable {
  var text: String
  init(text: String) { self.text = text }
  init?(purgeableBytes: RawSpan) {
    let bytes = purgeableBytes.array
    guard bytes.first == 0x4D, let text = String(validating: bytes.dropFirst(), as: UTF8.self) else { return nil }
    self.text = text
  }
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    // An empty text loses its mark: such a value cannot be made again.
    let bytes = text.isEmpty ? [] : [0x4D] + Array(text.utf8)
    return unsafe try body(bytes.span.bytes)
  }
}

@Suite("PurgeableCache, values")
struct CacheValuesTests {
  private func check<Value: PurgeableValue & Equatable>(_ values: [Value]) throws {
    let cache = try PurgeableCache<Int, Value>()
    for (i, value) in values.enumerated() { cache[i] = value }
    for (i, value) in values.enumerated() {
      #expect(cache[i] == value)
      #expect(cache.peek(i) == value)
    }
    cache.checkBooksSwept()
  }

  @Test("the types that are values by themselves")
  func types() throws {
    try check([Int.min, -1, 0, 1, .max])
    try check([Int8.min, 0, .max])
    try check([Int16.min, 0, .max])
    try check([Int32.min, 0, .max])
    try check([Int64.min, 0, .max])
    try check([Int128.min, 0, .max])
    try check([UInt.min, .max])
    try check([UInt8.min, .max])
    try check([UInt16.min, .max])
    try check([UInt32.min, .max])
    try check([UInt64.min, .max])
    try check([UInt128.min, .max])
    try check([Float.pi, 0, -0.5, .infinity, .leastNonzeroMagnitude])
    try check([Double.pi, 0, -0.5, .infinity, .leastNonzeroMagnitude])
    try check([true, false])
    try check(["", "a", "é", "cafe\u{301}", "日本語", "\u{0}", String(repeating: "long ", count: 30_000)])
    try check([[], [0], pattern(3000)])
    try check([Point(x: 1.5, y: -3), Point(x: 0, y: 0)])
    try check([Marked(text: "x"), Marked(text: "y")])
  }

  @Test("a string comes back scalar by scalar, not in another form")
  func scalars() throws {
    let cache = try PurgeableCache<Int, String>()
    for (i, text) in ["cafe\u{301}", "caf\u{E9}", "\u{212A}", "\u{FEFF}x"].enumerated() {
      cache[i] = text
      #expect(cache[i].map { Array($0.unicodeScalars) } == Array(text.unicodeScalars))
    }
  }

  @Test("bytes that are no such value miss as undecodable, and stay", arguments: [false, true])
  func undecodable(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Marked>(tracksKeys: tracksKeys)
    cache[1] = Marked(text: "")
    #expect(MissReason.of(cache.lookUp(1)) == .undecodable)
    #expect(cache[1] == nil)
    #expect(cache.peek(1) == nil)
    #expect(cache.count == 1)
    #expect(cache.withBytes(forKey: 1) { $0.byteCount } == 0)
    #expect(cache.set(Marked(text: "again"), forKey: 1) == .replaced)
    #expect(cache[1] == Marked(text: "again"))
    cache.checkBooksSwept()
  }

  @Test("initialisers refuse bytes of the wrong size or content")
  func initialisers() {
    let bytes: [UInt8] = [1, 2, 3, 0xFF]
    let span = unsafe bytes.span.bytes
    #expect(Int(purgeableBytes: span) == nil)
    #expect(UInt16(purgeableBytes: span) == nil)
    #expect(UInt32(purgeableBytes: span) == 0xFF03_0201)
    #expect(Bool(purgeableBytes: span) == nil)
    let seven: [UInt8] = [7]
    #expect(unsafe Bool(purgeableBytes: seven.span.bytes) == true)
    #expect(String(purgeableBytes: span) == nil)
    #expect([UInt8](purgeableBytes: span) == bytes)
    let none: [UInt8] = []
    #expect(unsafe Int(purgeableBytes: none.span.bytes) == nil)
    #expect(unsafe String(purgeableBytes: none.span.bytes) == "")
  }
}
