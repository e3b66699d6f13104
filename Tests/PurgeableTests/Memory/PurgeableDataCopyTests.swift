// SPDX-License-Identifier: MIT
// PurgeableData: equality, copies and slices, of content that is there and of content that is not.

import Testing

@testable import Purgeable

@Suite("PurgeableData, equality, copies and slices")
struct PurgeableDataCopyTests {
  /// An object with these bytes that nobody holds an access to.
  private func idle(
    _ bytes: [UInt8], name: String = "", offering: OfferingMode = .deferred, recreate: PurgeableData.Recreate? = nil
  ) throws -> PurgeableData {
    let data = try PurgeableData(bytes, name: name, offering: offering, recreate: recreate)
    data.endContentAccess()
    return data
  }

  private func discarded(_ bytes: [UInt8], recreate: PurgeableData.Recreate? = nil) throws -> PurgeableData {
    let data = try idle(bytes, recreate: recreate)
    data.discardContentIfPossible()
    #expect(data.isContentDiscarded)
    return data
  }

  // MARK: Equality

  @Test("objects are equal where their bytes are, whatever else differs", arguments: [0, 1, 4095, 4096, 4097, 100_000])
  func equal(count: Int) throws {
    let one = try idle(pattern(count), name: "one")
    let other = try PurgeableData(pattern(count), name: "other", offering: .immediate) { [] }
    #expect(one == other && other == one && one == one)
    try other.append(contentsOf: [1])
    #expect(one != other && other != one)
    try other.resize(to: count)
    #expect(one == other)
  }

  @Test("one byte that differs, at any place, makes objects unequal")
  func oneByte() throws {
    let bytes = pattern(3 * pageSize)
    let one = try idle(bytes)
    let other = try PurgeableData(bytes)
    for offset in [0, 1, pageSize - 1, pageSize, 2 * pageSize + 17, 3 * pageSize - 1] {
      try other.replaceBytes(at: offset, with: [UInt8(0)])  // a pattern has no zeros
      #expect(one != other && other != one)
      try other.replaceBytes(at: offset, with: [bytes[offset]])
      #expect(one == other)
    }
  }

  @Test("comparing begins an access to both and leaves none behind")
  func comparingLeavesNoAccess() throws {
    let one = try idle(pattern(100))
    let other = try idle(pattern(100))
    #expect(one == other)
    #expect(one.accessCount == 0 && other.accessCount == 0)
    #expect(one.unbalancedEndCount == 0 && other.unbalancedEndCount == 0)
    other.discardContentIfPossible()
    #expect(one != other)
    #expect(one.accessCount == 0 && other.accessCount == 0)
    one.discardContentIfPossible()
    #expect(one.isContentDiscarded)
  }

  @Test("discarded content is equal to none but its own object, also where both are discarded or empty")
  func discardedIsUnequal() throws {
    for bytes in [[], pattern(5000)] {
      let gone = try discarded(bytes)
      #expect(gone == gone)
      #expect(try gone != idle(bytes) && idle(bytes) != gone)
      #expect(try gone != discarded(bytes))
      try gone.refill(with: bytes)
      #expect(try gone == idle(bytes))
    }
  }

  @Test("comparing recreates discarded content, once")
  func comparingRecreates() throws {
    let recipe = Recipe(.success(pattern(5000)))
    let one = try discarded([1]) { try recipe.make() }
    #expect(try one == idle(pattern(5000)))
    #expect(try idle(pattern(5000)) == one)
    #expect(recipe.callCount == 1)
    one.discardContentIfPossible()
    recipe.next.withLock { $0 = .success(nil) }
    #expect(try one != idle(pattern(5000)))
  }

  @Test("what compares by ==, such as arrays and optionals of objects, compares content")
  func comparedByOthers() throws {
    let objects = try (0..<4).map { try idle(pattern(2000, seed: UInt8($0 + 1))) }
    let others = try (0..<4).map { try idle(pattern(2000, seed: UInt8($0 + 1))) }
    #expect(objects == others)
    #expect(objects.firstIndex(of: others[2]) == 2)
    others[3].discardContentIfPossible()
    #expect(objects != others && !objects.contains(others[3]))
  }

  // MARK: Copies

  @Test("a copy has the bytes and an access count of 1, whatever the count of the original", arguments: [0, 1, 4096, 100_000])
  func copies(count: Int) throws {
    for isIdle in [true, false] {
      let data = isIdle ? try idle(pattern(count)) : try PurgeableData(pattern(count))
      let copy = try #require(try data.copy())
      #expect(copy !== data && copy == data)
      #expect(copy.accessCount == 1 && data.accessCount == (isIdle ? 0 : 1))
      #expect(copy.count == count && copy.array() == pattern(count))
    }
  }

  @Test("a copy has the name, the offering and the closure")
  func copiesKeep() throws {
    let recipe = Recipe(.success(pattern(700)))
    let data = try idle(pattern(5000), name: "page 7", offering: .immediate) { try recipe.make() }
    let copy = try #require(try data.copy())
    #expect(copy.name == "page 7" && copy.offering == .immediate)
    copy.endContentAccess()
    copy.discardContentIfPossible()
    #expect(copy.array() == pattern(700))
    #expect(recipe.callCount == 1)
    #expect(data.array() == pattern(5000))
  }

  @Test("a copy and its original change and go apart")
  func copiesAreApart() throws {
    let data = try PurgeableData(pattern(5000))
    let copy = try #require(try data.copy())
    try copy.append(contentsOf: [1, 2])
    try data.withMutableBytes { span throws(PurgeableError) in span.write([0, 0]) }
    #expect(copy.array() == pattern(5000) + [1, 2])
    #expect(data.array() == [0, 0] + pattern(5000)[2...])
    data.endContentAccess()
    data.discardContentIfPossible()
    #expect(data.isContentDiscarded && !copy.isContentDiscarded)
    #expect(copy.array() == pattern(5000) + [1, 2])
  }

  @Test("a copy of discarded content is nil, or is recreated with it")
  func copiesOfDiscarded() throws {
    let gone = try discarded(pattern(5000))
    #expect(try gone.copy() == nil)
    #expect(gone.accessCount == 0 && gone.isContentDiscarded)
    let remade = try discarded([1]) { pattern(300) }
    #expect(try remade.copy()?.array() == pattern(300))
    #expect(!remade.isContentDiscarded && remade.accessCount == 0)
  }

  // MARK: Slices

  @Test("slices are the bytes of the range, at every edge of pages and content")
  func slices() throws {
    let bytes = pattern(2 * pageSize + 100)
    let data = try idle(bytes)
    let edges = [0, 1, pageSize - 1, pageSize, pageSize + 1, 2 * pageSize, bytes.count - 1, bytes.count]
    for start in edges {
      for end in edges where end >= start { #expect(try data.bytes(in: start..<end) == Array(bytes[start..<end])) }
    }
    #expect(data.accessCount == 0)
  }

  @Test("a slice beyond either end is an error that names the object, and nothing changes")
  func slicesBeyondTheEnd() throws {
    let data = try idle(pattern(100), name: "page 9")
    for range in [-1..<3, 0..<101, 101..<101, 100..<Int.max, Int.min..<Int.max] {
      let error = #expect(throws: PurgeableError.self) { try data.bytes(in: range) }
      #expect(error?.kind == .invalidArgument("range"))
      #expect(error?.description.contains("page 9") == true)
    }
    #expect(data.accessCount == 0)
    #expect(data.array() == pattern(100))
  }

  @Test("a slice of discarded content is nil, or of what was recreated")
  func slicesOfDiscarded() throws {
    let gone = try discarded(pattern(100))
    #expect(try gone.bytes(in: 0..<10) == nil)
    #expect(try gone.bytes(in: 0..<1000) == nil)
    #expect(gone.accessCount == 0)
    let remade = try discarded([1]) { pattern(300) }
    #expect(try remade.bytes(in: 200..<300) == Array(pattern(300)[200...]))
  }

  // MARK: Both

  @Test("copies, slices and comparisons within a closure that reads see what has been changed since")
  func withinReading() throws {
    let data = try PurgeableData(pattern(5000))
    try data.withBytes { lent in
      #expect(try data.copy()?.array() == pattern(5000))
      try data.replaceBytes(with: [4, 5, 6])
      #expect(try data.copy()?.array() == [4, 5, 6])
      #expect(try data.bytes(in: 1..<3) == [5, 6])
      #expect(try data == idle([4, 5, 6]))
      #expect(lent.array == pattern(5000))
    }
    #expect(data.accessCount == 1)
  }

  @Test("where the kernel took any one page, nothing is equal, copied or cut out")
  func onePageLost() throws {
    guard try KernelSupport.probe().behavior == .works else { try Test.cancel("memory cannot be offered here") }
    let bytes = pattern(4 * pageSize)
    let whole = try idle(bytes)
    for page in 0..<4 {
      let data = try PurgeableData(bytes, offering: .immediate)
      let range = try #require(data.withBytes { PageRange(of: $0) })
      data.endContentAccess()
      range.advise(adviceDontneed, page: page, pageCount: 1)
      #expect(data != whole && whole != data)
      #expect(try data.copy() == nil)
      #expect(try data.bytes(in: (page + 1) % 4 * pageSize..<(page + 1) % 4 * pageSize + 8) == nil)
      #expect(data.isContentDiscarded && data.accessCount == 0)
      #expect(whole.array() == bytes)
    }
  }
}
