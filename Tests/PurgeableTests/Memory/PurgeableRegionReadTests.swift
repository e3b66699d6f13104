// SPDX-License-Identifier: MIT
// Regions: reads without lock, discards by the kernel, statistics, threads.

import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("PurgeableRegion, without lock and under pressure")
struct PurgeableRegionReadTests {
  private func filled(_ count: Int, offering: OfferingMode = .deferred) throws -> PurgeableRegion {
    try PurgeableRegion(byteCount: count, offering: offering) { span throws(PurgeableError) in span.write(pattern(count)) }
  }

  @Test("reads any part without a lock", arguments: [(0, 10_000), (0, 1), (9_999, 1), (4_000, 200), (10_000, 0), (0, 0)])
  func parts(offset: Int, count: Int) throws {
    let region = try filled(10_000)
    var buffer = [UInt8](repeating: 0, count: count)
    var span = buffer.mutableSpan
    let outcome = try region.read(into: &span, at: offset)
    #expect(outcome == .intact)
    #expect(buffer == Array(pattern(10_000)[offset..<offset + count]))
    #expect(region.lockCount == 0)
  }

  @Test("refuses to read beyond its ends", arguments: [(0, 101), (100, 1), (101, 0), (-1, 1), (Int.max, 1), (Int.min, 0)])
  func outside(offset: Int, count: Int) throws {
    let region = try filled(100)
    var buffer = [UInt8](repeating: 77, count: count)
    let error = #expect(throws: PurgeableError.self) {
      var span = buffer.mutableSpan
      _ = try region.read(into: &span, at: offset)
    }
    #expect(error?.kind == .invalidArgument("offset"))
    #expect(buffer.allSatisfy { $0 == 77 })
  }

  @Test("a read without lock answers discarded, and busy while somebody writes")
  func outcomes() throws {
    var buffer = [UInt8](repeating: 0, count: 10)
    var span = buffer.mutableSpan
    let region = try filled(10)
    try region.discard()
    #expect(try region.read(into: &span) == .discarded)
    var nothing: [UInt8] = []
    var empty = nothing.mutableSpan
    #expect(try region.read(into: &empty) == .discarded)
    let writing = try PurgeableRegion(lockedWithByteCount: 10, offering: .deferred)
    #expect(try writing.read(into: &span) == .busy)
    writing.unlock()
    #expect(try writing.read(into: &span) == .intact)
  }

  @Test("the kernel takes what is on offer, and the region says so")
  func kernelDiscard() throws {
    try needRealDiscards()
    let region = try filled(64 * pageSize)
    let range = try #require(region.withBytes { PageRange(of: $0) })
    try region.offerBesideOthers()
    let isGone = try waitForDiscard(of: range, isGone: { region.isDiscarded }, offerAgain: { try region.offerBesideOthers() })
    #expect(isGone)
    #expect(region.array() == nil)
    var buffer = [UInt8](repeating: 0, count: 100)
    var span = buffer.mutableSpan
    #expect(try region.read(into: &span) == .discarded)
    #expect(PurgeableRegion.statistics.kernelDiscardCount > 0)
  }

  @Test("the kernel takes nothing while it is locked")
  func lockedStays() throws {
    try needRealDiscards()
    let region = try filled(64 * pageSize)
    try region.offerBesideOthers()
    let bytes = region.withBytes { span in
      for _ in 0..<20 { PageRange(of: span).advise(advicePageout) }
      return span.array
    }
    #expect(bytes == pattern(64 * pageSize))
  }

  @Test("one page lost is all lost", arguments: [0, 7, 15])
  func onePage(page: Int) throws {
    let region = try filled(16 * pageSize)
    let range = try #require(region.withBytes { PageRange(of: $0) })
    do { try region.offerBesideOthers() } catch { try Test.cancel("memory cannot be offered here: \(error)") }
    guard range.advise(adviceDontneed, page: page, pageCount: 1) else { try Test.cancel("memory is mlocked here") }
    #expect(region.isDiscarded == true)
    #expect(region.array() == nil)
  }

  @Test("a page of zeros cannot be lost")
  func zeros() throws {
    let region = try PurgeableRegion(byteCount: 8 * pageSize)
    let range = try #require(region.withBytes { PageRange(of: $0) })
    try? region.offerBesideOthers()
    range.advise(adviceDontneed)
    #expect(region.isDiscarded == false)
    #expect(region.array() == [UInt8](repeating: 0, count: 8 * pageSize))
  }

  @Test("counts what is in memory and what is on offer, in whole pages")
  func statistics() throws {
    let region = try filled(10 * pageSize - 100)
    #expect(try region.residentBytes() == 10 * pageSize)
    let statistics = PurgeableRegion.statistics
    #expect(statistics.regionCount >= 1)
    #expect(statistics.memory.heldBytes >= 10 * pageSize)
    guard try KernelSupport.probe().behavior == .works else { try Test.cancel("memory cannot be offered here") }
    try region.offerBesideOthers()
    #expect(region.offeredBytes == 10 * pageSize)
    region.withBytes { _ in #expect(region.offeredBytes == 0) }
  }

  @Test("an idle region waits for the queue to be offered, once")
  func pending() throws {
    guard try KernelSupport.probe().behavior == .works else { try Test.cancel("memory cannot be offered here") }
    let region = try filled(4 * pageSize)
    let never = try filled(4 * pageSize, offering: .never)
    let immediate = try filled(4 * pageSize, offering: .immediate)
    #expect(immediate.offeredBytes == 4 * pageSize)
    // Other tests offer the queue as well, and may be in the middle of it: only this region's own state counts.
    let isOffered = patiently {
      #expect(throws: Never.self) { try PurgeableRegion.offerPending() }
      return region.offeredBytes == 4 * pageSize
    }
    #expect(isOffered)
    #expect(never.offeredBytes == 0)
    #expect(region.array() == pattern(4 * pageSize))
  }

  @Test("threads that read beside a discard see all or nothing")
  func threads() throws {
    let expected = pattern(20_000)
    for round in 0..<50 {
      let region = try filled(20_000, offering: round.isMultiple(of: 2) ? .immediate : .deferred)
      let torn = Atomic<Int>(0)
      onThreads(4) { index in
        if index == 0 {
          for _ in 0..<1000 { if (try? region.discard()) != nil { return } }
          return
        }
        for turn in 0..<40 {
          if turn.isMultiple(of: 2) {
            if let seen = region.array(), seen != expected { torn.add(1, ordering: .relaxed) }
          } else {
            var buffer = [UInt8](repeating: 0, count: 20_000)
            var span = buffer.mutableSpan
            let outcome = try? region.read(into: &span)
            if outcome == nil || (outcome == .intact && buffer != expected) { torn.add(1, ordering: .relaxed) }
          }
        }
      }
      #expect(torn.load(ordering: .relaxed) == 0)
      #expect(region.lockCount == 0)
    }
  }
}
