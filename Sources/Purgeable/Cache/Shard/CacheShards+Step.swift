// SPDX-License-Identifier: MIT
// From one shard to several, and back.
//
// One shard keeps one order of eviction and costs little; several let as many threads store at a time. So a cache begins with
// one, the founder, opens the others when it has grown, and goes back to the founder when a limit is set that wants one order.
//
//     all mutexes   the founder's, then the others' in the order of their numbers; no other thread stores or removes
//     copy          every entry, oldest first, to the queue it was in, now in its target's stream; its slot into the target's
//                   index
//     publish       the mask (release)
//     empty         the sources' indexes: first each one's version is raised (release), then its slots are emptied
//     free          the sources' elements; their slabs are given back
//
// Large entries are not copied: their slab changes its stream, and their old slot leads to the same place as the new one. If
// memory runs out before the mask is published, the step is undone: the copies are freed, and the cache goes on as it was.
//
// Why a read that starts after a write has returned sees it, although reads take no mutex:
//
//  1. A writer works under the mutex of the shard that the mask leads to, and looks at the mask again under it. The mask changes
//     only with the mutexes of all shards held that it leads to, so a write happens wholly before a step or wholly after it.
//     Before: its entry is copied. After: it goes to the new shard, and a thread that knows of the write's return sees the mask,
//     which was published before.
//  2. A reader that loaded the new mask (acquire) sees what was published with it: all copies, and their slots.
//  3. A reader that loaded the old mask finds the old slot or finds it emptied. With the old slot: the bytes of its element are
//     those from when the step began, until the element is freed; after that, the reader finds another generation or an emptied
//     slot, and looks again. The value that it returns was the key's value when it loaded the mask, which is after the read
//     began.
//  4. A reader that finds the slot emptied sees the raised version as well (the slot's release after the version's), drops the
//     result of its look-up, and begins again with the mask.
//  5. A reader may find no slot because it came late: it loaded the old mask, then the raised version. The mask that it loads
//     once more after its look (the fence in `isCurrent` keeps the order) is then not the one it began with: the mask was
//     published before the version.
//  6. The mask may have been changed and changed back meanwhile. Then the index that the reader looks at was emptied after the
//     mask was loaded. If it was emptied after its version was loaded, the version tells, as in 4. If before, either 5 holds, or
//     the mask was back by then and the index was complete from the version's load to its check.
//
// A fork waits for all of these mutexes, so a child sees all of a step or nothing (ForkGuard.swift).

import CPurgeable
import Synchronization

extension CacheShards {
  // MARK: When

  /// The number of shards that the limits allow, a power of two; 1 for the founder alone.
  var wantedShardCount: Int {
    guard base.limits.cost.load(ordering: .relaxed) == .max else { return 1 }
    var count = ShardSizes.otherCount
    let bytes = base.limits.bytes.load(ordering: .relaxed)
    if bytes != .max { count = min(count, bytes / (base.heap.slabBytes * sizes.slabsPerShard.load(ordering: .relaxed))) }
    let entries = base.limits.count.load(ordering: .relaxed)
    if entries != .max { count = min(count, entries / sizes.entriesPerShard.load(ordering: .relaxed)) }
    return count < 2 ? 1 : 1 << (Int.bitWidth - 1 - count.leadingZeroBitCount)
  }

  /// Whether the entries are so few that a step takes no longer than a store may take.
  var isSmallEnough: Bool {
    let count = base.count
    let copied = min(base.heldBytes, max(0, count) * (base.heap.slabBytes / 2))
    return count <= ShardSizes.largest * sizes.count.load(ordering: .relaxed)
      && copied <= ShardSizes.largest * sizes.byteCount.load(ordering: .relaxed)
  }

  /// Called after limits may have changed. Goes back to the founder when fewer shards are wanted and the cache is small enough,
  /// and sets the sizes at which the others open. (A larger cache keeps its shards: with so many entries in each, eviction by
  /// their age is as good as one order.)
  func reviewShards() {
    if mask.load(ordering: .relaxed) != 0, openCount > wantedShardCount, isSmallEnough { closeShards() }
    reviewOpening()
  }

  func reviewOpening() {
    let mayOpen = wantedShardCount > 1
    let limit = base.limits.bytes.load(ordering: .relaxed)
    opensAtCount.store(mayOpen ? sizes.count.load(ordering: .relaxed) : .max, ordering: .relaxed)
    // The old and the new copies have to fit the limit together.
    opensAtBytes.store(mayOpen ? min(sizes.byteCount.load(ordering: .relaxed), limit / 4) : .max, ordering: .relaxed)
  }

  /// Called after each store, with no mutex held.
  @inline(__always)
  func openIfLarge() {
    guard mask.load(ordering: .relaxed) == 0,
      base.count >= opensAtCount.load(ordering: .relaxed)
        || base.heldBytes >= opensAtBytes.load(ordering: .relaxed)
    else { return }
    openShards()
  }

  // MARK: The two steps

  /// Opens as many shards as are wanted. Takes some 10 ms, once; reactions to pressure never call it.
  @inline(never)
  func openShards() {
    founder.held.lock()
    let count = wantedShardCount
    guard mask.load(ordering: .relaxed) == 0, count > 1, isSmallEnough, let others = makeOthers() else {
      founder.held.unlock()
      return postponeOpening()
    }
    let targets = others.others
    for target in targets { target.held.lock() }
    healAll(others.all)
    let isDone = transfer(from: [founder], to: targets, mask: EngineKey.firstOther | UInt64(count - 1))
    deliver(unlockAll(others.all))
    if !isDone { postponeOpening() }
  }

  /// Puts the next attempt off until the cache has grown by a quarter, or its limits were changed.
  private func postponeOpening() {
    guard mask.load(ordering: .relaxed) == 0 else { return }
    let count = max(0, base.count)
    opensAtCount.store(max(opensAtCount.load(ordering: .relaxed), count + count / 4 + 1), ordering: .relaxed)
    let held = base.heldBytes
    opensAtBytes.store(max(opensAtBytes.load(ordering: .relaxed), held + held / 4 + 1), ordering: .relaxed)
  }

  /// Goes back to the founder. False when there is no memory for the copies; the shards then stay open.
  @inline(never)
  @discardableResult
  func closeShards() -> Bool {
    founder.held.lock()
    guard mask.load(ordering: .relaxed) != 0, let others = others.load() else {
      founder.held.unlock()
      return true
    }
    for source in others.others { source.held.lock() }
    healAll(others.all)
    let isDone = transfer(from: others.others, to: [founder], mask: 0)
    deliver(unlockAll(others.all))
    return isDone
  }

  private func healAll(_ shards: [EngineShard]) {
    for shard in shards where shard.index.isWiped { shard.held.whileHeld { $0.beginAnew() } }
  }

  /// Releases the mutexes. Returns the departures of all shards.
  private func unlockAll(_ shards: [EngineShard]) -> DepartureList {
    var departed = DepartureList()
    for shard in shards.reversed() {
      departed.append(shard.held.whileHeld { $0.departures.take() })
      shard.held.unlock()
    }
    return departed
  }

  // MARK: Moving everything

  /// Moves all entries. All mutexes are held. False when there is no memory for the copies; everything is then as it was.
  private func transfer(from sources: [EngineShard], to targets: [EngineShard], mask new: UInt64) -> Bool {
    assert(new == 0 ? targets.count == 1 : sources.count == 1, "PurgeableCache: a step goes from the founder, or to it")
    let step = ShardStep(base, sources, targets, mask: new, was: mask.load(ordering: .relaxed))
    // The totals change only by entries that are found lost.
    for shard in sources + targets { shard.held.whileHeld { $0.books.beginSettling() } }
    let isDone = step.copyAll()
    if isDone {
      base.openCount.store(Self.count(behind: new), ordering: .relaxed)
      mask.store(new, ordering: .releasing)
      steps.add(1, ordering: .releasing)
      step.freeSources()
    } else {
      step.freeTargets()
    }
    for shard in sources + targets { shard.held.whileHeld { $0.books.endSettling() } }
    return isDone
  }
}
