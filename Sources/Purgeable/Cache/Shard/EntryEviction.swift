// SPDX-License-Identifier: MIT
// The walk to the next entry to go, through the two queues of a shard.

import CPurgeable

/// Evicts the one entry that the order names.
struct EntryEviction {
  let reason: DepartureReason

  /// False when no entry could be evicted.
  func run(in held: inout HeldShard) -> Bool {
    assert(!held.books.isSettling, "PurgeableCache: an eviction entry by entry while settling")
    let before = held.slots.count
    if reason.cause != .relief { held.index.noteEviction() }
    if reason == .cost, held.books.cost == 0 { return false }
    var looks = 0
    var kept = 0
    while held.slots.count > 0 {
      looks += 1
      // Every entry can be passed on three times at most; beyond that the books and the queues disagree.
      if looks > 4 * before + 1024 { break }
      let queue = held.nextQueue(reason)
      guard let reference = nextElement(queue, &held) ?? nextElement(queue.other, &held) else { break }
      switch settle(reference, kept, &held) {
      case .evicted: return true
      case .lost:
        if held.passLost(reference) { return true }
      case .kept: kept += 1
      case .unknown: continue
      }
    }
    // Nothing was evicted from the queues. Slots that are left may belong to lost entries.
    held.sweepLost()
    return held.slots.count < before
  }

  /// The next living element of a queue, from where the last eviction stopped.
  private func nextElement(_ queue: EvictionQueue, _ held: inout HeldShard) -> purgeable_reference_t? {
    var cursor = held.queues[queue.rawValue].cursor
    defer { held.queues[queue.rawValue].cursor = cursor }
    var wraps = 0
    while wraps < 2 {
      if cursor.slab.isNone {
        wraps += 1
        cursor = EvictionCursor(slab: held.heap.oldest(of: held.stream(queue)) ?? .none)
        if cursor.slab.isNone { return nil }
      }
      if reason == .cost { passPagesWithoutCost(&cursor, held) }
      if let reference = held.heap.nextElement(of: cursor.slab, &cursor.element) { return reference }
      // No more elements in this slab: on to the next one, or to the front of the queue when the slab was given back. Elements
      // that stay are looked at again after a wrap.
      cursor = EvictionCursor(slab: held.heap.next(after: cursor.slab) ?? .none)
    }
    return nil
  }

  /// Moves the cursor past pages whose entries cost nothing together, without a look at the entries. Evicting them would free no
  /// cost.
  private func passPagesWithoutCost(_ cursor: inout EvictionCursor, _ held: borrowing HeldShard) {
    let start = held.heap.start(of: cursor.slab)
    let pageGranules = UInt32(SlabHeap.granulesPerPage)
    while UInt64(cursor.element) < held.heap.granulesPerSlab,
      let sum = unsafe held.base.pageSums.sum(at: start + UInt64(cursor.element)), unsafe sum.pointee.cost == 0
    {
      cursor.element = (cursor.element / pageGranules + 1) * pageGranules
    }
  }

  /// Evicts one living element, or passes it on to main. `kept`: how many this eviction has passed on before.
  private func settle(_ reference: purgeable_reference_t, _ kept: Int, _ held: inout HeldShard) -> Settled {
    guard let facts = held.elements.facts(of: reference) else { return .lost }
    guard let found = held.index.find(identity: facts.identity, place: reference.place) else { return .unknown }
    var rule = held.order.rule(held.heap.queue(at: found.slot.place), reason.cause, kept: kept)
    let settled = held.settle(FoundEntry(found: found, facts: facts), reason, &rule)
    // A later page of the entry is lost, and its header's page is not: this entry goes alone.
    if case .lost = settled, held.elements.isGone(reference.place) {
      held.drop(found, .discarded)
      return .evicted
    }
    return settled
  }
}
