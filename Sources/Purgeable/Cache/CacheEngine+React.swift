// SPDX-License-Identifier: MIT
// What caches do when memory is short, in steps, the cheapest first:
//
//   1  everything idle goes on offer, open slabs too        nobody loses anything
//   2  what is lost or empty is dropped and given back      nobody loses anything
//   3  slabs are given back in the policy's order,          entries are evicted, those worth it are copied out
//      slice by slice, until enough room is left            (a sixteenth of what is held a slice)
//   4  indexes, and at the critical level ghosts, shrink    misses say less of their reasons
//   5  less may be locked, and growth is slowed down        until pressure has ended; until nothing was given back for a minute
//
// One call does so many slices as there is shortage for, and stops after a fifth of a second: the next event goes on.

import CPurgeable
import Synchronization

/// What one reaction, or one call of `trim(level:)`, came to.
public struct PressureRelief: Sendable, Hashable {
  /// Put on offer by this: the kernel may take it from now on.
  public var offeredByteCount = 0
  /// Given back to the system, slabs and bookkeeping.
  public var givenBackByteCount = 0
  /// Entries that were found lost, and dropped.
  public var lostEntryCount = 0
  /// From the beginning to everything idle on offer, and to the end.
  public var offeringTime = Duration.zero
  public var time = Duration.zero

  mutating func add(_ other: PressureRelief) {
    offeredByteCount += other.offeredByteCount
    givenBackByteCount += other.givenBackByteCount
    lostEntryCount += other.lostEntryCount
    offeringTime += other.offeringTime
    time += other.time
  }
}

/// One reaction of several caches together, so that each gives of what it has.
enum PressureReaction {
  /// In nanoseconds.
  static let timeLimit: UInt64 = 200_000_000
  static let sliceShare = 16

  /// By what the group's and the machine's figures say. `mustGive`: one slice in any case, at whatever level above none.
  @discardableResult
  static func run(_ engines: [CacheEngine], _ level: PressureLevel, in group: MemoryGroup?, mustGive: Bool) -> PressureRelief {
    // Begun, it goes on until there is more room than it takes to begin.
    var isShort = false
    return run(engines, level, mustGive: mustGive) { offered in
      isShort = MemoryShortage.current(of: group, isShort: isShort, offeredBytes: offered).byteCount > 0
      return isShort
    }
  }

  /// `isShort` is asked before each slice; false ends it. At the critical level one slice is given in any case.
  @discardableResult
  static func run(
    _ engines: [CacheEngine], _ level: PressureLevel, timeLimit: UInt64 = timeLimit, mustGive: Bool = false,
    isShort: (_ offeredBytes: UInt64) -> Bool
  ) -> PressureRelief {
    let begin = MonotonicTime.now
    var relief = PressureRelief()
    for engine in engines {
      engine.setPressure(level)
      relief.offeredByteCount += engine.offerAll()
    }
    relief.offeringTime = .nanoseconds(MonotonicTime.now - begin)
    guard level != .none else { return relief }
    let before = engines.reduce(0) { $0 + $1.freedBytes - $1.ordinaryBytes }
    for engine in engines { relief.lostEntryCount += engine.dropLost() }
    let heldBefore = engines.map { $0.heldBytes + $0.ordinaryBytes }
    var isFirst = true
    while MonotonicTime.now - begin < timeLimit {
      let offered = engines.reduce(UInt64(0)) { $0 + UInt64($1.heldBytes) }
      let must = isFirst && (mustGive || level == .critical)
      guard must || isShort(offered) else { break }
      isFirst = false
      let gave = engines.reduce(false) { gave, engine in engine.giveSlice(engine.heldBytes / sliceShare) || gave }
      if !gave { break }
    }
    for (engine, before) in zip(engines, heldBefore) {
      engine.shrinkBookkeeping(level)
      // Where there was no need to give anything back, there is room to grow: the kernel may have taken from us all the same, and a limit
      // at what it left would sink with each event.
      if !isFirst { engine.beginSlowGrowth(from: before) }
    }
    let after = engines.reduce(0) { $0 + $1.freedBytes - $1.ordinaryBytes }
    relief.givenBackByteCount = max(0, after - before)
    relief.time = .nanoseconds(MonotonicTime.now - begin)
    return relief
  }
}

extension CacheEngine {
  /// Notes the level, by which the locked limit goes.
  func setPressure(_ level: PressureLevel) {
    let before = pressure.exchange(level.rawValue, ordering: .relaxed)
    if before != level.rawValue { applyBudget() }
  }

  /// Step 1. Returns bytes.
  func offerAll() -> Int {
    for shard in shards {
      for stream in shard.streams { unsafe purgeable_stream_seal(heap.raw, stream) }
    }
    return offerIdle()
  }

  /// Step 2. Returns how many entries were lost.
  func dropLost() -> Int {
    let count = sweep()
    _ = unsafe purgeable_heap_trim(heap.raw, nil)
    return count
  }

  /// What went back to the system so far, less what was copied for it. Not by what is held: a fresh slab counts as held to its end,
  /// though only its first pages are there.
  var freedBytes: Int {
    unsafe Int(purgeable_heap_given_back_bytes(heap.raw)) - copiedBytes.load(ordering: .relaxed)
  }

  /// Step 3: gives back so many bytes, or a little more, shard by shard in turn. False: nothing could be had.
  func giveSlice(_ byteCount: Int) -> Bool {
    let begin = freedBytes
    giveBack(shrinksIndexes: false) { byteCount - (freedBytes - begin) }
    return freedBytes > begin
  }

  /// Step 4.
  func shrinkBookkeeping(_ level: PressureLevel) {
    for shard in shards {
      withState(shard) { state in
        shrinkIndex(shard, &state)
        guard level == .critical else { return }
        let before = state.ghost.byteCount
        state.ghost.shrink(toRemember: max(64, state.slotCount))
        ghostBytes.add(state.ghost.byteCount - before, ordering: .relaxed)
      }
    }
  }

  /// All of it on demand. `some` gives back a sixteenth of what is held beyond what is lost or empty, `critical` a quarter.
  func trim(level: PressureLevel) -> PressureRelief {
    let before = pressure.load(ordering: .relaxed)
    // The critical level gives one without asking.
    var slices = level == .critical ? 3 : level == .some ? 1 : 0
    let relief = PressureReaction.run([self], level) { _ in
      slices -= 1
      return slices >= 0
    }
    // Asked for, not felt: the locked limit stays with what the sources say.
    setPressure(PressureLevel(rawValue: before) ?? .none)
    return relief
  }
}
