// SPDX-License-Identifier: MIT
// Heaps: storing, reading, freeing, upkeep, streams, bad input.

import Synchronization
import Testing

@testable import Purgeable

@Suite("PurgeableHeap")
struct PurgeableHeapTests {
  @Test("gives back what was stored, byte for byte", arguments: [1, 8, 1000, 1016, 1017, 5000, 70_000, 1_000_000])
  func storing(count: Int) throws {
    let heap = try PurgeableHeap()
    let element = try heap.store(pattern(count))
    #expect(try heap.byteCount(of: element) == count)
    #expect(try heap.bytes(of: element) == pattern(count))
    #expect(try heap.withBytes(of: element) { span throws(PurgeableError) in span.array } == pattern(count))
    var buffer = [UInt8](repeating: 0, count: count + 3)
    var span = buffer.mutableSpan
    let answer = try heap.read(element, into: &span)
    #expect(answer.outcome == .intact)
    #expect(answer.byteCount == count)
    #expect(buffer == pattern(count) + [0, 0, 0])
    #expect(try !heap.isDiscarded(element))
  }

  @Test("many elements share pages, and each keeps its own bytes")
  func many() throws {
    let heap = try PurgeableHeap()
    let elements = try (0..<2000).map { try heap.store(pattern($0 % 300 + 1, seed: UInt8(truncatingIfNeeded: $0))) }
    #expect(Set(elements).count == 2000)
    for (index, element) in elements.enumerated() {
      #expect(try heap.bytes(of: element) == pattern(index % 300 + 1, seed: UInt8(truncatingIfNeeded: index)))
    }
    let statistics = try heap.statistics()
    #expect(statistics.elementCount == 2000)
    #expect(statistics.memory.payloadBytes == (0..<2000).reduce(0) { $0 + $1 % 300 + 1 })
    #expect(statistics.memory.heldBytes < 2 * statistics.memory.payloadBytes)
    #expect(heap.heldBytes >= statistics.memory.payloadBytes)
    #expect(heap.ordinaryBytes > 0)
  }

  @Test("a closure may fill an element; when it throws there is none")
  func filling() throws {
    let heap = try PurgeableHeap()
    let element = try heap.store(byteCount: 100) { span throws(PurgeableError) in
      #expect(span.bytes.array == [UInt8](repeating: 0, count: 100))
      span.write([1, 2])
    }
    #expect(try heap.bytes(of: element) == [1, 2] + [UInt8](repeating: 0, count: 98))
    let failure = PurgeableError(.notSupported, in: "test", explanation: "on purpose")
    #expect(throws: failure) {
      _ = try heap.store(byteCount: 100) { _ throws(PurgeableError) in throw failure }
    }
    #expect(try heap.statistics().elementCount == 1)
  }

  @Test("what was freed, or is of another heap, is stale")
  func stale() throws {
    let heap = try PurgeableHeap()
    let other = try PurgeableHeap()
    let element = try heap.store([1, 2, 3])
    _ = try heap.store([4])
    let foreign = try other.store(pattern(50))
    try heap.free(element)
    for reference in [element, foreign] {
      var buffer = [UInt8](repeating: 0, count: 10)
      var span = buffer.mutableSpan
      var kinds: [PurgeableError.Kind?] = []
      func note(_ body: () throws(PurgeableError) -> Void) {
        do throws(PurgeableError) {
          try body()
          kinds.append(nil)
        } catch { kinds.append(error.kind) }
      }
      note { () throws(PurgeableError) in try heap.free(reference) }
      note { () throws(PurgeableError) in _ = try heap.bytes(of: reference) }
      note { () throws(PurgeableError) in _ = try heap.byteCount(of: reference) }
      note { () throws(PurgeableError) in _ = try heap.isDiscarded(reference) }
      note { () throws(PurgeableError) in _ = try heap.withBytes(of: reference) { _ throws(PurgeableError) in } }
      do throws(PurgeableError) {
        _ = try heap.read(reference, into: &span)
        kinds.append(nil)
      } catch { kinds.append(error.kind) }
      #expect(kinds == Array(repeating: .staleReference, count: 6))
    }
    #expect(try other.bytes(of: foreign) == pattern(50))
  }

  @Test("an element freed while it is read keeps its bytes until then")
  func freeWhileRead() throws {
    let heap = try PurgeableHeap()
    let element = try heap.store(pattern(3000))
    let seen = try heap.withBytes(of: element) { span throws(PurgeableError) in
      try heap.free(element)
      _ = try heap.store(pattern(3000, seed: 9))
      return span.array
    }
    #expect(seen == pattern(3000))
    #expect(throws: PurgeableError.self) { try heap.free(element) }
  }

  @Test("refuses bad input")
  func badInput() throws {
    let heap = try PurgeableHeap()
    #expect(#expect(throws: PurgeableError.self) { _ = try heap.store([]) }?.kind == .invalidArgument("byteCount"))
    let unknown = #expect(throws: PurgeableError.self) { _ = try heap.store([1], in: HeapStream(number: 77)) }
    #expect(unknown?.kind == .invalidArgument("stream"))
    let huge = #expect(throws: PurgeableError.self) { _ = try heap.store(byteCount: Int.max) { _ throws(PurgeableError) in } }
    #expect(huge?.kind == .tooLarge)
    let negative = #expect(throws: PurgeableError.self) { _ = try heap.store(byteCount: -1) { _ throws(PurgeableError) in } }
    #expect(negative?.kind == .invalidArgument("byteCount"))
    let element = try heap.store(pattern(100))
    var buffer = [UInt8](repeating: 0, count: 99)
    let error = #expect(throws: PurgeableError.self) {
      var span = buffer.mutableSpan
      _ = try heap.read(element, into: &span)
    }
    #expect(error?.kind == .invalidArgument("buffer"))
    #expect(error?.description.contains("100 bytes") == true)
    for options in [
      PurgeableHeap.Options(slabByteCount: 1000), .init(byteLimit: 0), .init(byteLimit: -1), .init(chunkByteCount: 5),
    ] {
      let error = #expect(throws: PurgeableError.self) { _ = try PurgeableHeap(options) }
      guard case .invalidArgument? = error?.kind else {
        Issue.record("not an invalid argument: \(String(describing: error))")
        continue
      }
    }
  }

  @Test("tags live in ordinary memory, where the heap keeps them")
  func tags() throws {
    let plain = try PurgeableHeap()
    let untagged = try plain.store([1], tag: 5)
    #expect(#expect(throws: PurgeableError.self) { try plain.tag(of: untagged) }?.kind == .notSupported)
    let heap = try PurgeableHeap(.init(keepsTags: true))
    let elements = try (0..<100).map { try heap.store(pattern(50), tag: UInt64($0) << 40) }
    for (index, element) in elements.enumerated() { #expect(try heap.tag(of: element) == UInt64(index) << 40) }
  }

  @Test("a limit holds, and can be changed")
  func limit() throws {
    let heap = try PurgeableHeap(.init(byteLimit: 1 << 20))
    var elements: [ElementReference] = []
    let error = #expect(throws: PurgeableError.self) {
      for _ in 0..<10_000 { elements.append(try heap.store(pattern(1000))) }
    }
    #expect(error?.kind == .outOfMemory)
    #expect(heap.heldBytes <= 1 << 20)
    #expect(elements.count > 800)
    for (options, argument) in [
      (PurgeableHeap.Options(payloadAlignment: 32), "payloadAlignment"), (.init(slabByteCount: 3 << 12), "slabByteCount"),
      (.init(byteLimit: 100), "byteLimit"), (.init(byteLimit: 8192, slabByteCount: 16384), "byteLimit"),
      (.init(chunkByteCount: 3 << 20), "chunkByteCount"), (.init(chunkByteCount: 1 << 13), "chunkByteCount"),
      (.init(slabByteCount: 1 << 16, chunkByteCount: 1 << 17), "chunkByteCount"),
    ] {
      let error = #expect(throws: PurgeableError.self) { _ = try PurgeableHeap(options) }
      #expect(error?.kind == .invalidArgument(argument), "\(String(describing: error))")
    }
    #expect(#expect(throws: PurgeableError.self) { try heap.setByteLimit(0) }?.kind == .invalidArgument("limit"))
    try heap.setByteLimit(nil)
    elements.append(try heap.store(pattern(1000)))
    for element in elements { #expect(try heap.bytes(of: element) == pattern(1000)) }
  }
}
