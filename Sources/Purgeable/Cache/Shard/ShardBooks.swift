// SPDX-License-Identifier: MIT
// The books of a shard: the sums of its entries by queue and by page (PageSums.swift). Sums by page keep the books exact,
// whichever page the kernel takes.

import CPurgeable
import Synchronization

/// Used under the shard's mutex.
struct ShardBooks: ~Copyable {
  private let pageSums: PageSums
  private let totals: CacheTotals
  private(set) var sums = EachQueue<QueueSums>(repeating: QueueSums())
  private let index: SlotIndex
  /// Whether entries whose values are lost stay.
  private let keepsLost: Bool
  /// Lost entries that stay: the hollow ones, and those that no pass has made hollow yet.
  private(set) var lostCount = 0
  /// The index's bytes as they are in the totals. Not kept in the index itself, which is wiped in a forked child.
  private var indexBytes = 0

  /// `index`: where the sums are published.
  init(_ pageSums: PageSums, _ totals: CacheTotals, _ index: SlotIndex, keepsLost: Bool) {
    (self.pageSums, self.totals, self.index, self.keepsLost) = (pageSums, totals, index, keepsLost)
  }

  subscript(queue: EvictionQueue) -> QueueSums { sums[queue.rawValue] }

  var count: Int { sum { $0.count } }
  /// With the lost entries that stay.
  var entryCount: Int { count + lostCount }
  var cost: UInt128 { sum { $0.cost } }
  var byteCount: Int { sum { $0.byteCount } }

  @inline(__always) private func sum<Part: AdditiveArithmetic>(_ part: (QueueSums) -> Part) -> Part {
    var sum = Part.zero
    for i in 0..<EvictionQueue.count { sum += part(sums[i]) }
    return sum
  }

  // MARK: Coming and leaving

  /// Adds a new entry.
  mutating func book(_ place: UInt64, _ queue: EvictionQueue, cost: UInt64, byteCount: Int) {
    pageSums.withSum(at: place) { sum in
      // The page was lost before: this is the first entry since then.
      if sum.isLost { sum = PageSum() }
      sum.cost &+= UInt128(cost)
      sum.byteCount &+= UInt32(truncatingIfNeeded: byteCount)
      sum.count &+= 1
    }
    add(1, Int128(cost), byteCount, queue)
  }

  /// Takes off an entry that leaves.
  mutating func unbook(_ place: UInt64, _ queue: EvictionQueue, cost: UInt64, byteCount: Int) {
    var wasLost = false
    pageSums.withSum(at: place) { sum in
      wasLost = sum.isLost
      if wasLost { return }
      assert(sum.count > 0 && sum.cost >= UInt128(cost), "PurgeableCache: more leaves a page than came")
      sum.cost &-= UInt128(cost)
      sum.byteCount &-= UInt32(truncatingIfNeeded: byteCount)
      sum.count &-= 1
    }
    if wasLost { return }
    add(-1, -Int128(cost), -byteCount, queue)
  }

  /// Takes off all entries of a lost page at once, when the first of them is found lost.
  mutating func unbookLostPage(_ place: UInt64, _ queue: EvictionQueue) {
    guard let lost = emptyPage(at: place, leaving: .lost) else { return }
    if keepsLost { lostCount += Int(lost.count) }
    add(-Int(lost.count), -Int128(lost.cost), -Int(lost.byteCount), queue)
  }

  /// Takes off all entries of a page that is not lost.
  mutating func unbookPage(_ place: UInt64, _ queue: EvictionQueue) {
    guard let all = emptyPage(at: place, leaving: PageSum()), all.count > 0 else { return }
    add(-Int(all.count), -Int128(all.cost), -Int(all.byteCount), queue)
  }

  /// What the sum of a page was; nil, with nothing changed, where the page was lost before.
  private func emptyPage(at place: UInt64, leaving rest: PageSum) -> PageSum? {
    var all: PageSum?
    pageSums.withSum(at: place) { sum in
      if sum.isLost { return }
      (all, sum) = (sum, rest)
    }
    return all
  }

  private mutating func add(_ count: Int, _ cost: Int128, _ byteCount: Int, _ queue: EvictionQueue) {
    let at = queue.rawValue
    sums[at].count += count
    sums[at].byteCount += byteCount
    assert(sums[at].count >= 0 && sums[at].byteCount >= 0, "PurgeableCache: more leaves a queue than came")
    let old = sums[at].cost
    let magnitude = cost.magnitude
    sums[at].cost = cost >= 0 ? old + magnitude : old - min(old, magnitude)
    if queue == .pinned { totals.pinnedBytes.add(byteCount, ordering: .relaxed) }
    publish()
  }

  private func publish() { index.publish(count: entryCount, cost: cost) }

  /// Called when a lost entry that stays comes, or leaves.
  mutating func addLost(_ count: Int) {
    if !keepsLost { return }
    lostCount += count
    assert(lostCount >= 0, "PurgeableCache: more lost entries leave than came")
    publish()
  }

  /// Takes off all that is left: in a forked child, and in a shard of which everything was removed.
  mutating func forgetAll() {
    lostCount = 0
    for queue in EvictionQueue.all {
      let rest = self[queue]
      add(-rest.count, -Int128(truncatingIfNeeded: rest.cost), -rest.byteCount, queue)
    }
  }

  /// Called after the index was made, grew, shrank, or began anew in a forked child.
  mutating func noteIndexBytes(_ now: Int) {
    assert(now >= SlotIndex.homeBytes, "PurgeableCache: an index has fewer bytes than its home")
    totals.indexBytes.add(now - indexBytes, ordering: .relaxed)
    indexBytes = now
  }

  // MARK: What is left of a page

  /// The length and the cost with which an entry is in the books. nil when its header's page is lost: then all entries of that
  /// page have to be taken off at once.
  func booked(
    _ slot: Slot, _ facts: EntryFacts?, _ elements: ElementReader, _ index: SlotIndex
  ) -> (byteCount: Int, cost: UInt64)? {
    if let facts, let cost = elements.cost(of: slot, facts) { return (facts.payloadByteCount, cost) }
    // Key or cost lie on a later page, and that page is lost.
    guard let length = elements.length(elements.heap.reference(slot.place)),
      let cost = costLeftOver(at: slot.place, elements, index)
    else { return nil }
    return (length, cost)
  }

  /// The cost of an entry that can no longer be read though its header's page is intact: the page's sum less the costs of its
  /// other entries. Only the last element of a page reaches beyond the page, so all others can be read. nil when the page is lost
  /// by now.
  private func costLeftOver(at place: UInt64, _ elements: ElementReader, _ index: SlotIndex) -> UInt64? {
    guard let sum = pageSums.sum(at: place), !sum.isLost else { return nil }
    let heap = elements.heap
    var cost = sum.cost
    if sum.count > 1 {
      let slab = heap.slab(of: heap.reference(place))
      guard heap.information(slab) != nil else { return nil }
      let start = place / SlabHeap.granulesPerPage * SlabHeap.granulesPerPage
      var cursor = UInt32(truncatingIfNeeded: start - heap.start(of: slab))
      while let other = heap.nextElement(of: slab, &cursor), other.place < start + SlabHeap.granulesPerPage {
        if other.place == place { continue }
        guard let facts = elements.facts(of: other) else { return nil }
        // An element without a slot is being stored or freed, and is not in the sum.
        guard let its = index.find(identity: facts.identity, place: other.place) else { continue }
        guard let itsCost = elements.cost(of: its.slot, facts) else { return nil }
        cost -= min(cost, UInt128(itsCost))
      }
    }
    return UInt64(clamping: cost)
  }
}
