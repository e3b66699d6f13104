// SPDX-License-Identifier: MIT
// The reaction of caches when memory is short, in steps, the cheapest first:
//
//   1  everything idle goes on offer, open slabs too        no entry is lost
//   2  what is lost or empty is dropped and given back      no entry is lost
//   3  slabs are given back in the policy's order,          entries are evicted, those worth it are copied out
//      slice by slice, until enough room is left            (a sixteenth of what is held a slice)
//   4  indexes, and at the critical level ghosts, shrink    misses say less of their reasons
//   5  less may be locked, and growth is slowed down        until pressure has ended; until nothing was given back for a minute
//
// One call gives back slices as long as memory is short, for a fifth of a second at most; the next event goes on.

import CPurgeable
import Synchronization

/// The result of one reaction, or of one call of `trim(level:)`.
public struct PressureRelief: Sendable, Hashable {
  /// Bytes put on offer: the kernel may take them from now on.
  public var offeredBytes = 0
  /// Bytes given back to the system, of slabs and of bookkeeping.
  public var givenBackBytes = 0
  /// Entries that were found lost, and dropped.
  public var lostEntryCount = 0
  /// The time until everything idle was on offer.
  public var offeringTime = Duration.zero
  /// The time of the whole reaction.
  public var time = Duration.zero

  mutating func add(_ other: PressureRelief) {
    offeredBytes += other.offeredBytes
    givenBackBytes += other.givenBackBytes
    lostEntryCount += other.lostEntryCount
    offeringTime += other.offeringTime
    time += other.time
  }
}

/// One reaction of several caches together: each gives back a share of what it holds. It allocates nothing, not even for
/// bookkeeping. `engines` is gone through several times.
enum PressureReaction {
  /// In nanoseconds.
  static let timeLimit: UInt64 = 200_000_000
  static let sliceShare = 16

  /// Gives back until the figures of the control group and of the machine show no shortage. `mustGive`: one slice in any case, at
  /// any level above normal.
  @discardableResult
  static func run(
    _ engines: some Sequence<CacheEngine>, _ level: PressureLevel, in group: MemoryGroup?, mustGive: Bool
  ) -> PressureRelief {
    // Once begun, giving back goes on until there is more room than it takes to begin.
    var isShort = false
    return run(engines, level, mustGive: mustGive) { offered in
      isShort = MemoryRoom.missingBytes(in: group, isShort: isShort, offeredBytes: offered) > 0
      return isShort
    }
  }

  /// `isShort` is asked before each slice; false ends the reaction. At the critical level, one slice is given in any case.
  /// `isFelt`: false when the program asked for the level; the locked limit then stays with the level of the pressure sources.
  @discardableResult
  static func run(
    _ engines: some Sequence<CacheEngine>, _ level: PressureLevel, timeLimit: UInt64 = timeLimit, mustGive: Bool = false,
    isFelt: Bool = true, isShort: (_ offeredBytes: UInt64) -> Bool
  ) -> PressureRelief {
    let begin = MonotonicTime.now
    var relief = PressureRelief()
    for engine in engines {
      if isFelt { engine.setPressure(level) }
      relief.offeredBytes += engine.offerAll()
    }
    relief.offeringTime = .nanoseconds(MonotonicTime.now - begin)
    guard level != .normal else { return relief }
    let before = engines.reduce(0) { $0 + $1.freedBytes - $1.base.ordinaryBytes }
    for engine in engines {
      relief.lostEntryCount += engine.dropLost()
      engine.heldBeforeReaction.store(engine.base.heldBytes + engine.base.ordinaryBytes, ordering: .relaxed)
    }
    var isFirst = true
    while MonotonicTime.now - begin < timeLimit {
      let offered = engines.reduce(UInt64(0)) { $0 + UInt64($1.base.heldBytes) }
      let must = isFirst && (mustGive || level == .critical)
      guard must || isShort(offered) else { break }
      isFirst = false
      let gave = engines.reduce(false) { gave, engine in engine.giveSlice(engine.base.heldBytes / sliceShare) || gave }
      if !gave { break }
    }
    for engine in engines {
      engine.shrinkBookkeeping(level)
      // Growth slows down only if a slice was given: otherwise there is room to grow. The kernel may have discarded pages all the
      // same, and a limit at what it left would sink with each event.
      if !isFirst { engine.beginSlowGrowth() }
    }
    let after = engines.reduce(0) { $0 + $1.freedBytes - $1.base.ordinaryBytes }
    relief.givenBackBytes = max(0, after - before)
    relief.time = .nanoseconds(MonotonicTime.now - begin)
    return relief
  }
}

extension CacheEngine {
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

  /// Step 3: gives back so many bytes, or a little more, shard by shard in turn. False when nothing could be given back.
  func giveSlice(_ byteCount: Int) -> Bool {
    let begin = freedBytes
    giveBack(.pressure, shrinksIndexes: false) { byteCount - (freedBytes - begin) }
    return freedBytes > begin
  }

  /// Step 4.
  func shrinkBookkeeping(_ level: PressureLevel) {
    for shard in shards.all {
      shards.hold(shard) { held in
        held.shrinkIndex()
        if level == .critical { held.ghost.shrink(toRemember: max(64, held.slots.count)) }
      }
    }
  }

  /// Step 5. From here on the cache grows slowly.
  func beginSlowGrowth() {
    let before = heldBeforeReaction.load(ordering: .relaxed)
    base.limits.growth.begin(before: before, held: base.chargedBytes, now: base.clock.now())
  }

  /// All steps on demand. Beyond what is lost or empty, `warning` gives back a sixteenth of what is held, and `critical` a
  /// quarter.
  @discardableResult
  func trim(level: PressureLevel, timeLimit: UInt64 = PressureReaction.timeLimit) -> PressureRelief {
    // At the critical level, one more is given without asking.
    var slices = level == .critical ? 3 : level == .warning ? 1 : 0
    return PressureReaction.run(CollectionOfOne(self), level, timeLimit: timeLimit, isFelt: false) { _ in
      slices -= 1
      return slices >= 0
    }
  }
}
