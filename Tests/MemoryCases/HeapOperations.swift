// SPDX-License-Identifier: MIT
// Operations of heaps, from Swift.

import Glibc
import Purgeable
import Synchronization

/// A heap that closures can share, and a buffer for reads.
final class SharedHeap: Sendable {
  let heap: PurgeableHeap
  let buffer = Buffer()

  init(_ options: PurgeableHeap.Options = .init(), moved: PurgeableHeap.Moved? = nil) throws(PurgeableError) {
    heap = try PurgeableHeap(options, moved: moved)
  }

  /// Stores a value, and reads it by every call there is. Throws when there is no memory.
  func storeAndRead(_ value: [UInt8], in stream: HeapStream = .first) throws(PurgeableError) {
    let element = try unsafe heap.store(value.span.bytes, in: stream, tag: 9)
    if try heap.tag(of: element) != 9 { fail("another tag") }
    var span = unsafe MutableSpan<UInt8>(
      _unsafeElements: UnsafeMutableRawBufferPointer(rebasing: buffer.bytes[0..<value.count]).assumingMemoryBound(to: UInt8.self))
    let (outcome, count) = try heap.read(element, into: &span)
    if outcome == .intact, count != value.count || span[0] != value[0] || span[count - 1] != value[0] { fail("other bytes") }
    let sum = try heap.withBytes(of: element) { bytes in bytes.byteCount + Int(unsafe bytes.unsafeLoad(as: UInt8.self)) }
    if let sum, sum != value.count + Int(value[0]) { fail("other bytes under a lock") }
    let length = try heap.isDiscarded(element) ? nil : try heap.byteCount(of: element)
    if let length, length != value.count { fail("another length") }
    _ = try heap.slab(of: element)
    try heap.free(element)
  }
}

/// Runs `body`; false when it failed, which must be for lack of memory.
func allowing(_ body: () throws(PurgeableError) -> Void) -> Bool {
  do throws(PurgeableError) {
    try body()
    return true
  } catch {
    if error.kind != .outOfMemory, error.errorNumber != ENOMEM { fail("another error than want of memory") }
    return false
  }
}

private let tags = PurgeableHeap.Options(keepsTags: true)

let heapOperations: [Operation] = [
  Operation("heap: made and ended", takes: .result) {
    return { (try? PurgeableHeap())?.slabByteCount ?? 0 > 0 }
  },
  Operation("heap: made with a callback and ended", takes: .result) {
    return { (try? PurgeableHeap(tags, moved: { _, _, _, _ in false }))?.slabByteCount ?? 0 > 0 }
  },
  Operation("heap: elements stored, read, locked, asked for, freed") {
    let shared = try SharedHeap(tags)
    let values = [bytes(8), bytes(3000, 3), bytes(10 * 4096, 5), bytes(90 * 4096, 9)]
    return {
      var wereStored = true
      for value in values { wereStored = allowing { () throws(PurgeableError) in try shared.storeAndRead(value) } && wereStored }
      return wereStored
    }
  },
  Operation("heap: elements stored from collections and by closures") {
    let shared = try SharedHeap(.init(payloadAlignment: 16))
    let value = bytes(500)
    return {
      allowing { () throws(PurgeableError) in
        let first = try shared.heap.store(value, in: .first)
        try shared.heap.free(first)
        let second = try shared.heap.store(byteCount: 700) { space throws(PurgeableError) in
          space.storeBytes(of: 7, as: UInt8.self)
        }
        if try shared.heap.withBytes(of: second, { unsafe $0.unsafeLoad(as: UInt8.self) == 7 }) == false { fail("other bytes") }
        try shared.heap.free(second)
      }
    }
  },
  Operation("heap: a store that is given up") {
    let shared = try SharedHeap()
    return {
      let error = PurgeableError(.busy, in: "here", explanation: "given up")
      do throws(PurgeableError) {
        _ = try shared.heap.store(byteCount: 700) { _ throws(PurgeableError) in throw error }
        fail("it was stored")
      } catch { return error.kind == .busy }
    }
  },
  Operation("heap: elements larger than a chunk") {
    let shared = try SharedHeap(.init(chunkByteCount: 1 << 20))
    return {
      allowing { () throws(PurgeableError) in
        let element = try shared.heap.store(byteCount: 5 << 20) { _ throws(PurgeableError) in }
        try shared.heap.free(element)
      }
    }
  },
  Operation("heap: more than its limit, and more than it could hold", takes: .result) {
    let shared = try SharedHeap(.init(byteLimit: 1 << 20))
    let value = bytes(64 << 10)
    return {
      var count = 0
      while count < 100, (try? unsafe shared.heap.store(value.span.bytes)) != nil { count += 1 }
      if count == 100 { fail("there is no limit") }
      _ = try? shared.heap.store(byteCount: 1 << 46) { _ throws(PurgeableError) in }
      return true
    }
  },
  Operation("heap: references that are stale", takes: .result) {
    let shared = try SharedHeap()
    let element = try unsafe shared.heap.store(bytes(10).span.bytes)
    try shared.heap.free(element)
    return {
      var stale = 0
      do { _ = try shared.heap.withBytes(of: element) { _ in } } catch { stale += 1 }
      do { _ = try shared.heap.isDiscarded(element) } catch { stale += 1 }
      do { _ = try shared.heap.byteCount(of: element) } catch { stale += 1 }
      do { _ = try shared.heap.bytes(of: element) } catch { stale += 1 }
      do { _ = try shared.heap.tag(of: element) } catch { stale += 1 }
      do { try shared.heap.free(element) } catch { stale += 1 }
      if stale != 6 { fail("\(stale) of 6 are stale") }
      return true
    }
  },
  Operation("heap: an element as an array, small", takes: .result, floor: valueFloor) {
    let shared = try SharedHeap()
    let element = try unsafe shared.heap.store(bytes(100).span.bytes)
    return { (try? shared.heap.bytes(of: element)) != nil }
  },
  Operation("heap: an element as an array, a mebibyte", takes: .result) {
    let shared = try SharedHeap()
    let element = try unsafe shared.heap.store(bytes(1 << 20).span.bytes)
    return { allowing { () throws(PurgeableError) in if try shared.heap.bytes(of: element)?.count == 0 { fail("no bytes") } } }
  },
  Operation("heap: streams made and sealed") {
    let shared = try SharedHeap()
    let value = bytes(100)
    let made = Counter(0)
    return {
      if made.next() > 500 { return true }
      return allowing { () throws(PurgeableError) in
        let stream = try shared.heap.makeStream()
        _ = try unsafe shared.heap.store(value.span.bytes, in: stream)
        try shared.heap.seal(stream)
      }
    }
  },
  Operation("heap: lists of slabs and of elements", takes: .result) {
    let shared = try SharedHeap()
    let value = bytes(100)
    for _ in 0..<6000 { _ = try unsafe shared.heap.store(value.span.bytes) }
    return {
      allowing { () throws(PurgeableError) in
        let slabs = try shared.heap.slabs(of: .first)
        if slabs.count < 5 { fail("\(slabs.count) slabs") }
        let elements = try shared.heap.elements(of: slabs[0])
        if elements.count < 100 { fail("\(elements.count) elements in a slab") }
      }
    }
  },
  Operation("heap: slabs evacuated", takes: .result) {
    let shared = try SharedHeap()
    let value = bytes(100)
    let stream = try shared.heap.makeStream()
    return {
      allowing { () throws(PurgeableError) in
        let first = try unsafe shared.heap.store(value.span.bytes)
        for _ in 0..<200 { _ = try unsafe shared.heap.store(value.span.bytes) }
        let slab = try shared.heap.slab(of: first)
        _ = try shared.heap.evacuate(slab, to: stream) { _, _, _, bytes in bytes.byteCount == 100 }
      }
    }
  },
  Operation("heap: offers, sweeps, trims, limits, numbers") {
    let shared = try SharedHeap(moved: { _, _, _, bytes in bytes.byteCount == 200 })
    let value = bytes(200)
    var kept: [ElementReference] = []
    for number in 0..<3000 {
      let element = try unsafe shared.heap.store(value.span.bytes)
      if number % 4 == 0 { kept.append(element) } else { try shared.heap.free(element) }
    }
    return {
      var wasDone = allowing { () throws(PurgeableError) in try shared.heap.setByteLimit(1 << 30) }
      wasDone = allowing { () throws(PurgeableError) in try shared.heap.seal(.first) } && wasDone
      wasDone = allowing { () throws(PurgeableError) in _ = try shared.heap.offerIdle() } && wasDone
      wasDone = allowing { () throws(PurgeableError) in _ = try shared.heap.sweep() } && wasDone
      wasDone = allowing { () throws(PurgeableError) in _ = try shared.heap.trim() } && wasDone
      wasDone =
        allowing { () throws(PurgeableError) in
          if try shared.heap.statistics().memory.heldBytes == 0 { fail("nothing is held") }
        } && wasDone
      return wasDone && shared.heap.heldBytes > 0 && shared.heap.ordinaryBytes > 0 && !shared.heap.hasPending
    }
  },
]
