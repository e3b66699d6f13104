// SPDX-License-Identifier: MIT
// Values of every kind, and bytes that make no value.

import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

private struct Point: PurgeableValue, Hashable, BitwiseCopyable {
  var x: Double
  var y: Int16
}

/// Has padding: a byte, then a number of 4 bytes.
private struct Pixel: PurgeableElement, Hashable {
  var channel: UInt8
  var value: Float
}

/// Has padding behind its last member.
private struct Tagged: PurgeableElement, Hashable {
  var weight: Double
  var tag: UInt8
}

/// Has no bytes of its own, and still a place in an array.
private struct Nothing: PurgeableElement, Hashable {}

/// Accepts only bytes that begin with its mark.
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

/// Counts up; its last byte says whether its bytes make a value.
private struct Large: PurgeableValue, Hashable {
  var count: Int
  var isWhole: Bool
  init(count: Int, isWhole: Bool) { (self.count, self.isWhole) = (count, isWhole) }
  init?(purgeableBytes: RawSpan) {
    let bytes = purgeableBytes.array
    guard bytes.last == 1 else { return nil }
    (count, isWhole) = (bytes.count, true)
  }
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
    let bytes = pattern(count - 1) + [isWhole ? 1 : 0]
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
      #expect(cache.peekValue(forKey: i) == value)
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
    try check([[], [Float.pi, -0.5, .infinity], (0..<5000).map(Float.init)])
    try check([[], [true, false, true]])
    try check([[Int128.min], [1, 2, 3]])
    try check([Pixel(channel: 1, value: -0.5), Pixel(channel: 255, value: .pi)])
    for count in [0, 1, 2, 3, 500] {
      try check([(0..<count).map { Tagged(weight: Double($0) / 3, tag: UInt8($0 % 256)) }])
      try check([(0..<count).map { Tagged(weight: Double($0), tag: 7) }.dropFirst(count / 3)])
      try check([(0..<count).map { _ in Nothing() }])
    }
    try check([[], [Pixel(channel: 3, value: 1)], (0..<900).map { Pixel(channel: UInt8($0 % 256), value: Float($0)) }])
    try check([[], pattern(3000)[...], pattern(3000)[7..<2001]])
    try check([[1.5, 2.5, 3.5][1...], [Double.pi][...]])
    try check([Marked(text: "x"), Marked(text: "y")])
  }

  @Test("a type of plain members with an encoding of its own is stored in that encoding")
  func ownEncoding() throws {
    let cache = try PurgeableCache<Int, Large>()
    cache[1] = Large(count: 100, isWhole: true)
    #expect(cache.withBytes(forKey: 1) { $0.byteCount } == 100 && cache.totalCost == 100)
    #expect(cache[1] == Large(count: 100, isWhole: true))
  }

  @Test("a string comes back scalar by scalar, not in another form")
  func scalars() throws {
    let cache = try PurgeableCache<Int, String>()
    for (i, text) in ["cafe\u{301}", "caf\u{E9}", "\u{212A}", "\u{FEFF}x"].enumerated() {
      cache[i] = text
      #expect(cache[i].map { Array($0.unicodeScalars) } == Array(text.unicodeScalars))
    }
  }

  @Test("after the kernel has taken pages each array is right or missing, byte for byte", arguments: [false, true])
  func discardedArrays(tracksKeys: Bool) throws {
    try needRealDiscards()
    let count = TestRun.isFull ? 4000 : 1500
    let arrays = try PurgeableCache<Int, [Pixel]>(tracksKeys: tracksKeys)
    let slices = try PurgeableCache<Int, ArraySlice<UInt8>>(tracksKeys: tracksKeys)
    func pixels(_ key: Int) -> [Pixel] { (0..<key % 50).map { Pixel(channel: UInt8(key % 256), value: Float($0)) } }
    for key in 0..<count {
      arrays[key] = pixels(key)
      slices[key] = pattern(key % 900 + 10)[5...]
    }
    arrays.offerIdle()
    slices.offerIdle()
    arrays.discardEveryThirdPage()
    slices.discardEveryThirdPage()
    var (found, lost) = (0, 0)
    for key in 0..<count {
      let (array, slice) = (arrays[key], slices[key])
      #expect(array == nil || array == pixels(key))
      #expect(slice == nil || slice == pattern(key % 900 + 10)[5...])
      if array != nil, slice != nil { found += 1 }
      if array == nil, slice == nil { lost += 1 }
    }
    #expect(found > 0 && lost > 0, "\(found) found, \(lost) lost")
    arrays.checkBooks()
    slices.checkBooks()
  }

  @Test("bytes that are no such value miss as undecodable, and stay", arguments: [false, true])
  func undecodable(tracksKeys: Bool) throws {
    let cache = try PurgeableCache<Int, Marked>(tracksKeys: tracksKeys)
    cache[1] = Marked(text: "")
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .undecodable)
    #expect(cache[1] == nil)
    #expect(cache.peekValue(forKey: 1) == nil)
    #expect(cache.count == 1)
    #expect(cache.withBytes(forKey: 1) { $0.byteCount } == 0)
    #expect(cache.setValue(Marked(text: "again"), forKey: 1) == .replaced)
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
    // As bytes of a file may be; each is a valid Bool afterwards.
    let bools: [UInt8] = [0, 7, 1, 2]
    for array in [
      unsafe [Bool](purgeableBytes: bools.span.bytes),
      unsafe [Bool](purgeableByteCount: 9) { buffer in
        unsafe buffer.copyBytes(from: bools)
        return 4
      },
    ] { #expect(array?.map { unsafe unsafeBitCast($0, to: UInt8.self) } == [0, 1, 1, 1]) }
    let halves: [Float16] = [.pi, -0.0, .infinity]
    #expect(halves.withPurgeableBytes { [Float16](purgeableBytes: $0) } == halves)
    #expect(String(purgeableBytes: span) == nil)
    #expect([UInt8](purgeableBytes: span) == bytes)
    #expect([UInt16](purgeableBytes: span) == [0x0201, 0xFF03])
    #expect([Int64](purgeableBytes: span) == nil && ArraySlice<Pixel>(purgeableBytes: span) == nil)
    #expect(ArraySlice<UInt8>(purgeableBytes: span) == bytes[...])
    let none: [UInt8] = []
    #expect(unsafe Int(purgeableBytes: none.span.bytes) == nil)
    #expect(unsafe String(purgeableBytes: none.span.bytes) == "")
  }

  /// What `init(purgeableByteCount:read:)` makes of a buffer of `byteCount` bytes to which `bytes` are copied.
  private func made<Value: PurgeableValue>(_: Value.Type, _ byteCount: Int, _ bytes: [UInt8]?) -> Value? {
    var readCount = 0
    let value = unsafe Value(purgeableByteCount: byteCount) { buffer in
      readCount += 1
      #expect(buffer.count == byteCount)
      guard let bytes else { return nil }
      unsafe buffer.copyBytes(from: bytes)
      return bytes.count
    }
    #expect(readCount == 1)
    return value
  }

  @Test("a value is made where its bytes are read to, also of fewer bytes than there is room for, or of none")
  func inPlace() {
    #expect(made([UInt8].self, 5, [1, 2, 3]) == [1, 2, 3])
    #expect(made([UInt16].self, 5, [1, 0, 2, 0]) == [1, 2] && made([UInt16].self, 5, [1, 0, 2]) == nil)
    #expect(made(ArraySlice<UInt8>.self, 3, [1, 2, 3]) == [1, 2, 3] && made(ArraySlice<Int>.self, 9, [UInt8](0..<9)) == nil)
    #expect(made([Nothing].self, 3, [0, 0, 0])?.count == 3)
    #expect(made(String.self, 40, Array("日本語".utf8)) == "日本語" && made(String.self, 40, []) == "")
    #expect(made(String.self, 40, [0x61, 0xFF]) == nil && made(String.self, 3, [0xE6, 0x97]) == nil)
    #expect(made(Marked.self, 9, Array("Mx".utf8)) == Marked(text: "x") && made(Marked.self, 9, [0]) == nil)
    #expect(made(Int32.self, 6, [1, 0, 0, 0]) == 1 && made(Int32.self, 6, [1]) == nil)
    #expect(made([UInt8].self, 5, nil) == nil && made(String.self, 5, nil) == nil && made([Int].self, 8, nil) == nil)
    #expect(made(ArraySlice<UInt8>.self, 5, nil) == nil && made(Marked.self, 5, nil) == nil)
  }

  @Test("large bytes that are no such value are counted as undecodable once, and the value that follows is found")
  func undecodableLarge() throws {
    let cache = try PurgeableCache<Int, Large>()
    cache[1] = Large(count: 5000, isWhole: false)
    #expect(MissReason.of(cache.lookUpValue(forKey: 1)) == .undecodable)
    #expect(cache.peekValue(forKey: 1) == nil)
    #expect(cache.statistics.missesByReason[.undecodable] == 1 && cache.count == 1)
    cache[1] = Large(count: 5000, isWhole: true)
    #expect(cache[1] == Large(count: 5000, isWhole: true))
  }

  @Test("a value that changes its size while it is read is one of the values that were stored")
  func changingSizes() throws {
    let cache = try PurgeableCache<Int, String>()
    let texts = [10, 900, 1100, 3000, 40_000, 200_000].map { String(repeating: "é\($0 % 7)", count: $0 / 3) }
    cache[1] = texts[0]
    let rounds = (TestRun.isFull ? 20_000 : 6000) / slowness
    let strangers = Atomic<Int>(0)
    onThreads(2) { thread in
      for i in 0..<rounds {
        if thread == 0 {
          cache[1] = texts[i % texts.count]
        } else if let text = cache[1], !texts.contains(text) {
          strangers.add(1, ordering: .relaxed)
        }
      }
    }
    #expect(strangers.load(ordering: .relaxed) == 0)
    #expect(cache[1] == texts[(rounds - 1) % texts.count])
  }
}
