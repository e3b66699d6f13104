// SPDX-License-Identifier: MIT
// Words and moments for each slab, in ordinary memory that is mapped when the first one is set.

import CPurgeable

/// A few words for each slab, by the slab's index; zeros at first. They are read and written under the mutex of the slab's shard.
struct SlabWords: Sendable {
  private let blocks: BlockTable
  private let wordsPerSlab: Int

  private static let slabsPerBlock = 16_384

  init(at word: SlotPointer, perSlab wordsPerSlab: Int) {
    self.wordsPerSlab = wordsPerSlab
    blocks = BlockTable(at: word, blockBytes: Self.slabsPerBlock * wordsPerSlab * MemoryLayout<UInt64>.stride)
  }

  func destroy() { blocks.destroy() }

  /// The first word of a slab; nil where none was made. `isMade`: makes them, unless there is no memory for it.
  func first(of slab: purgeable_slab_t, isMade: Bool = false) -> SlotPointer? {
    let (number, at) = Int(slab.index).quotientAndRemainder(dividingBy: Self.slabsPerBlock)
    return (isMade ? blocks.madeBlock(number) : blocks.block(number))?[at * wordsPerSlab]
  }
}

/// A moment for each slab.
struct SlabMoments: Sendable {
  private let words: SlabWords

  init(at word: SlotPointer) { words = SlabWords(at: word, perSlab: 1) }

  func destroy() { words.destroy() }

  /// 0 where none was set, or there is no memory for it.
  subscript(slab: purgeable_slab_t) -> UInt64 {
    get { words.first(of: slab)?.relaxed ?? 0 }
    nonmutating set { words.first(of: slab, isMade: true)?.store(relaxed: newValue) }
  }
}
