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
/// `@unchecked Sendable`: a page's sum is touched only under the mutex of the shard that its slab belongs to.
@safe struct PageSums: @unchecked Sendable {
  private let first: UnsafeMutablePointer<PageSum>
  private let firstCount: Int
  private let blocks: BlockTable
  private let pageShift: UInt64

  private static let pagesPerBlock = 16384

  /// The first sums lie in the home of this index, which has to live as long.
  init(_ index: SlotIndex) {
    let notes = unsafe index.notes
    // Safe: the notes are 16-byte aligned, zeroed, and used here only.
    unsafe first = notes.baseAddress!.bindMemory(to: PageSum.self, capacity: notes.count / MemoryLayout<PageSum>.stride)
    firstCount = notes.count / MemoryLayout<PageSum>.stride
    blocks = BlockTable(at: index.sumsWord, blockBytes: Self.pagesPerBlock * MemoryLayout<PageSum>.stride)
    pageShift = UInt64((purgeable_page_size_bytes() / 16).trailingZeroBitCount)
  }

  func destroy() { blocks.destroy() }

  /// Makes sure that the sum of a place's page can be kept. False: no memory, or a place beyond what slots can name.
  func prepare(place: UInt64) -> Bool {
    assert(place < Slot.placeLimit, "PurgeableCache: a place that no slot can name")
    let page = Int(place >> pageShift)
    return page < firstCount || blocks.madeBlock(page / Self.pagesPerBlock) != nil
  }

  /// Runs `body` with the sum of a place's page; not when the place was not prepared, as in a forked child. (Not generic: also
  /// used in forked children.)
  @inline(__always)
  func withSum(at place: UInt64, _ body: (inout PageSum) -> Void) {
    let page = Int(place >> pageShift)
    if page < firstCount { return unsafe body(&first[page]) }
    guard let block = blocks.block(page / Self.pagesPerBlock) else { return }
    // Safe: zeros are a sum, and nothing else is in these blocks.
    unsafe body(&block.raw.assumingMemoryBound(to: PageSum.self)[page % Self.pagesPerBlock])
  }

  func sum(at place: UInt64) -> PageSum? {
    var found: PageSum?
    withSum(at: place) { found = $0 }
    return found
  }
}
