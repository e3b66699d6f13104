// SPDX-License-Identifier: MIT
// How much of the resident memory of a slab heap is payload.

import CPurgeable
import Foundation
import ToolSupport

enum Density {
  static func figures(_ scale: Scale) throws -> [Figure] {
    let target = scale(256, quick: 64) << 20
    func figure(_ name: String, _ job: String, _ target: Int, _ reach: Double) throws -> Figure {
      let numbers = try ChildRun.run(job, [target])
      let payload = try numbers.value("payload")
      let byProcess = Figure.text(payload / (try numbers.value("rss")))
      var note = "\(Int(try numbers.value("elements"))) elements, \(Figure.text(payload / 1e6)) MB"
      note += "; by what the process has resident, bookkeeping and all, \(byProcess)"
      if let worst = numbers["worst"] { note += "; worst on the way \(Figure.text(worst))" }
      return Figure(
        "payload / resident, \(name)", .count, payload / (try numbers.value("resident")), .atLeast(reach), "ratio", note: note)
    }
    return [
      try figure("sizes log-uniform 16 B to 16 KiB", "density-mix", target, 0.90),
      try figure("sizes of the files of /usr", "density-files", scale(1024, quick: 128) << 20, 0.90),
      try figure("after the size mix shifted, FIFO", "density-shift", target, 0.88),
    ]
  }

  /// Arguments: payload bytes.
  @Sendable static func measureMix(_ arguments: [Int]) throws -> Numbers {
    var generator = SplitMix64()
    var filling = try Filling()
    while filling.payload < arguments[0] { _ = try filling.add(generator.logUniform(16, 16384)) }
    return try filling.numbers()
  }

  /// Arguments: payload bytes at most. The files of /usr in a seeded order; only their sizes count here.
  @Sendable static func measureFiles(_ arguments: [Int]) throws -> Numbers {
    var sizes = fileSizes(under: "/usr")
    guard !sizes.isEmpty else { throw ToolFailure("no files in /usr") }
    var generator = SplitMix64()
    sizes.shuffle(using: &generator)
    var filling = try Filling()
    for size in sizes where filling.payload + size <= arguments[0] { _ = try filling.add(size) }
    return try filling.numbers()
  }

  /// Arguments: payload bytes. Small sizes are replaced by larger ones, oldest first, twice over.
  @Sendable static func measureShift(_ arguments: [Int]) throws -> Numbers {
    var generator = SplitMix64()
    // Touched before the heap is made: what is resident for it does not count.
    var queue = Array(repeating: (reference: purgeable_reference_t(), size: 1), count: arguments[0] / 128)
    var filling = try Filling()
    var (head, tail) = (0, 0)
    func append(_ low: Double, _ high: Double) throws {
      let size = generator.logUniform(low, high)
      queue[tail % queue.count] = (try filling.add(size), size)
      tail += 1
    }
    while filling.payload < arguments[0] { try append(16, 1024) }
    var worst = 1.0
    for _ in 0..<16 {
      let end = filling.added + arguments[0] / 8
      while filling.added < end {
        try append(512, 16384)
        while filling.payload > arguments[0] {
          let oldest = queue[head % queue.count]
          filling.remove(oldest.reference, oldest.size)
          head += 1
        }
      }
      worst = min(worst, Double(filling.payload) / Double(try filling.statistics().memory.resident_bytes))
    }
    var numbers = try filling.numbers()
    numbers["worst"] = worst
    return numbers
  }

  /// Regular files' sizes, without those of no bytes; links are not followed.
  private static func fileSizes(under path: String) -> [Int] {
    let keys: [URLResourceKey] = [.fileSizeKey, .isRegularFileKey]
    let files = FileManager.default.enumerator(at: URL(fileURLWithPath: path), includingPropertiesForKeys: keys)
    var sizes: [(path: String, size: Int)] = []
    while let file = files?.nextObject() as? URL {
      guard let facts = try? file.resourceValues(forKeys: Set(keys)), facts.isRegularFile == true else { continue }
      if let size = facts.fileSize, size > 0 { sizes.append((file.path, size)) }
    }
    // The order of a directory is the file system's affair.
    return sizes.sorted { $0.path < $1.path }.map(\.size)
  }
}

/// A heap being filled, and what this process had before it.
/// `@safe`: the handle lives as long as this, and stays inside.
@safe struct Filling: ~Copyable {
  private let heap: OpaquePointer
  private let residentBefore: Int
  /// Bytes that live, bytes ever added, elements that live.
  private(set) var payload = 0
  private(set) var added = 0
  private(set) var count = 0

  /// An empty heap, in a process that has done all of this once: the program's own pages come in with their first use.
  init(keepsTags: Bool = false) throws {
    do {
      var first = try Filling(before: 0, keepsTags: keepsTags)
      for size in [16, 100, 5000, 200_000] { first.remove(try first.add(size), size) }
      _ = try first.numbers()
    }
    try self.init(before: try OwnMemory.residentBytes(), keepsTags: keepsTags)
  }

  private init(before: Int, keepsTags: Bool) throws {
    var options = unsafe purgeable_heap_options_t()
    unsafe options.keeps_tags = keepsTags
    var made: OpaquePointer?
    guard unsafe purgeable_heap_create(&options, &made) == 0, let heap = unsafe made else {
      throw ToolFailure("no memory for a heap")
    }
    unsafe self.heap = heap
    residentBefore = before
  }

  deinit { unsafe purgeable_heap_destroy(heap) }

  mutating func add(_ size: Int) throws -> purgeable_reference_t {
    var reference = purgeable_reference_t()
    var bytes: UnsafeMutableRawPointer?
    guard unsafe purgeable_heap_allocate_in(heap, 0, size, UInt64(count) + 1, &reference, &bytes) == 0,
      let bytes = unsafe bytes
    else { throw ToolFailure("no memory for an element of \(size) bytes") }
    // As many as were asked for.
    unsafe memset(bytes, 0x5A, size)
    guard unsafe purgeable_heap_commit(heap, reference) == 0 else { throw ToolFailure("an element of \(size) bytes is lost") }
    payload += size
    added += size
    count += 1
    return reference
  }

  mutating func remove(_ reference: purgeable_reference_t, _ size: Int) {
    unsafe purgeable_heap_free(heap, reference)
    payload -= size
    count -= 1
  }

  func statistics() throws -> purgeable_heap_statistics_t {
    var statistics = purgeable_heap_statistics_t()
    guard unsafe purgeable_heap_statistics(heap, &statistics) == 0 else { throw ToolFailure("no statistics") }
    return statistics
  }

  func numbers() throws -> Numbers {
    let statistics = try statistics()
    return [
      "payload": Double(payload), "elements": Double(count), "resident": Double(statistics.memory.resident_bytes),
      "slabs": unsafe Double(statistics.slab_count) * Double(purgeable_heap_slab_bytes(heap)),
      "held": Double(statistics.memory.held_bytes), "ordinary": Double(statistics.memory.ordinary_bytes),
      "rss": Double(try OwnMemory.residentBytes() - residentBefore),
    ]
  }
}
