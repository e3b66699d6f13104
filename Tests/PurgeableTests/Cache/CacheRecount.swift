// SPDX-License-Identifier: MIT
// Recounting the books: the entries in the indexes and the elements in the heap, against every sum that is kept.

import CPurgeable
import Synchronization

@testable import Purgeable

/// The entries of one page as a walk finds them.
private struct PageRecount {
  var count = 0
  var byteCount = 0
  var cost: UInt128 = 0
  /// The length of some entry, or its cost, is on a lost page.
  var hasUnknownBytes = false
  var hasUnknownCost = false

  /// `length`, `cost`: nil where they are not known.
  mutating func add(length: Int?, cost entryCost: UInt64?) {
    count += 1
    if let length { byteCount += length } else { hasUnknownBytes = true }
    if let entryCost { cost += UInt128(entryCost) } else { hasUnknownCost = true }
  }
}

/// The recount of all shards.
private struct Recount {
  var failures: [String] = []
  var count = 0
  var cost: UInt128 = 0

  mutating func expect(_ condition: Bool, _ what: @autoclosure () -> String) {
    if !condition, failures.count < 20 { failures.append(what()) }
  }
}

extension CacheShards {
  /// Compares every sum with a recount, under the mutexes of all shards, so the sums have to agree whatever other threads are
  /// doing. Returns a message for each difference. Cost: a look at every entry.
  func checkBooks() -> [String] {
    var recount = Recount()
    check(from: 0, &recount)
    return recount.failures
  }

  /// Checks one shard and, within its mutex, all shards after it.
  private func check(from number: Int, _ recount: inout Recount) {
    guard number < all.count else {
      let count = base.count
      let cost = base.totalCost
      let (shardsCount, shardsCost) = (recount.count, recount.cost)
      recount.expect(count == shardsCount, "the total count is \(count), shards add up to \(shardsCount)")
      recount.expect(cost == shardsCost, "the total cost is \(cost), shards add up to \(shardsCost)")
      return
    }
    recount = all[number].held.withLock { [recount] held in
      var recount = recount
      if !held.index.isWiped { recount.check(held) }
      check(from: number + 1, &recount)
      return recount
    }
  }
}

extension Recount {
  fileprivate mutating func check(_ held: borrowing HeldShard) {
    let who = "shard \(held.number)"
    var (pages, slotCount) = recountPages(held)
    let notedSlots = held.slots.count
    expect(slotCount == notedSlots, "\(who): \(slotCount) slots, \(notedSlots) noted")
    if let order = held.entryOrder { checkOrder(order, held, who) }
    var livingCount = 0
    for queue in EvictionQueue.all {
      var sums = QueueSums()
      for lane in Lanes(Lane.numberLimit, of: queue.rawValue..<queue.rawValue + 1) {
        for slab in held.heap.slabs(of: held.stream(lane)) {
          livingCount += checkSlab(slab, held, &pages, &sums, "\(who), \(lane), slab \(slab.index)")
        }
      }
      let kept = held.books[queue]
      expect(
        sums.count == kept.count && sums.cost == kept.cost && sums.byteCount == kept.byteCount,
        "\(who), \(queue): kept \(kept), pages add up to \(sums)")
      count += kept.count
      cost += kept.cost
    }
    expect(pages.isEmpty, "\(who): entries on pages of no slab of this shard: \(pages.count)")
    expect(livingCount == slotCount, "\(who): \(livingCount) living elements, \(slotCount) slots")
    let hollow = held.keys.hollowCount
    let lost = held.base.keepsLost ? slotCount - held.books.count + hollow : 0
    let noted = held.books.lostCount
    expect(lost == noted, "\(who): \(lost) lost entries stay, \(noted) noted")
    count += lost
  }

  /// Compares an order that names entries with the index.
  private mutating func checkOrder(_ order: any EntryOrder, _ held: borrowing HeldShard, _ who: String) {
    var (named, position) = (Set<UInt32>(), order.next(after: nil))
    while let now = position, named.insert(now).inserted { position = order.next(after: now) }
    expect(position == nil, "\(who): the order names an entry twice")
    let isRight = named.allSatisfy { held.index.current().slots?[Int($0)].relaxed ?? 0 != 0 }
    expect(isRight && named.count == held.slots.count, "\(who): the order names other entries than there are")
  }

  /// Compares the sums of a slab's pages with the recount, and adds the sums up. Returns how many elements live in the slab.
  private mutating func checkSlab(
    _ slab: purgeable_slab_t, _ held: borrowing HeldShard, _ pages: inout [UInt64: PageRecount], _ sums: inout QueueSums,
    _ who: String
  ) -> Int {
    let heap = held.heap
    guard let information = heap.information(slab) else { return 0 }
    for place in heap.pages(of: slab) {
      let found = pages.removeValue(forKey: place / SlabHeap.granulesPerPage) ?? PageRecount()
      guard let sum = held.base.pageSums.sum(at: place) else {
        expect(found.count == 0, "\(who): \(found.count) entries on a page without a sum")
        continue
      }
      if sum.isLost {
        // Entries are off the books rightly only when their page is lost.
        let isGone = heap.isLost(place)
        expect(found.count == 0 || isGone, "\(who): \(found.count) entries of a page that stands are off the books")
        continue
      }
      // Where a page that was lost went again, between an entry's commit and its booking, the sum has that entry alone.
      let isPart = sum.count < found.count && heap.isLost(place)
      expect(
        sum.count == found.count || isPart, "\(who): a page's sum says \(sum.count) entries, there are \(found.count)")
      expect(
        isPart || found.hasUnknownBytes || Int(sum.byteCount) == found.byteCount,
        "\(who): a page's sum says \(sum.byteCount) bytes, there are \(found.byteCount)")
      expect(
        isPart || (found.hasUnknownCost ? sum.cost >= found.cost : sum.cost == found.cost),
        "\(who): a page's sum says a cost of \(sum.cost), there is \(found.cost)")
      sums.count += Int(sum.count)
      sums.cost += sum.cost
      sums.byteCount += Int(sum.byteCount)
    }
    return Int(information.element_count)
  }

  /// Recounts the entries of each page by the index. Returns also the number of slots in use.
  private func recountPages(_ held: borrowing HeldShard) -> (pages: [UInt64: PageRecount], slotCount: Int) {
    var pages: [UInt64: PageRecount] = [:]
    var slotCount = 0
    held.index.forEachSlot { slot in
      slotCount += 1
      let page = slot.place / SlabHeap.granulesPerPage
      let reference = held.heap.reference(slot.place)
      let length = held.elements.length(reference)
      var cost: UInt64?
      if let facts = held.elements.facts(of: reference) { cost = held.elements.cost(of: slot, facts) }
      pages[page, default: PageRecount()].add(length: length, cost: cost)
    }
    return (pages, slotCount)
  }
}
