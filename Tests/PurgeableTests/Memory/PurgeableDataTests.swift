// SPDX-License-Identifier: MIT
// PurgeableData: NSDiscardableContent's access counter, to the letter.

import Testing

@testable import Purgeable

@Suite("PurgeableData, the access counter")
struct PurgeableDataTests {
  @Test("is born with 1, holding the bytes", arguments: [0, 1, 4096, 100_000])
  func born(count: Int) throws {
    let data = try PurgeableData(pattern(count), name: "born")
    #expect(data.accessCount == 1)
    #expect(data.count == count)
    #expect(!data.isContentDiscarded)
    #expect(data.array() == pattern(count))
    #expect(data.accessCount == 1)
  }

  @Test("a begin counts up, an end counts down")
  func counting() throws {
    let data = try PurgeableData([1, 2, 3])
    #expect(data.beginContentAccess())
    #expect(data.beginContentAccess())
    #expect(data.accessCount == 3)
    data.endContentAccess()
    #expect(data.accessCount == 2)
    data.endContentAccess()
    data.endContentAccess()
    #expect(data.accessCount == 0)
    #expect(data.beginContentAccess())
    #expect(data.accessCount == 1)
    #expect(data.array() == [1, 2, 3])
  }

  @Test("discardContentIfPossible does nothing above 0")
  func discardAboveZero() throws {
    let data = try PurgeableData([1, 2, 3])
    data.discardContentIfPossible()
    #expect(!data.isContentDiscarded)
    data.withBytes { span in
      data.endContentAccess()
      data.discardContentIfPossible()  // the closure's own access
      #expect(span.array == [1, 2, 3])
    }
    #expect(!data.isContentDiscarded)
    #expect(data.accessCount == 0)
    #expect(data.array() == [1, 2, 3])
  }

  @Test("discardContentIfPossible at 0 discards, once and for all", arguments: [0, 3, 10_000])
  func discardAtZero(count: Int) throws {
    let data = try PurgeableData(pattern(count))
    data.endContentAccess()
    #expect(!data.isContentDiscarded)
    for _ in 0..<3 {
      data.discardContentIfPossible()
      #expect(data.isContentDiscarded)
    }
    #expect(data.accessCount == 0)
  }

  @Test("a begin on discarded content answers false and leaves the counter")
  func beginDiscarded() throws {
    let data = try PurgeableData([1, 2, 3])
    data.endContentAccess()
    data.discardContentIfPossible()
    for _ in 0..<3 {
      #expect(!data.beginContentAccess())
      #expect(data.accessCount == 0)
      #expect(data.withBytes { _ in Issue.record("called on discarded content") } == nil)
    }
    #expect(data.isContentDiscarded)
  }

  @Test("an end at 0 stays at 0, is counted, and harms nothing")
  func unbalanced() throws {
    let before = PurgeableData.unbalancedEndCount
    let data = try PurgeableData([1, 2, 3], name: "ended too often, on purpose")
    data.endContentAccess()
    #expect(data.unbalancedEndCount == 0)
    data.endContentAccess()
    data.endContentAccess()
    #expect(data.accessCount == 0)
    #expect(data.unbalancedEndCount == 2)
    #expect(PurgeableData.unbalancedEndCount >= before + 2)
    #expect(data.beginContentAccess())
    #expect(data.accessCount == 1)
    #expect(data.array() == [1, 2, 3])
  }

  @Test("an end too many does not end the access of a closure at work")
  func unbalancedWithinClosure() throws {
    let data = try PurgeableData([1, 2, 3], name: "ended too often within, on purpose")
    data.endContentAccess()
    data.withBytes { span in
      data.endContentAccess()
      data.discardContentIfPossible()
      #expect(data.accessCount == 1)
      #expect(span.array == [1, 2, 3])
    }
    #expect(data.unbalancedEndCount == 1)
    #expect(data.accessCount == 0)
    #expect(!data.isContentDiscarded)
  }

  @Test("discarded is sticky until refilled; refilled is as at birth")
  func refill() throws {
    let data = try PurgeableData([1, 2, 3], name: "refilled")
    let error = #expect(throws: PurgeableError.self) { try data.refill(with: [9]) }
    #expect(error?.kind == .busy)
    #expect(error?.description.contains("refilled") == true)
    data.endContentAccess()
    data.discardContentIfPossible()
    try data.refill(with: pattern(10_000))
    #expect(!data.isContentDiscarded)
    #expect(data.accessCount == 1)
    #expect(data.count == 10_000)
    data.endContentAccess()
    #expect(data.array() == pattern(10_000))
    try data.refill(with: [])
    #expect(data.count == 0)
  }

  @Test("the last end puts the bytes on offer, and the kernel takes them")
  func kernelDiscard() throws {
    try needRealDiscards()
    let data = try PurgeableData(pattern(64 * pageSize), offering: .immediate)
    let range = try #require(data.withBytes { PageRange(of: $0) })
    range.advise(advicePageout)
    #expect(data.array() == pattern(64 * pageSize))
    data.endContentAccess()
    let isGone = try waitForDiscard(of: range) {
      data.isContentDiscarded
    } offerAgain: {
      if data.beginContentAccess() { data.endContentAccess() }
    }
    #expect(isGone)
    #expect(!data.beginContentAccess())
    #expect(data.accessCount == 0)
  }

  @Test("a deferred object is offered with the queue, one in use is not")
  func deferred() throws {
    try needRealDiscards()
    let idle = try PurgeableData(pattern(64 * pageSize))
    let used = try PurgeableData(pattern(64 * pageSize))
    let ranges = try [#require(idle.withBytes { PageRange(of: $0) }), #require(used.withBytes { PageRange(of: $0) })]
    idle.endContentAccess()
    try PurgeableRegion.offerPending()
    let isGone = try waitForDiscard(of: ranges[0]) {
      ranges[1].advise(advicePageout)
      return idle.isContentDiscarded
    } offerAgain: {
      if idle.beginContentAccess() { idle.endContentAccess() }
      try PurgeableRegion.offerPending()
    }
    #expect(isGone)
    #expect(!used.isContentDiscarded)
    #expect(used.array() == pattern(64 * pageSize))
  }

  @Test("one page lost is all lost")
  func onePage() throws {
    let data = try PurgeableData(pattern(16 * pageSize), offering: .immediate)
    let range = try #require(data.withBytes { PageRange(of: $0) })
    data.endContentAccess()
    guard try KernelSupport.probe().behavior == .works, range.advise(adviceDontneed, page: 9, pageCount: 1) else {
      try Test.cancel("memory cannot be offered here")
    }
    #expect(!data.beginContentAccess())
    #expect(data.isContentDiscarded)
  }

  @Test("describes itself by name, counter and state")
  func description() throws {
    let data = try PurgeableData([1], name: "tile 7")
    #expect(data.description == "PurgeableData 'tile 7': access count 1")
    data.endContentAccess()
    data.discardContentIfPossible()
    #expect(data.description == "PurgeableData 'tile 7': access count 0, discarded")
    #expect(try PurgeableData().description.hasPrefix("PurgeableData at 0x"))
  }
}
