// SPDX-License-Identifier: MIT
// Regions: owning, reading, writing, refilling, bad input.

import Testing

@testable import Purgeable

@Suite("PurgeableRegion")
struct PurgeableRegionTests {
  @Test("is born idle, with zeros", arguments: OfferingMode.allCases)
  func born(offering: OfferingMode) throws {
    let region = try PurgeableRegion(byteCount: 10_000, offering: offering)
    #expect(region.byteCount == 10_000)
    #expect(region.lockCount == 0)
    #expect(region.offering == offering)
    #expect(region.isDiscarded == false)
    #expect(region.array() == [UInt8](repeating: 0, count: 10_000))
    #expect(region.lockCount == 0)
  }

  @Test("holds what its first closure wrote, byte for byte", arguments: [1, 7, 4095, 4096, 4097, 300_001])
  func filled(count: Int) throws {
    let bytes = pattern(count)
    let region = try PurgeableRegion(byteCount: count) { span throws(PurgeableError) in
      #expect(span.byteCount == count)
      span.write(bytes)
    }
    #expect(region.lockCount == 0)
    #expect(region.array() == bytes)
  }

  @Test("an initialiser whose closure throws makes nothing")
  func initThrows() throws {
    let failure = PurgeableError(.busy, in: "test", explanation: "on purpose")
    #expect(throws: failure) {
      _ = try PurgeableRegion(byteCount: 10) { _ throws(PurgeableError) in throw failure }
    }
  }

  @Test("refuses lengths that cannot be", arguments: [0, -1, Int.min])
  func badLength(count: Int) {
    let error = #expect(throws: PurgeableError.self) { _ = try PurgeableRegion(byteCount: count) }
    #expect(error?.kind == .invalidArgument("byteCount"))
    #expect(error?.description.contains("\(count)") == true)
  }

  @Test("refuses lengths above the address space as out of memory")
  func hugeLength() {
    #expect(throws: PurgeableError.self) { _ = try PurgeableRegion(byteCount: Int.max) }
    let error = #expect(throws: PurgeableError.self) { _ = try PurgeableRegion(byteCount: Int.max - 100_000) }
    #expect(error?.kind == .outOfMemory)
  }

  @Test("locks for the length of a closure, nested as deep as wanted")
  func nesting() throws {
    let region = try PurgeableRegion(byteCount: 100)
    let count = region.withBytes { outer in
      region.withBytes { inner in
        #expect(inner.byteCount == outer.byteCount)
        return region.lockCount
      }
    }
    #expect(count == 2)
    #expect(region.lockCount == 0)
  }

  @Test("closures throw their own errors, and the lock is given back")
  func closureErrors() throws {
    struct Own: Error, Equatable { let number: Int }
    var region = try PurgeableRegion(byteCount: 100)
    #expect(throws: Own(number: 1)) { try region.withBytes { _ throws(Own) in throw Own(number: 1) } }
    do throws(Own) {
      try region.withMutableBytes { span throws(Own) in
        span.write([9])
        throw Own(number: 2)
      }
    } catch { #expect(error == Own(number: 2)) }
    #expect(region.lockCount == 0)
    #expect(region.array()?.first == 9)
  }

  @Test("closures may answer what cannot be copied")
  func noncopyableResult() throws {
    struct Token: ~Copyable { let number: Int }
    var region = try PurgeableRegion(byteCount: 100)
    guard let read = region.withBytes({ span in Token(number: span.byteCount) }),
      let written = region.withMutableBytes({ span in Token(number: span.byteCount + 1) })
    else {
      Issue.record("no answer")
      return
    }
    let numbers = [read.number, written.number]
    #expect(numbers == [100, 101])
  }

  @Test("changes in place, again and again, with offers in between")
  func rewriting() throws {
    var region = try PurgeableRegion(byteCount: 3 * pageSize, offering: .never)
    for seed in UInt8(1)...20 {
      let bytes = pattern(3 * pageSize, seed: seed)
      #expect(region.withMutableBytes { span in span.write(bytes) } != nil)
      #expect(region.array() == bytes)
    }
  }

  @Test("discarded is sticky until refilled, and refilled begins with zeros")
  func discardAndRefill() throws {
    var region = try PurgeableRegion(byteCount: 5000) { span throws(PurgeableError) in span.write(pattern(5000)) }
    try region.discard()
    try region.discard()
    #expect(region.isDiscarded == true)
    #expect(region.withBytes { _ in Issue.record("called on discarded content") } == nil)
    #expect(region.withMutableBytes { _ in Issue.record("called on discarded content") } == nil)
    #expect(region.offeredBytes == 0)
    try region.refill { span throws(PurgeableError) in
      #expect(span.bytes.array == [UInt8](repeating: 0, count: 5000))
      span.write([1, 2, 3])
    }
    #expect(region.isDiscarded == false)
    #expect(region.lockCount == 0)
    #expect(region.array() == [1, 2, 3] + [UInt8](repeating: 0, count: 4997))
  }

  @Test("a refill that throws leaves the region discarded, and no lock")
  func refillThrows() throws {
    var region = try PurgeableRegion(byteCount: 10) { span throws(PurgeableError) in span.write(pattern(10)) }
    let failure = PurgeableError(.tooLarge, in: "test", explanation: "on purpose")
    do {
      try region.refill { span throws(PurgeableError) in
        span.write([5])
        throw failure
      }
      Issue.record("did not throw")
    } catch { #expect(error == failure) }
    #expect(region.lockCount == 0)
    #expect(region.isDiscarded && region.state == .discarded)
    #expect(region.array() == nil)
    try region.refill { span throws(PurgeableError) in span.write([6]) }
    #expect(region.array() == [6] + [UInt8](repeating: 0, count: 9))
  }

  @Test("is not discarded and not offered while it is read")
  func busyWhileRead() throws {
    let region = try PurgeableRegion(byteCount: 10) { span throws(PurgeableError) in span.write(pattern(10)) }
    region.withBytes { span in
      #expect(#expect(throws: PurgeableError.self) { try region.discard() }?.kind == .busy)
      #expect(#expect(throws: PurgeableError.self) { try region.offer() }?.kind == .busy)
      #expect(span.array == pattern(10))
    }
    #expect(region.isDiscarded == false)
  }
}
