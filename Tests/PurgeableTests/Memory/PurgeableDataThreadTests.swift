// SPDX-License-Identifier: MIT
// PurgeableData from many real threads at once.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

@Suite("PurgeableData, from many threads")
struct PurgeableDataThreadTests {
  @Test("begins and ends from many threads add up", arguments: [OfferingMode.deferred, .immediate])
  func balance(offering: OfferingMode) throws {
    let data = try PurgeableData(pattern(10_000), offering: offering)
    let refused = Atomic<Int>(0)
    onThreads(6) { _ in
      for _ in 0..<2000 {
        guard data.beginContentAccess() else {
          refused.add(1, ordering: .relaxed)
          continue
        }
        data.endContentAccess()
      }
    }
    #expect(refused.load(ordering: .relaxed) == 0)
    #expect(data.accessCount == 1)
    #expect(data.unbalancedEndCount == 0)
    #expect(data.array() == pattern(10_000))
  }

  @Test("beside discards, a begun access means the bytes are there until it ends")
  func discards() throws {
    let expected = pattern(9000)
    let data = try PurgeableData(expected, offering: .immediate) { expected }
    data.endContentAccess()
    let wrong = Atomic<Int>(0)
    onThreads(5) { index in
      for _ in 0..<400 {
        if index == 0 {
          data.discardContentIfPossible()
        } else if data.beginContentAccess() {
          if data.isContentDiscarded || data.count != 9000 || data.array() != expected { wrong.add(1, ordering: .relaxed) }
          data.endContentAccess()
        } else {
          wrong.add(1, ordering: .relaxed)
        }
      }
    }
    #expect(wrong.load(ordering: .relaxed) == 0)
    #expect(data.accessCount == 0)
  }

  @Test("the kernel takes pages while threads begin and end: never a wrong byte")
  func kernelBesideThreads() async throws {
    try needRealDiscards()
    // In a process of its own: the pages that are advised may belong to another region by then.
    await #expect(processExitsWith: .success) {
      let expected = pattern(32 * pageSize)
      let data = try PurgeableData(expected, offering: .immediate) { expected }
      data.endContentAccess()
      let wrong = Atomic<Int>(0)
      let done = Atomic<Int>(0)
      onThreads(4) { index in
        if index == 0 {
          while done.load(ordering: .acquiring) < 3 {
            // Outside of the access, which took the pages off offer.
            if let range = data.withBytes({ PageRange(of: $0) }) { range.advise(advicePageout) }
            sched_yield()
          }
          return
        }
        for _ in 0..<(TestRun.isFull ? 300 : 100) {
          if let seen = data.array(), seen == expected { continue }
          wrong.add(1, ordering: .relaxed)
        }
        done.add(1, ordering: .acquiringAndReleasing)
      }
      require(wrong.load(ordering: .relaxed) == 0, "\(wrong.load(ordering: .relaxed)) wrong")
    }
  }

  @Test("changes happen one after the other, and readers see whole ones")
  func changes() throws {
    let data = try PurgeableData([UInt8](repeating: 1, count: 5000))
    let torn = Atomic<Int>(0)
    onThreads(5) { index in
      for turn in 0..<200 {
        if index < 2 {
          let byte = UInt8(index * 100 + turn % 100 + 1)
          if turn.isMultiple(of: 2) {
            try? data.withMutableBytes { span throws(PurgeableError) in
              for offset in 0..<span.byteCount { span.storeBytes(of: byte, toByteOffset: offset, as: UInt8.self) }
            }
          } else {
            try? data.replaceBytes(with: [UInt8](repeating: byte, count: 1 + turn * 97 % 9000))
          }
        } else {
          let isWhole = data.withBytes { span in
            let bytes = span.array
            return bytes.allSatisfy { $0 == bytes[0] } && span.array == bytes
          }
          if isWhole != true { torn.add(1, ordering: .relaxed) }
        }
      }
    }
    #expect(torn.load(ordering: .relaxed) == 0)
    #expect(data.accessCount == 1)
  }

  @Test("appends from many threads lose nothing")
  func appends() throws {
    let data = try PurgeableData()
    onThreads(4) { index in
      for _ in 0..<500 { try? data.append(contentsOf: [UInt8](repeating: UInt8(index + 1), count: 13)) }
    }
    let bytes = try #require(data.array())
    #expect(bytes.count == 4 * 500 * 13)
    for chunk in stride(from: 0, to: bytes.count, by: 13) {
      #expect(bytes[chunk..<chunk + 13].allSatisfy { $0 == bytes[chunk] })
    }
    for index in 1...4 { #expect(bytes.count { $0 == UInt8(index) } == 500 * 13) }
  }

  @Test("copies, slices and comparisons beside changes and discards are of whole content, and wait for each other nowhere")
  func copiesBesideChanges() throws {
    let initial = [UInt8](repeating: 1, count: 5000)
    let pair = try (0..<2).map { _ in try PurgeableData(initial) { initial } }
    for data in pair { data.endContentAccess() }
    let wrong = Atomic<Int>(0)
    onThreads(5) { index in
      for turn in 0..<200 {
        let (one, other) = (pair[turn % 2], pair[1 - turn % 2])
        if index == 0 {
          one.discardContentIfPossible()
        } else if index == 1 {
          // At any moment all bytes of an object are the same one.
          one.withContentAccess { data in
            try? data.replaceBytes(with: [UInt8](repeating: UInt8(1 + turn / 2 % 3), count: 5000))
          }
        } else {
          // In both orders at once.
          _ = index == 2 ? one == other : other == one
          guard let copy = try? one.copy(), let bytes = copy.array(), let slice = try? other.bytes(in: 100..<4900) else {
            wrong.add(1, ordering: .relaxed)
            continue
          }
          let isWhole = bytes.count == 5000 && bytes.allSatisfy { $0 == bytes[0] } && slice.allSatisfy { $0 == slice[0] }
          if !isWhole || copy != (try? PurgeableData(bytes)) || copy.accessCount != 1 { wrong.add(1, ordering: .relaxed) }
        }
      }
    }
    #expect(wrong.load(ordering: .relaxed) == 0)
    #expect(pair.allSatisfy { $0.accessCount == 0 && $0.unbalancedEndCount == 0 })
  }
}
