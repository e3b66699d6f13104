// SPDX-License-Identifier: MIT
// The first and the last deadline of each slab's entries, in ordinary memory that is mapped when the first entry has one.

import CPurgeable

/// The first and the last of some deadlines, in nanoseconds of the cache's clock.
struct DeadlineRange: Equatable {
  var first: UInt64
  var last: UInt64
}

/// By the slab's index: 16 bytes a slab. A slab's range is read and written under the mutex of its shard.
struct SlabDeadlines: Sendable {
  private let blocks: BlockTable

  private static let slabsPerBlock = 16_384

  init(at word: SlotPointer) {
    blocks = BlockTable(at: word, blockBytes: 2 * Self.slabsPerBlock * MemoryLayout<UInt64>.stride)
  }

  func destroy() { blocks.destroy() }

  /// nil where none was set. Setting does nothing where there is no memory: a slab without a range is never due.
  subscript(slab: purgeable_slab_t) -> DeadlineRange? {
    get {
      let (block, at) = Self.place(of: slab)
      guard let words = blocks.block(block) else { return nil }
      let range = DeadlineRange(first: words[at].relaxed, last: words[at + 1].relaxed)
      return range.last == 0 ? nil : range
    }
    nonmutating set {
      let (block, at) = Self.place(of: slab)
      guard let words = newValue == nil ? blocks.block(block) : blocks.madeBlock(block) else { return }
      words[at].store(relaxed: newValue?.first ?? 0)
      words[at + 1].store(relaxed: newValue?.last ?? 0)
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

  /// Its block, and the first of its two words there.
  private static func place(of slab: purgeable_slab_t) -> (block: Int, at: Int) {
    let (block, at) = Int(slab.index).quotientAndRemainder(dividingBy: slabsPerBlock)
    return (block, 2 * at)
  }
}
