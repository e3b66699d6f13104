// SPDX-License-Identifier: MIT
// Ordinary memory that grows with the heap: blocks of zeros by number, mapped when they are needed, which never move.
//
//     word in an index's home --> directory --> block, block, ...

import CPurgeable

/// Blocks and directory are published atomically; what is in a block is its user's to guard.
struct BlockTable: Sendable {
  /// The directory's address; 0 as long as there is none.
  private let directory: SlotPointer
  private let blockBytes: Int

  private static let blockCount = 4096
  private static var directoryBytes: Int { blockCount * MemoryLayout<UInt64>.stride }

  /// `word`: zero at first, and there as long as the table is.
  init(at word: SlotPointer, blockBytes: Int) { (directory, self.blockBytes) = (word, blockBytes) }

  func destroy() {
    guard let blocks = SlotPointer(address: directory.acquired) else { return }
    for i in 0..<Self.blockCount {
      if let block = SlotPointer(address: blocks[i].relaxed) { unsafe purgeable_bookkeeping_unmap(block.raw, blockBytes) }
    }
    unsafe purgeable_bookkeeping_unmap(blocks.raw, Self.directoryBytes)
  }

  /// nil where the block was not made, as in a forked child.
  func block(_ number: Int) -> SlotPointer? {
    // Acquire, twice: pairs with the exchange in `mapped`.
    guard number < Self.blockCount, let blocks = SlotPointer(address: directory.acquired) else { return nil }
    return SlotPointer(address: blocks[number].acquired)
  }

  /// Makes the block, unless it is there. nil without memory, and for a number beyond all.
  func madeBlock(_ number: Int) -> SlotPointer? {
    guard number < Self.blockCount, let blocks = mapped(directory, Self.directoryBytes) else { return nil }
    return mapped(blocks[number], blockBytes)
  }

  /// The memory whose address a word holds, mapped now if it is not yet; nil when there is no memory.
  private func mapped(_ word: SlotPointer, _ byteCount: Int) -> SlotPointer? {
    // Acquire: pairs with the exchange.
    if let there = SlotPointer(address: word.acquired) { return there }
    guard let raw = unsafe purgeable_bookkeeping_map(byteCount) else { return nil }
    let (exchanged, original) = word.exchange(0, for: UInt64(UInt(bitPattern: raw)))
    if exchanged { return unsafe SlotPointer(raw, count: byteCount / 8) }
    // Another thread was first.
    unsafe purgeable_bookkeeping_unmap(raw, byteCount)
    return SlotPointer(address: original)
  }
}
