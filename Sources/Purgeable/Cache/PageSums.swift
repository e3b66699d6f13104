// SPDX-License-Identifier: MIT
// What the entries of each page add up to, in ordinary memory: when a page is lost, its entries' costs went with it, and totals
// have to stay exact all the same.

import CPurgeable
import Synchronization

/// The living entries whose headers lie in one page. 16 bytes for every page that holds entries.
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
      lowCost = UInt64(truncatingIfNeeded: newValue)
      highCost = highCost & Self.lostBit | UInt16(truncatingIfNeeded: newValue >> 64) & ~Self.lostBit
    }
  }
}

/// The sums of all pages of a heap, mapped in blocks as the heap grows.
///
/// `@unchecked Sendable`: blocks are published atomically; a page's sum is touched only under the mutex of the shard that its slab
/// belongs to.
@safe struct PageSums: @unchecked Sendable {
  private let blocks: UnsafeMutablePointer<Atomic<UInt>>
  private let pageShift: UInt64

  private static let pagesPerBlock = 16384
  private static let blockCount = 4096
  private static var blockBytes: Int { pagesPerBlock * MemoryLayout<PageSum>.stride }

  init?() {
    guard let raw = unsafe purgeable_bookkeeping_map(Self.blockCount * MemoryLayout<UInt>.stride) else { return nil }
    unsafe blocks = raw.bindMemory(to: Atomic<UInt>.self, capacity: Self.blockCount)
    let granulesPerPage = purgeable_page_size_bytes() / 16
    pageShift = UInt64(granulesPerPage.trailingZeroBitCount)
  }

  func destroy() {
    for i in 0..<Self.blockCount {
      let address = unsafe blocks[i].load(ordering: .relaxed)
      if let start = unsafe UnsafeMutableRawPointer(bitPattern: address) {
        unsafe purgeable_bookkeeping_unmap(start, Self.blockBytes)
      }
    }
    unsafe purgeable_bookkeeping_unmap(blocks, Self.blockCount * MemoryLayout<UInt>.stride)
  }

  /// Makes sure that the sum of a place's page can be kept. False: no memory, or a place beyond what slots can name.
  func prepare(place: UInt64) -> Bool {
    let number = Int(place >> pageShift) / Self.pagesPerBlock
    guard number < Self.blockCount else { return false }
    if unsafe blocks[number].load(ordering: .acquiring) != 0 { return true }
    guard let raw = unsafe purgeable_bookkeeping_map(Self.blockBytes) else { return false }
    let (exchanged, _) = unsafe blocks[number].compareExchange(
      expected: 0, desired: UInt(bitPattern: raw), ordering: .acquiringAndReleasing)
    // Another shard was first.
    if !exchanged { unsafe purgeable_bookkeeping_unmap(raw, Self.blockBytes) }
    return true
  }

  /// The sum of the page around a place that was prepared; nil where none was (also in a forked child).
  func sum(at place: UInt64) -> UnsafeMutablePointer<PageSum>? {
    let page = Int(place >> pageShift)
    guard page / Self.pagesPerBlock < Self.blockCount else { return nil }
    let address = unsafe blocks[page / Self.pagesPerBlock].load(ordering: .acquiring)
    guard let block = unsafe UnsafeMutablePointer<PageSum>(bitPattern: address) else { return nil }
    return unsafe block + page % Self.pagesPerBlock
  }
}
