// SPDX-License-Identifier: MIT
// The books of a shard: the sums of its entries by queue and by page (PageSums.swift). Sums by page keep the books exact,
// whichever page the kernel takes.

import CPurgeable
import Synchronization

/// Used under the shard's mutex.
struct ShardBooks: ~Copyable {
  private let base: CacheBase
  /// Where the sums are published.
  private let index: SlotIndex
  private(set) var sums = EachQueue<QueueSums>(repeating: QueueSums())
  /// Lost entries that stay: the hollow ones, and those that no pass has made hollow yet.
  private(set) var lostCount = 0
  /// The index's bytes as they are in the totals. Not kept in the index itself, which is wiped in a forked child.
  private var indexBytes = 0

  init(_ base: CacheBase, _ index: SlotIndex) { (self.base, self.index) = (base, index) }

  subscript(queue: EvictionQueue) -> QueueSums { sums[queue.rawValue] }

  // Inlined: to call one of these, all of the books would be copied.
  @inline(__always) var count: Int { sum { $0.count } }
  /// With the lost entries that stay.
  @inline(__always) var entryCount: Int { count + lostCount }
  @inline(__always) var cost: UInt128 { sum { $0.cost } }
  @inline(__always) var byteCount: Int { sum { $0.byteCount } }

  @inline(__always) private func sum<Part: AdditiveArithmetic>(_ part: (QueueSums) -> Part) -> Part {
    var sum = Part.zero
    for i in 0..<EvictionQueue.count { sum += part(sums[i]) }
    return sum
  }

  // MARK: Coming and leaving

  /// Adds a new entry.
  mutating func book(_ place: UInt64, _ queue: EvictionQueue, cost: UInt64, byteCount: Int) {
    base.pageSums.withSum(at: place) { sum in
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
    base.pageSums.withSum(at: place) { sum in
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

  /// Takes off all entries of a page at once, unless that was done before. `isLost`: when the first of them is found lost.
  mutating func unbookPage(_ place: UInt64, _ queue: EvictionQueue, isLost: Bool = false) {
    var all = PageSum()
    base.pageSums.withSum(at: place) { sum in
      if sum.isLost { return }
      (all, sum) = (sum, isLost ? .lost : PageSum())
    }
    if all.count == 0 { return }
    if isLost, base.keepsLost { lostCount += Int(all.count) }
    add(-Int(all.count), -Int128(all.cost), -Int(all.byteCount), queue)
  }

  private mutating func add(_ count: Int, _ cost: Int128, _ byteCount: Int, _ queue: EvictionQueue) {
    let at = queue.rawValue
    sums[at].count += count
    sums[at].byteCount += byteCount
    assert(sums[at].count >= 0 && sums[at].byteCount >= 0, "PurgeableCache: more leaves a queue than came")
    let old = sums[at].cost
    let magnitude = cost.magnitude
    sums[at].cost = cost >= 0 ? old + magnitude : old - min(old, magnitude)
    if queue == .pinned { base.totals.pinnedBytes.add(byteCount, ordering: .relaxed) }
    publish()
  }

  @inline(__always) private func publish() { index.publish(count: entryCount, cost: cost) }

  /// Called when a lost entry that stays comes, or leaves.
  mutating func addLost(_ count: Int) {
    if !base.keepsLost { return }
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
    base.totals.indexBytes.add(now - indexBytes, ordering: .relaxed)
    indexBytes = now
  }

  // MARK: What is left of a page

  /// The length and the cost with which an entry is in the books, of what could be read of it. nil when its header's page is
  /// lost: then all entries of that page have to be taken off at once.
  func booked(_ slot: Slot, _ parts: EntryParts) -> (byteCount: Int, cost: UInt64)? {
    if let facts = parts.facts, let head = parts.head { return (facts.payloadByteCount, facts.cost(head)) }
    // Key or cost lie on a later page, and that page is lost.
    guard let length = base.elements.length(base.heap.reference(slot.place)), let cost = costLeftOver(at: slot.place)
    else { return nil }
    return (length, cost)
  }

  /// The cost of an entry that can no longer be read though its header's page is intact: the page's sum less the costs of its
  /// other entries. Only the last element of a page reaches beyond the page, so all others can be read. nil when the page is lost
  /// by now.
  private func costLeftOver(at place: UInt64) -> UInt64? {
    guard let sum = base.pageSums.sum(at: place), !sum.isLost else { return nil }
    let (heap, elements) = (base.heap, base.elements)
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
