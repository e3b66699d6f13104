// SPDX-License-Identifier: MIT
// Heaps: offers, losses, streams, moving, trimming, threads.

import Synchronization
import Testing

@testable import Purgeable

@Suite("PurgeableHeap, upkeep")
struct PurgeableHeapUpkeepTests {
  @Test("the kernel takes pages: the elements on them are gone, the others stay, the sweep finds it")
  func losses() throws {
    try needRealDiscards()
    let heap = try PurgeableHeap(.init(keepsTags: true))
    let elements = try (0..<1000).map { try heap.store(pattern(900, seed: UInt8(truncatingIfNeeded: $0)), tag: UInt64($0)) }
    try heap.seal(.first)
    let range = try #require(try heap.withBytes(of: elements[500]) { span throws(PurgeableError) in PageRange(of: span) })
    #expect(heap.hasPending == true)
    try heap.offerIdle()
    try heap.offerIdle()
    #expect(try heap.statistics().memory.offeredBytes > 0)
    let isGone = try waitForDiscard(
      of: range, isGone: { try heap.isDiscarded(elements[500]) }, offerAgain: { try heap.offerIdle() })
    #expect(isGone)
    _ = try heap.sweep()
    var lost = 0
    for (index, element) in elements.enumerated() {
      if let bytes = try heap.bytes(of: element) {
        #expect(bytes == pattern(900, seed: UInt8(truncatingIfNeeded: index)))
      } else {
        lost += 1
        #expect(try heap.isDiscarded(element))
        #expect(try heap.byteCount(of: element) == nil)
        #expect(try heap.withBytes(of: element) { _ throws(PurgeableError) in } == nil)
        var buffer = [UInt8](repeating: 0, count: 900)
        var span = buffer.mutableSpan
        #expect(try heap.read(element, into: &span).outcome == .discarded)
      }
      #expect(try heap.tag(of: element) == UInt64(index))
    }
    #expect(lost >= 1 && lost < 1000)
    #expect(try heap.statistics().memory.discardedBytes > 0)
    #expect(try heap.statistics().elementCount == 1000)
    for element in elements { try heap.free(element) }
    #expect(try heap.statistics().elementCount == 0)
  }

  @Test("streams keep their elements apart, in order of birth")
  func streams() throws {
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize))
    let stream = try heap.makeStream()
    #expect(stream != .first)
    #expect(try heap.slabs(of: stream).isEmpty)
    var mine: [ElementReference] = []
    for index in 0..<200 {
      mine.append(try heap.store(pattern(500), in: stream))
      _ = try heap.store(pattern(300, seed: UInt8(truncatingIfNeeded: index)))
    }
    let slabs = try heap.slabs(of: stream)
    #expect(slabs.count > 1)
    #expect(try slabs.flatMap { try heap.elements(of: $0) } == mine)
    #expect(try heap.slab(of: mine[0]) == slabs[0])
    #expect(Set(slabs).isDisjoint(with: try heap.slabs(of: .first)))
    #expect(throws: PurgeableError.self) { try heap.slabs(of: HeapStream(number: 500)) }
    #expect(throws: PurgeableError.self) { try heap.seal(HeapStream(number: 500)) }
  }

  @Test("what is stored in a withheld stream is not offered, until it is let go")
  func withholding() throws {
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize))
    let stream = try heap.makeStream()
    try heap.withhold(stream)
    for _ in 0..<100 { _ = try heap.store(pattern(400), in: stream) }
    try heap.seal(stream)
    #expect(try heap.offerIdle() == 0)
    #expect(try heap.statistics().memory.pendingBytes == 0)
    try heap.withhold(stream, false)
    #expect(try heap.offerIdle() > 100 * 400)
    #expect(throws: PurgeableError.self) { try heap.withhold(HeapStream(number: 500)) }
  }

  @Test("evacuating moves the living, whose owner takes the new references, and gives the slab back")
  func evacuating() throws {
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize, keepsTags: true))
    let old = try heap.makeStream()
    var table = try (0..<20).map { try heap.store(pattern(400, seed: UInt8($0 + 1)), in: old, tag: UInt64($0)) }
    for index in stride(from: 0, to: 20, by: 2) { try heap.free(table[index]) }
    let slab = try #require(try heap.slabs(of: old).first)
    let staying = try heap.evacuate(slab) { from, to, tag, bytes in
      #expect(table[Int(tag)] == from)
      #expect(bytes.array == pattern(400, seed: UInt8(tag + 1)))
      table[Int(tag)] = to
      return true
    }
    #expect(staying == 0)
    for index in stride(from: 1, to: 20, by: 2) {
      #expect(try heap.bytes(of: table[index]) == pattern(400, seed: UInt8(index + 1)))
    }
    #expect(throws: PurgeableError.self) { try heap.elements(of: slab) }
    #expect(throws: PurgeableError.self) { try heap.evacuate(slab) { _, _, _, _ in true } }
    #expect(try heap.statistics().movedElementCount == 10)
  }

  @Test("an owner that refuses keeps its elements where they are")
  func refusing() throws {
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize))
    let element = try heap.store(pattern(400))
    let slab = try heap.slab(of: element)
    #expect(try heap.evacuate(slab) { _, _, _, _ in false } == 1)
    #expect(try heap.bytes(of: element) == pattern(400))
    try heap.free(element)
    #expect(try heap.statistics().elementCount == 0)
  }

  @Test("a heap with an owner compacts itself and loses nothing")
  func trimming() throws {
    final class Owner: Sendable {
      let table = Mutex<[UInt64: ElementReference]>([:])
    }
    let owner = Owner()
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize, keepsTags: true)) { from, to, tag, _ in
      owner.table.withLock { table in
        guard table[tag] == from else { return false }
        table[tag] = to
        return true
      }
    }
    for tag in UInt64(0)..<1000 {
      let element = try heap.store(pattern(400, seed: UInt8(truncatingIfNeeded: tag)), tag: tag)
      owner.table.withLock { $0[tag] = element }
    }
    let before = heap.heldBytes
    for tag in UInt64(0)..<1000 where tag % 4 != 0 {
      if let element = owner.table.withLock({ $0.removeValue(forKey: tag) }) { try heap.free(element) }
    }
    #expect(try heap.trim() > 0)
    #expect(heap.heldBytes < before)
    for (tag, element) in owner.table.withLock({ $0 }) {
      #expect(try heap.bytes(of: element) == pattern(400, seed: UInt8(truncatingIfNeeded: tag)))
    }
    #expect(try heap.statistics().elementCount == 250)
  }

  @Test("threads that store, read and free beside offers see only their own bytes")
  func threads() throws {
    let heap = try PurgeableHeap(.init(slabByteCount: 4 * pageSize, offering: .immediate))
    let wrong = Atomic<Int>(0)
    onThreads(4) { index in
      var mine: [(element: ElementReference, bytes: [UInt8])] = []
      for turn in 0..<1500 {
        do {
          let bytes = pattern((turn * 37 + index) % 700 + 1, seed: UInt8(truncatingIfNeeded: turn + index))
          mine.append((try heap.store(bytes), bytes))
          let known = mine[turn * 7 % mine.count]
          if let seen = try heap.bytes(of: known.element), seen != known.bytes { wrong.add(1, ordering: .relaxed) }
          if turn % 3 == 0 { try heap.free(mine.remove(at: turn * 5 % mine.count).element) }
          if turn % 100 == 0 { try heap.offerIdle() }
        } catch {
          wrong.add(1, ordering: .relaxed)
        }
      }
    }
    #expect(wrong.load(ordering: .relaxed) == 0)
    #expect(try heap.statistics().elementCount == 4 * 1000)
  }
}
