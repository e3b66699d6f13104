// SPDX-License-Identifier: MIT
// When the core (Shard/HeldShard+Core.swift) is kept, and when it is let go.
//
//   kept     each round decides anew which slabs
//   let go   when a round or a look finds little room: everything goes on offer
//   again    when there has been room for ten seconds

import Synchronization

extension CacheEngine {
  /// In nanoseconds.
  private static let pauseAfterShortage: UInt64 = 10_000_000_000

  /// The core's part of a round. `isTight`: whether there is too little room, after there was (true) or not. Returns after how
  /// many milliseconds another round is wanted, as `upkeepRound`.
  func reviewCore(_ isTight: (_ wasTight: Bool) -> Bool) -> UInt64 {
    guard let core = base.limits.budget.withLock({ $0.core }) else { return .max }
    let (from, now) = (base.coreFrom.load(ordering: .relaxed), base.clock.now())
    if isTight(from != 0) {
      letCoreGo()
      return 0
    }
    if from > now { return 0 }
    base.coreFrom.store(0, ordering: .relaxed)
    setNotesUses(core.needsLastUses)
    let limit = CacheCore.mostBytes
    base.coreLimit.store(limit, ordering: .relaxed)
    var (left, kept) = (limit - base.totals.pinnedBytes.load(ordering: .relaxed), 0)
    let all = shards.all
    for (i, shard) in all.enumerated() {
      let part = max(0, left) / (all.count - i)
      let its = shards.hold(shard) { held in held.reviewCore(core, atMost: part) }
      (left, kept) = (left - its, kept + its)
    }
    base.totals.coreBytes.store(kept, ordering: .relaxed)
    return core.needsLastUses ? 0 : .max
  }

  func reviewCore() -> UInt64 { reviewCore { spareBytes(wasTight: $0) == 0 } }

  /// A level of pressure would say little: the kernel tells of pressure too while it only drops pages of files.
  private func spareBytes(wasTight: Bool) -> UInt64? {
    MemoryRoom.spareBytes(in: ProcessMemory.group, wasTight: wasTight, offeredBytes: UInt64(offeredBytes))
  }

  /// No process takes more bytes in a nanosecond.
  private static let fastestTaking: UInt64 = 4

  /// The next look comes before anybody could have taken what is spare. In a group of 128 MiB with half of it spare that is some
  /// hundred looks a second, of 50 us each; where gigabytes are spare, one in a second.
  func lookAtRoom() -> UInt64 {
    guard base.coreFrom.load(ordering: .relaxed) == 0, base.totals.coreBytes.load(ordering: .relaxed) > 0 else { return .max }
    guard let spare = spareBytes(wasTight: false) else { return 1_000_000_000 }
    if spare > 0 { return max(2_000_000, spare / Self.fastestTaking) }
    letCoreGo()
    return .max
  }

  /// Everything goes on offer, as without a core, until there is room again.
  func letCoreGo() {
    let from = base.coreFrom.load(ordering: .relaxed)
    if from == .max { return }
    base.coreFrom.store(base.clock.now() + Self.pauseAfterShortage, ordering: .relaxed)
    if from == 0 { endCore() }
  }

  /// Sets which core is kept; nil for none.
  func setCore(_ core: CacheCore?) {
    base.limits.budget.withLock { $0.core = core }
    base.note(core)
    if core == nil {
      setNotesUses(false)
      endCore()
    }
    WorkBell.ring()
  }

  private func setNotesUses(_ isWanted: Bool) {
    base.notesUses.store(isWanted || base.isTiered.load(ordering: .relaxed), ordering: .relaxed)
  }

  /// From now on the last use of each entry is noted.
  func noteUses() {
    base.isTiered.store(true, ordering: .relaxed)
    for shard in shards.all { shards.hold(shard) { held in held.keepLastUses() } }
    setNotesUses(true)
  }

  private func endCore() {
    for shard in shards.all { shards.hold(shard) { held in _ = held.reviewCore(nil, atMost: 0) } }
    base.totals.coreBytes.store(0, ordering: .relaxed)
    offerIdle()
  }
}
