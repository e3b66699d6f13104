// SPDX-License-Identifier: MIT
// What a cache of bytes does in each step of a reaction (PressureReaction.swift).

import Synchronization

extension CacheEngine: PressureClient {
  /// What tells of departures and changes, the loads, and what is done at intervals.
  func forEachCompanion(_ body: (any ForkProtected) -> Void) {
    if let observer = base.observer {
      body(observer)
      if let companion = observer.companion { body(companion) }
    }
    if let loads { body(loads) }
    lazy.forEach(body)
  }

  var holdsAnything: Bool { base.heldBytes > 0 || base.keepsLost && base.count > 0 }

  var offeredBytes: Int { max(0, base.heldBytes - base.totals.coreBytes.load(ordering: .relaxed)) }

  var returnedBytes: Int { freedBytes - base.ordinaryBytes }

  func beginReaction() {
    heldBeforeReaction.store(base.heldBytes + base.ordinaryBytes, ordering: .relaxed)
    freedBeforeReaction.store(relievedBytes, ordering: .relaxed)
  }

  /// Step 1. Returns the bytes put on offer.
  func offerAll() -> Int {
    shards.sealAll()
    return offerIdle()
  }

  /// Step 2. Returns how many entries were lost.
  func dropLost() -> Int {
    let count = sweep()
    heap.trim()
    return count
  }

  /// The bytes that went back to the system so far, less those that were copied. Not measured by `heldBytes`, which counts a
  /// fresh slab as a whole, though only its first pages are in use.
  var freedBytes: Int {
    heap.givenBackBytes - base.totals.copiedBytes.load(ordering: .relaxed)
  }

  /// The same, with the nodes of entries that were kept without their values. Only differences mean something.
  private var relievedBytes: Int {
    freedBytes - (base.keepsLost ? base.observer?.nodes.byteCount.load(ordering: .relaxed) ?? 0 : 0)
  }

  /// Step 3: shard by shard in turn.
  func giveSlice(ofParts parts: Int, isFelt: Bool) -> Bool {
    // The asking client gives.
    if isFelt, base.asks(.pressure) { return false }
    let lostBytes = base.keepsLost ? shards.all.reduce(0) { sum, shard in sum + shards.hold(shard) { $0.lostBytes } } : 0
    let byteCount = (base.heldBytes + lostBytes) / parts
    // Of few slabs, one is far more than a slice: it goes once slices have come to a quarter of it.
    let owed = owedBytes.add(byteCount, ordering: .relaxed).newValue
    guard owed >= min(base.heldBytes, heap.slabBytes) / 4 else { return true }
    owedBytes.store(0, ordering: .relaxed)
    let begin = relievedBytes
    giveBack(isFelt ? .pressure : .trimmed, shrinksIndexes: false) { byteCount - (relievedBytes - begin) }
    return relievedBytes > begin
  }

  /// Step 4.
  func shrinkBookkeeping(_ level: PressureLevel) {
    loads?.forgetAbsent(endsKeys: false)
    for shard in shards.all {
      shards.hold(shard) { held in
        held.shrinkIndex()
        if level == .critical { held.ghost.shrink(toRemember: held.leastGhost) }
      }
    }
  }

  /// Step 5. From here on the cache grows slowly.
  func beginSlowGrowth(by factor: Double?) {
    let before = heldBeforeReaction.load(ordering: .relaxed)
    let held = base.chargedBytes
    let room = factor.map { Int(min(max(0, Double(held) * $0), 0x1p62)) }
    base.limits.growth.begin(before: before, held: held, room: room, now: base.clock.now())
  }

  /// All steps on demand. Beyond what is lost or empty, `warning` gives back a sixteenth of what is held, and `critical` a
  /// quarter.
  @discardableResult
  func trim(level: PressureLevel, timeLimit: UInt64 = PressureReaction.timeLimit) -> PressureRelief {
    // At the critical level, one more is given without asking. What goes is a slab at least: of a small cache one may be enough.
    var slices = level == .critical ? 3 : level == .warning ? 1 : 0
    defer { enforceAfterCopying() }
    return PressureReaction.run(CollectionOfOne<any PressureClient>(self), level, timeLimit: timeLimit, isFelt: false) { _ in
      slices -= 1
      let freed = relievedBytes - freedBeforeReaction.load(ordering: .relaxed)
      return slices >= 0 && freed < heldBeforeReaction.load(ordering: .relaxed) / 4
    }
  }
}
