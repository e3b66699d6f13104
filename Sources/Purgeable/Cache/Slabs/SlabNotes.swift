// SPDX-License-Identifier: MIT
// What a cache notes of each slab, in ordinary memory that is mapped when it is first needed.

import CPurgeable

/// The first and the last of some deadlines, in nanoseconds of the cache's clock.
struct DeadlineRange: Equatable {
  var first: UInt64
  var last: UInt64
}

/// A few words for each slab, zeros at first. They are read and written under the mutex of the slab's shard.
struct SlabNotes: Sendable {
  private let blocks: BlockTable

  /// First deadline, last deadline, last use.
  private static let wordsPerSlab = 3
  private static let slabsPerBlock = 16_384

  init(at word: SlotPointer) {
    blocks = BlockTable(at: word, blockBytes: Self.slabsPerBlock * Self.wordsPerSlab * MemoryLayout<UInt64>.stride)
  }

  func destroy() { blocks.destroy() }

  /// The first word of a slab; nil where none was made. `isMade`: makes them, unless there is no memory for it.
  private func first(of slab: purgeable_slab_t, isMade: Bool = false) -> SlotPointer? {
    let (number, at) = Int(slab.index).quotientAndRemainder(dividingBy: Self.slabsPerBlock)
    return (isMade ? blocks.madeBlock(number) : blocks.block(number))?[at * Self.wordsPerSlab]
  }

  /// The deadlines of a slab's entries; nil where none was set. Setting does nothing where there is no memory: a slab without a
  /// range is never due.
  subscript(deadlinesOf slab: purgeable_slab_t) -> DeadlineRange? {
    get {
      guard let first = first(of: slab) else { return nil }
      let range = DeadlineRange(first: first.relaxed, last: first[1].relaxed)
      return range.last == 0 ? nil : range
    }
    nonmutating set {
      guard let first = first(of: slab, isMade: newValue != nil) else { return }
      first.store(relaxed: newValue?.first ?? 0)
      first[1].store(relaxed: newValue?.last ?? 0)
    }
  }

  func include(_ deadline: UInt64, _ slab: purgeable_slab_t) {
    let range = self[deadlinesOf: slab] ?? DeadlineRange(first: deadline, last: 0)
    if deadline < range.first || deadline > range.last {
      self[deadlinesOf: slab] = DeadlineRange(first: min(range.first, deadline), last: max(range.last, deadline))
    }
  }

  /// When a slab was last seen to be in use (HeldShard+Core.swift); 0 where it was not, or there is no memory for it.
  subscript(useOf slab: purgeable_slab_t) -> UInt64 {
    get { first(of: slab)?[2].relaxed ?? 0 }
    nonmutating set { first(of: slab, isMade: true)?[2].store(relaxed: newValue) }
  }
}
