// SPDX-License-Identifier: MIT
// The slab heap by itself, without a cache: two threads, many slabs, many holes. `Figures+CoreRegions.swift` has the regions.

import CPurgeable
import Foundation
import ToolSupport

enum Core {
  static func figures(_ scale: Scale) throws -> [Figure] {
    try streams(scale) + compaction(scale) + holes(scale) + neighbours(scale) + sparse() + queue(scale)
  }

  /// Where the machine has less memory than this, figures that take gigabytes are measured with less.
  static var isLarge: Bool { sysconf(Int32(_SC_PHYS_PAGES)) >= (8 << 30) / Int(purgeable_page_size_bytes()) }

  // MARK: Two threads with a stream each

  private static let payloadByteCount = 64

  private static func streams(_ scale: Scale) throws -> [Figure] {
    guard ThreadPair.isPossible else { return [] }
    var sizes = [(count: scale(1_000_000, quick: 200_000), rounds: scale(9, quick: 7))]
    if !scale.isQuick { sizes.append((isLarge ? 20_000_000 : 4_000_000, 3)) }
    return try sizes.flatMap { count, rounds in
      let numbers = try ChildRun.run("core-streams", [count, rounds])
      return try [("allocate", "allocate and commit"), ("free", "free")].map { key, name in
        let sides = try ["one", "two", "apart"].map { Figure.text(try numbers.value("\(key)-\($0)")) }
        return Figure(
          "slab heap, two threads with a stream each: \(name), \(count) elements of \(payloadByteCount) B", .time,
          try Spread(numbers, key), .atLeast(1.8), "times one thread's",
          note: "an element \(sides[0]) ns by one thread, \(sides[1]) ns by two, \(sides[2]) ns by two with a heap each")
      }
    }
  }

  /// Arguments: elements, rounds. All sides do the same work: one thread all of it, two threads a half each, and two threads with
  /// a heap each, which share nothing but the process.
  @Sendable static func measureStreams(_ arguments: [Int]) throws -> Numbers {
    let (count, rounds) = (arguments[0] / 2 * 2, arguments[1])
    let (heap, other) = (try CoreHeap(), try CoreHeap())
    let streams = [try heap.makeStream(), try heap.makeStream()]
    guard try other.makeStream() == streams[0] else { throw ToolFailure("streams of other names") }
    let references = References(count: count)
    var allocations: [[Double]] = []
    var frees: [[Double]] = []
    for round in 0...rounds {
      var row: (allocations: [Double], frees: [Double]) = ([], [])
      for (heaps, isApart) in [([heap], false), ([heap, heap], false), ([heap, other], true)] {
        let each = count / heaps.count
        row.allocations.append(
          ThreadPair.wallNanoseconds(threads: heaps.count) { thread in
            allocate(heaps[thread], streams[isApart ? 0 : thread], references, thread * each, each)
          })
        try heap.expect(elements: isApart ? each : count)
        try other.expect(elements: isApart ? each : 0)
        row.frees.append(
          ThreadPair.wallNanoseconds(threads: heaps.count) { thread in free(heaps[thread], references, thread * each, each) })
        try heap.expect(elements: 0)
        try other.expect(elements: 0)
      }
      if round == 0 { continue }
      allocations.append(row.allocations)
      frees.append(row.frees)
    }
    var numbers: Numbers = [:]
    for (key, times) in [("allocate", allocations), ("free", frees)] {
      for (side, name) in ["one", "two", "apart"].enumerated() {
        numbers["\(key)-\(name)"] = Spread(times.map { $0[side] / Double(count) }).median
      }
      Rounds.ratio(times, 0, over: 1).write(to: &numbers, key)
    }
    return numbers
  }

  /// Ends at the first error: the count of elements tells afterwards.
  @inline(never)
  private static func allocate(
    _ heap: CoreHeap, _ stream: purgeable_stream_t, _ references: References, _ from: Int, _ count: Int
  ) {
    for i in from..<from + count {
      // In bounds: there are as many references as elements.
      guard unsafe heap.store(stream, payloadByteCount, tag: 0, references.start + i) == 0 else { return }
    }
  }

  @inline(never)
  private static func free(_ heap: CoreHeap, _ references: References, _ from: Int, _ count: Int) {
    for i in from..<from + count {
      // In bounds, as above.
      guard unsafe purgeable_heap_free(heap.raw, references.start[i]) == 0 else { return }
    }
  }

  // MARK: Compaction

  private static let compactedByteCount = 100
  /// With the header, in whole granules.
  private static let compactedRoom = 112

  private static func compaction(_ scale: Scale) throws -> [Figure] {
    let slabs = scale(125_000, quick: 20_000)
    let numbers = try ChildRun.run("core-compaction", [slabs, scale(4000, quick: 1000), scale(9, quick: 5)])
    return [
      Figure(
        "allocation in a heap that compacts itself, \(slabs) slabs of \(purgeable_page_size_bytes() >> 10) KiB, 30 % dead", .time,
        try Spread(numbers, "allocation"), .atMost(0.4), "us",
        note: "allocated, written and committed; in a heap that does not compact \(Figure.text(try numbers.value("plain"))) us; "
          + "\(Int(try numbers.value("moved"))) elements were moved")
    ]
  }

  /// Arguments: slabs, slabs that are allocated in a round, rounds.
  @Sendable static func measureCompaction(_ arguments: [Int]) throws -> Numbers {
    let page = Int(purgeable_page_size_bytes())
    let perSlab = page / compactedRoom
    let (kept, fresh) = (arguments[0] * perSlab, arguments[1] * perSlab)
    var times: [[Double]] = []
    let sides = try [true, false].map { compacts in try Compacting(page, kept, fresh, compacts: compacts) }
    for round in 0...arguments[2] {
      let row = try sides.map { try $0.allocate() / Double(fresh) / 1000 }
      if round > 0 { times.append(row) }
      for side in sides { try side.free() }
    }
    let moved = try sides[0].heap.statistics().moved_element_count
    guard moved != 0 else { throw ToolFailure("nothing was compacted") }
    var numbers: Numbers = ["plain": Spread(times.map { $0[1] }).median, "moved": Double(moved)]
    Spread(times.map { $0[0] }).write(to: &numbers, "allocation")
    return numbers
  }

  /// A heap with slabs that are partly dead, and its owner: the tag of an element is the number of its reference.
  private struct Compacting {
    let heap: CoreHeap
    let references: References
    let kept: Int
    let fresh: Int

    init(_ page: Int, _ kept: Int, _ fresh: Int, compacts: Bool) throws {
      (self.kept, self.fresh) = (kept, fresh)
      references = References(count: kept + fresh)
      var options = unsafe purgeable_heap_options_t()
      unsafe options.slab_bytes = page
      unsafe options.keeps_tags = true
      if compacts {
        unsafe options.moved = Compacting.moved
        unsafe options.context = UnsafeMutableRawPointer(references.start)
      }
      heap = try unsafe CoreHeap(options)
      try store(0..<kept)
      var generator = SplitMix64()
      var living = kept
      for i in 0..<kept where generator.fraction() < 0.3 {
        try remove(i)
        living -= 1
      }
      try heap.expect(elements: living)
      let statistics = try heap.statistics()
      // No slab has gone, and less than three quarters of what is held live: the heap looks for slabs to compact.
      guard statistics.slab_count >= kept / (page / compactedRoom) * 99 / 100,
        statistics.memory.payload_bytes < statistics.memory.held_bytes / 4 * 3
      else { throw ToolFailure("\(statistics.slab_count) slabs are not what was to be measured") }
    }

    /// Nanoseconds.
    func allocate() throws -> Double {
      let before = try heap.statistics().element_count
      let time = try Rounds.nanoseconds { try store(kept..<kept + fresh) }
      try heap.expect(elements: Int(before) + fresh)
      return time
    }

    func free() throws {
      for i in kept..<kept + fresh { try remove(i) }
    }

    @inline(never)
    private func store(_ numbers: Range<Int>) throws {
      for i in numbers {
        // In bounds: there are as many references as tags.
        guard unsafe heap.store(0, compactedByteCount, tag: UInt64(i), references.start + i) == 0 else {
          throw ToolFailure("an allocation failed")
        }
      }
    }

    private func remove(_ i: Int) throws {
      // In bounds, as above.
      guard unsafe purgeable_heap_free(heap.raw, references.start[i]) == 0 else { throw ToolFailure("an element is gone") }
      unsafe references.start[i] = purgeable_reference_t()
    }

    /// One thread allocates, so the exchange needs no atomic operation.
    private static let moved: purgeable_moved_t = { context, from, to, tag, _, _ in
      guard let context = unsafe context else { return false }
      // The references, as the options said; in bounds, as above.
      let reference = unsafe context.assumingMemoryBound(to: purgeable_reference_t.self) + Int(tag)
      guard unsafe reference.pointee.place == from.place, unsafe reference.pointee.generation == from.generation else {
        return false
      }
      unsafe reference.pointee = to
      return true
    }
  }

  // MARK: Holes

  private static func holes(_ scale: Scale) throws -> [Figure] {
    let gibibytes = scale(48, quick: 4)
    let numbers = try ChildRun.run("core-holes", [gibibytes, scale(25, quick: 15)])
    let empty = Figure.text(try numbers.value("empty"))
    let fitting = Figure.text(try numbers.value("fitting"))
    return [
      Figure(
        "allocation of a large element in \(gibibytes) GiB of holes", .time, try Spread(numbers, "above"), .atMost(5), "us",
        note: "a quarter larger than each hole; one that fits \(fitting) us; the same length in an empty heap \(empty) us")
    ]
  }

  /// Arguments: GiB of holes, rounds. Nothing is written or committed, so each element takes the page of its header at most.
  @Sendable static func measureHoles(_ arguments: [Int]) throws -> Numbers {
    let (holeBytes, batch) = (arguments[0] << 30, 100)
    let (heap, empty) = (try CoreHeap(), try CoreHeap())
    let unit = Int(unsafe purgeable_heap_slab_bytes(heap.raw))
    // A hole and what lies before it take 32 units together, so no chunk has a rest at its end.
    let (keeper, hole, above) = (unit * 3 / 4, 31 * unit - 4096, 39 * unit - 4096)
    let pairs = holeBytes / (31 * unit) + 1
    let references = References(count: 2 * pairs)
    for i in 0..<2 * pairs { try unsafe heap.begin(i % 2 == 0 ? keeper : hole, references.start + i) }
    for i in 0..<pairs { try unsafe heap.end(references.start[2 * i + 1]) }
    let statistics = try heap.statistics()
    guard statistics.mapped_bytes - statistics.memory.held_bytes >= holeBytes, statistics.memory.held_bytes <= pairs * unit else {
      throw ToolFailure("the heap has \(statistics.mapped_bytes - statistics.memory.held_bytes) bytes of holes")
    }
    let sides: [(heap: CoreHeap, byteCount: Int)] = [(heap, above), (heap, hole), (empty, above)]
    let batchReferences = References(count: batch)
    var times: [[Double]] = []
    for round in 0...arguments[1] {
      let row = try sides.map { heap, byteCount in
        let time = try Rounds.nanoseconds {
          for i in 0..<batch { try unsafe heap.begin(byteCount, batchReferences.start + i) }
        }
        for i in 0..<batch { try unsafe heap.end(batchReferences.start[i]) }
        return time / Double(batch) / 1000
      }
      if round > 0 { times.append(row) }
    }
    var numbers: Numbers = ["fitting": Spread(times.map { $0[1] }).median, "empty": Spread(times.map { $0[2] }).median]
    Spread(times.map { $0[0] }).write(to: &numbers, "above")
    return numbers
  }
}
