// SPDX-License-Identifier: MIT
// PurgeableData: appending, replacing, resizing, changing in place, beside readers.

import Testing

@testable import Purgeable

@Suite("PurgeableData, changing")
struct PurgeableDataChangeTests {
  @Test("grows by appending, byte for byte, many times over its first room")
  func appending() throws {
    let data = try PurgeableData()
    var expected: [UInt8] = []
    for step in 0..<300 {
      let bytes = pattern(step * 7 % 1000, seed: UInt8(truncatingIfNeeded: step))
      try data.append(contentsOf: bytes)
      expected += bytes
      #expect(data.count == expected.count)
    }
    #expect(data.array() == expected)
    #expect(data.accessCount == 1)
    #expect(data.capacity >= data.count)
    data.endContentAccess()
    #expect(data.array() == expected)
  }

  @Test("takes bytes from any collection")
  func collections() throws {
    let data = try PurgeableData((1...5).lazy.map { UInt8($0) })
    try data.append(contentsOf: [6, 7][...])
    try data.append(contentsOf: "ab".utf8)
    try data.append(contentsOf: EmptyCollection())
    #expect(data.array() == [1, 2, 3, 4, 5, 6, 7, 97, 98])
  }

  @Test("states its room: a page at least, then doubled, from 1 MiB on a quarter more, and less when much shrinks")
  func capacity() throws {
    #expect(try PurgeableData().capacity == pageSize)
    #expect(try PurgeableData(byteCount: pageSize + 1).capacity == 2 * pageSize)
    let roomy = try PurgeableData(capacity: 1 << 18)
    try roomy.append(contentsOf: [1])
    #expect(roomy.capacity == 1 << 18)
    try roomy.resize(to: (1 << 18) + 1)
    #expect(roomy.capacity == 1 << 19)
    try roomy.resize(to: 1 << 20)
    try roomy.append(contentsOf: [1])
    #expect(roomy.capacity == (1 << 20) + (1 << 18))
    try roomy.resize(to: 1 << 18)
    #expect(roomy.capacity == 1 << 18)
    try roomy.resize(to: 0)
    #expect(roomy.capacity == pageSize)
    #expect(roomy.count == 0)
  }

  @Test("resizing adds zeros, also where something was before")
  func resizing() throws {
    let data = try PurgeableData(pattern(100))
    try data.resize(to: 50)
    try data.resize(to: 100)
    #expect(data.array() == pattern(100)[..<50] + [UInt8](repeating: 0, count: 50))
    try data.resize(to: 10_000)
    #expect(data.array() == pattern(100)[..<50] + [UInt8](repeating: 0, count: 9950))
  }

  @Test("replaces all, by more or less")
  func replacingAll() throws {
    let data = try PurgeableData(pattern(100))
    for count in [10, 100, 0, 20_000, 19_000, 3] {
      let bytes = pattern(count, seed: UInt8(truncatingIfNeeded: count + 1))
      try data.replaceBytes(with: bytes)
      #expect(data.array() == bytes)
    }
  }

  @Test("replaces a part, within what there is")
  func replacingPart() throws {
    let data = try PurgeableData(pattern(100), name: "parts")
    func replace(_ bytes: [UInt8], at offset: Int) throws {
      try unsafe data.replaceBytes(at: offset, with: bytes.span.bytes)
    }
    try replace([7, 8, 9], at: 97)
    try replace([], at: 100)
    #expect(data.array() == pattern(100)[..<97] + [7, 8, 9])
    for (offset, count) in [(98, 3), (-1, 1), (101, 0), (Int.max, 1)] {
      let error = #expect(throws: PurgeableError.self) { try replace(pattern(count), at: offset) }
      #expect(error?.kind == .invalidArgument("offset"))
      #expect(error?.description.contains("parts") == true)
    }
    #expect(data.array() == pattern(100)[..<97] + [7, 8, 9])
    #expect(data.accessCount == 1)
  }

  /// Ranges and lengths of replacements that grow, shrink, insert, remove, and take another region either way.
  static let replacements: [(range: Range<Int>, count: Int)] = [
    (0..<0, 7), (0..<5, 0), (3..<9, 6), (10..<20, 3), (10..<20, 300), (50..<50, 5000), (0..<0, 20_000), (24_000..<25_000, 1),
    (5..<24_000, 40_000), (1..<39_000, 2), (0..<1000, 1),
  ]

  @Test("replaces a range by more or fewer bytes, beside a reader or not, as an array does", arguments: [false, true])
  func replacingRange(isRead: Bool) throws {
    let data = try PurgeableData(pattern(100))
    var expected = pattern(100)
    for (step, (range, count)) in Self.replacements.enumerated() {
      let bytes = pattern(count, seed: UInt8(step + 2))
      let before = expected
      expected.replaceSubrange(range, with: bytes)
      if isRead {
        try data.withBytes { lent in
          try data.replaceBytes(in: range, with: bytes)
          #expect(lent.array == before)
        }
      } else {
        try data.replaceBytes(in: range, with: bytes)
      }
      #expect(data.count == expected.count)
      #expect(data.array() == expected)
    }
    // To the very end, and behind it.
    try data.replaceBytes(in: 2..<expected.count, with: [8])
    try data.replaceBytes(in: 3..<3, with: [9])
    #expect(data.array() == expected[..<2] + [8, 9])
    // What is behind the end is zero, whatever has moved.
    try data.resize(to: 4000)
    #expect(data.array() == expected[..<2] + [8, 9] + [UInt8](repeating: 0, count: 3996))
    #expect(data.accessCount == 1)
  }

  @Test("replaces a range by bytes of its own")
  func replacingByItself() throws {
    let content = pattern(100)
    let data = try PurgeableData(content)
    try data.withBytes { lent in try data.replaceBytes(in: 10..<20, with: lent) }
    #expect(data.array() == [content[..<10], content[...], content[20...]].flatMap(\.self))
  }

  @Test("a range beyond either end is not replaced, and nothing changes", arguments: [false, true])
  func replacingBadRange(isRead: Bool) throws {
    let data = try PurgeableData(pattern(100), name: "parts")
    let refuse = {
      for range in [-1..<3, 99..<101, 101..<101, 0..<Int.max, Int.min..<0] {
        let error = #expect(throws: PurgeableError.self) { try data.replaceBytes(in: range, with: [1, 2, 3]) }
        #expect(error?.kind == .invalidArgument("range"))
        #expect(error?.description.contains("parts") == true)
      }
    }
    if isRead { data.withBytes { _ in refuse() } } else { refuse() }
    #expect(data.array() == pattern(100))
    #expect(data.accessCount == 1)
  }

  @Test("changes in place; what a throwing closure wrote stands")
  func inPlace() throws {
    let data = try PurgeableData(pattern(10))
    let length = try data.withMutableBytes { span throws(PurgeableError) in
      span.write([1, 2])
      return span.byteCount
    }
    #expect(length == 10)
    let failure = PurgeableError(.busy, in: "test", explanation: "on purpose")
    #expect(throws: failure) {
      try data.withMutableBytes { span throws(PurgeableError) in
        span.write([3])
        throw failure
      }
    }
    #expect(data.array() == [3, 2] + pattern(10)[2...])
    #expect(data.accessCount == 1)
  }

  @Test("a reader keeps the bytes it began with, whatever changes meanwhile")
  func snapshots() throws {
    let data = try PurgeableData(pattern(5000))
    data.withBytes { outer in
      #expect(throws: Never.self) {
        try data.append(contentsOf: [1, 2, 3])
        try data.withMutableBytes { span throws(PurgeableError) in span.write([200]) }
        try data.replaceBytes(with: [4, 5])
      }
      data.withBytes { inner in
        #expect(inner.array == [4, 5])
        #expect(throws: Never.self) { try data.append(inner) }
        #expect(inner.array == [4, 5])
      }
      #expect(outer.array == pattern(5000))
    }
    #expect(data.array() == [4, 5, 4, 5])
    #expect(data.accessCount == 1)
  }

  @Test("a closure's own change that throws beside a reader stands as well")
  func snapshotThrows() throws {
    let data = try PurgeableData(pattern(10))
    let failure = PurgeableError(.busy, in: "test", explanation: "on purpose")
    data.withBytes { _ in
      #expect(throws: failure) {
        try data.withMutableBytes { span throws(PurgeableError) in
          span.write([3])
          throw failure
        }
      }
    }
    #expect(data.array()?.first == 3)
  }

  @Test("what was changed under a lock is found lost afterwards, in every page")
  func freshWitnesses() throws {
    guard try KernelSupport.probe().behavior == .works else { try Test.cancel("memory cannot be offered here") }
    for page in 0..<4 {
      let data = try PurgeableData(byteCount: 4 * pageSize, offering: .immediate)
      data.endContentAccess()
      #expect(data.beginContentAccess())
      try data.withMutableBytes { span throws(PurgeableError) in
        span.write([1], at: page * pageSize + 100)
      }
      let range = try #require(data.withBytes { PageRange(of: $0) })
      data.endContentAccess()
      range.advise(adviceDontneed, page: page, pageCount: 1)
      #expect(data.isContentDiscarded)
    }
  }

  @Test("refuses lengths that cannot be")
  func badLengths() throws {
    #expect(#expect(throws: PurgeableError.self) { _ = try PurgeableData(byteCount: -1) }?.kind == .invalidArgument("byteCount"))
    #expect(#expect(throws: PurgeableError.self) { _ = try PurgeableData(capacity: -1) }?.kind == .invalidArgument("capacity"))
    #expect(#expect(throws: PurgeableError.self) { _ = try PurgeableData(byteCount: Int.max) }?.kind == .tooLarge)
    let data = try PurgeableData([1, 2, 3])
    #expect(#expect(throws: PurgeableError.self) { try data.resize(to: -1) }?.kind == .invalidArgument("byteCount"))
    #expect(#expect(throws: PurgeableError.self) { try data.resize(to: Int.max) }?.kind == .tooLarge)
    #expect(#expect(throws: PurgeableError.self) { try data.resize(to: Int.max - (1 << 20)) }?.kind == .outOfMemory)
    // A collection that has to be copied first.
    for count in [Int.max, .max - (1 << 20)] {
      let endless = repeatElement(UInt8(1), count: count)
      #expect(#expect(throws: PurgeableError.self) { try data.append(contentsOf: endless) }?.kind == .outOfMemory)
      #expect(#expect(throws: PurgeableError.self) { try data.replaceBytes(with: endless) }?.kind == .outOfMemory)
    }
    #expect(data.array() == [1, 2, 3])
    #expect(data.accessCount == 1)
    try data.append(contentsOf: [4])
    #expect(data.array() == [1, 2, 3, 4])
  }
}
