// SPDX-License-Identifier: MIT
// The sums of the entries of each page, in ordinary memory: when a page is lost, the costs of its entries are lost with it, and
// the totals have to stay exact all the same.

import CPurgeable

/// The sums of the living entries whose headers lie in one page. 16 bytes for every page that holds entries.
struct PageSum {
  private var lowCost: UInt64 = 0
  var byteCount: UInt32 = 0
  var count: UInt16 = 0
  /// A page holds fewer than 2^15 entries, so their costs need 15 bits more than one cost; the top bit is `isLost`.
  private var highCost: UInt16 = 0

  private static let lostBit: UInt16 = 1 << 15

  static var lost: PageSum {
    var sum = PageSum()
    sum.highCost = lostBit
    return sum
  }

  /// The page was lost, and what it held is off the books; entries of it that are still in the index add up to nothing.
  var isLost: Bool { highCost & Self.lostBit != 0 }

  var cost: UInt128 {
    get { UInt128(highCost & ~Self.lostBit) << 64 | UInt128(lowCost) }
    set {
      assert(newValue >> 79 == 0, "PurgeableCache: a page's costs need more bits than there are")
      lowCost = UInt64(truncatingIfNeeded: newValue)
      highCost = highCost & Self.lostBit | UInt16(truncatingIfNeeded: newValue >> 64) & ~Self.lostBit
    }
  }
}

/// The sums of all pages of a heap: the first ones lie in the home of an index, the others in blocks that are mapped as the heap
/// grows.
///
/// `@unchecked Sendable`: the directory and its blocks are published atomically; a page's sum is touched only under the mutex of
/// the shard that its slab belongs to.
@safe struct PageSums: @unchecked Sendable {
  private let first: UnsafeMutablePointer<PageSum>
  private let firstCount: Int
  /// The address of the directory of blocks; 0 as long as there is none.
  private let directory: SlotPointer
  private let pageShift: UInt64

  private static let pagesPerBlock = 16384
  private static let blockCount = 4096
  private static var blockBytes: Int { pagesPerBlock * MemoryLayout<PageSum>.stride }
  private static var directoryBytes: Int { blockCount * MemoryLayout<UInt64>.stride }

  /// The first sums lie in the home of this index, which has to live as long.
  init(_ index: SlotIndex) {
    let notes = unsafe index.notes
    // Safe: the notes are 16-byte aligned, zeroed, and used here only.
    unsafe first = notes.baseAddress!.bindMemory(to: PageSum.self, capacity: notes.count / MemoryLayout<PageSum>.stride)
    firstCount = notes.count / MemoryLayout<PageSum>.stride
    directory = index.ownersWord
    pageShift = UInt64((purgeable_page_size_bytes() / 16).trailingZeroBitCount)
  }

  func destroy() {
    guard let blocks = SlotPointer(address: directory.acquired) else { return }
    for i in 0..<Self.blockCount {
      if let start = SlotPointer(address: blocks[i].relaxed) { unsafe purgeable_bookkeeping_unmap(start.raw, Self.blockBytes) }
    }
    unsafe purgeable_bookkeeping_unmap(blocks.raw, Self.directoryBytes)
  }

  /// Makes sure that the sum of a place's page can be kept. False: no memory, or a place beyond what slots can name.
  func prepare(place: UInt64) -> Bool {
    assert(place < Slot.placeLimit, "PurgeableCache: a place that no slot can name")
    let page = Int(place >> pageShift)
    if page < firstCount { return true }
    let number = page / Self.pagesPerBlock
    guard number < Self.blockCount, let blocks = directory.mapped(Self.directoryBytes) else { return false }
    return blocks[number].mapped(Self.blockBytes) != nil
  }

  /// The sum of a place's page; nil when the place was not prepared, as in a forked child.
  func sum(at place: UInt64) -> UnsafeMutablePointer<PageSum>? {
    let page = Int(place >> pageShift)
    if page < firstCount { return unsafe first + page }
    guard page / Self.pagesPerBlock < Self.blockCount, let blocks = SlotPointer(address: directory.acquired) else { return nil }
    let address = blocks[page / Self.pagesPerBlock].acquired
    guard let block = unsafe UnsafeMutablePointer<PageSum>(bitPattern: UInt(address)) else { return nil }
    return unsafe block + page % Self.pagesPerBlock
  }
}
