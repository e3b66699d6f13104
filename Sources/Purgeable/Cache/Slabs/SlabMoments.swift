// SPDX-License-Identifier: MIT
// A moment for each slab, in ordinary memory that is mapped when the first one is set.

import CPurgeable

/// By the slab's index: 8 bytes a slab. A slab's moment is read and written under the mutex of its shard.
struct SlabMoments: Sendable {
  private let blocks: BlockTable

  private static let slabsPerBlock = 16_384

  init(at word: SlotPointer) {
    blocks = BlockTable(at: word, blockBytes: Self.slabsPerBlock * MemoryLayout<UInt64>.stride)
  }

  func destroy() { blocks.destroy() }

  /// 0 where none was set, or there is no memory for it.
  subscript(slab: purgeable_slab_t) -> UInt64 {
    get {
      let (block, at) = Int(slab.index).quotientAndRemainder(dividingBy: Self.slabsPerBlock)
      return blocks.block(block)?[at].relaxed ?? 0
    }
    nonmutating set {
      let (block, at) = Int(slab.index).quotientAndRemainder(dividingBy: Self.slabsPerBlock)
      blocks.madeBlock(block)?[at].store(relaxed: newValue)
    }
  }
}
