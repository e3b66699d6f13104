// SPDX-License-Identifier: MIT
// The first and the last deadline of each slab's entries, in ordinary memory that is mapped when the first entry has one.

import CPurgeable
import Synchronization

/// The first and the last of some deadlines, in nanoseconds of the cache's clock.
struct DeadlineRange: Equatable {
  var first: UInt64
  var last: UInt64
}

/// By the slab's index: 16 bytes a slab. A slab's range is read and written under the mutex of its shard; blocks are published
/// atomically.
struct SlabDeadlines: ~Copyable, Sendable {
  /// The address of the directory of blocks; 0 as long as there is none.
  private let directory = Atomic<UInt64>(0)

  private static let slabsPerBlock = 16_384
  private static let blockCount = 4096
  private static var blockBytes: Int { 2 * slabsPerBlock * MemoryLayout<UInt64>.stride }
  private static var directoryBytes: Int { blockCount * MemoryLayout<UInt64>.stride }

  deinit {
    guard let blocks = SlotPointer(address: directory.load(ordering: .relaxed)) else { return }
    for i in 0..<Self.blockCount {
      if let block = SlotPointer(address: blocks[i].relaxed) { unsafe purgeable_bookkeeping_unmap(block.raw, Self.blockBytes) }
    }
    unsafe purgeable_bookkeeping_unmap(blocks.raw, Self.directoryBytes)
  }

  /// nil where none was set. Setting does nothing where there is no memory: a slab without a range is never due.
  subscript(slab: purgeable_slab_t) -> DeadlineRange? {
    get {
      guard let words = words(of: slab) else { return nil }
      let range = DeadlineRange(first: words[0].relaxed, last: words[1].relaxed)
      return range.last == 0 ? nil : range
    }
    nonmutating set {
      guard let words = newValue == nil ? words(of: slab) : madeWords(of: slab) else { return }
      words[0].store(relaxed: newValue?.first ?? 0)
      words[1].store(relaxed: newValue?.last ?? 0)
    }
  }

  /// The slab begins another life.
  func forget(_ slab: purgeable_slab_t) { self[slab] = nil }

  func include(_ deadline: UInt64, _ slab: purgeable_slab_t) {
    let range = self[slab] ?? DeadlineRange(first: deadline, last: 0)
    if deadline < range.first || deadline > range.last {
      self[slab] = DeadlineRange(first: min(range.first, deadline), last: max(range.last, deadline))
    }
  }

  /// A slab's two words; nil where they have no memory yet.
  private func words(of slab: purgeable_slab_t) -> SlotPointer? {
    // Acquire: pairs with the exchanges that publish directory and blocks.
    guard let blocks = SlotPointer(address: directory.load(ordering: .acquiring)), Self.block(of: slab) < Self.blockCount,
      let block = SlotPointer(address: blocks[Self.block(of: slab)].acquired)
    else { return nil }
    return block[2 * (Int(slab.index) % Self.slabsPerBlock)]
  }

  private func madeWords(of slab: purgeable_slab_t) -> SlotPointer? {
    if let words = words(of: slab) { return words }
    guard Self.block(of: slab) < Self.blockCount, let blocks = madeDirectory(),
      blocks[Self.block(of: slab)].mapped(Self.blockBytes) != nil
    else { return nil }
    return words(of: slab)
  }

  private static func block(of slab: purgeable_slab_t) -> Int { Int(slab.index) / slabsPerBlock }

  private func madeDirectory() -> SlotPointer? {
    if let there = SlotPointer(address: directory.load(ordering: .acquiring)) { return there }
    guard let raw = unsafe purgeable_bookkeeping_map(Self.directoryBytes) else { return nil }
    let made = UInt64(UInt(bitPattern: raw))
    let (exchanged, original) = directory.compareExchange(expected: 0, desired: made, ordering: .acquiringAndReleasing)
    if !exchanged { unsafe purgeable_bookkeeping_unmap(raw, Self.directoryBytes) }
    return SlotPointer(address: exchanged ? made : original)
  }
}
