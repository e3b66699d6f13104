// SPDX-License-Identifier: MIT
// How much memory is left, and when memory is short: the one rule for sources, events and reactions.
//
//     limit |------ anonymous, kernel ------|- on offer -|--- page cache ---|-- free --|
//                                                        |<------ page cache --------->|   reactions
//                                           |<----------------- takeable ------------->|   sources
//
// A source asks whether any process is in need: all memory that the kernel can take without swapping is room. A reaction asks
// whether the library should choose before the kernel does: memory on offer is no room, although the kernel could take it as
// easily. So a cache that fills its group gives way before the group is full, and reading files does not make the cache shrink.

/// How much of a limit, or of the machine's memory, is left. A value: pure functions of what was read.
package struct MemoryRoom: Equatable, Sendable {
  /// The memory that counts as room, beside free memory.
  package enum Account: Equatable, Sendable {
    /// All memory that the kernel can take without swapping. In a group: memory that is inactive and backed by files, or on
    /// offer.
    case takeable
    /// Page cache, and no memory on offer. `offeredBytes`: what this process has on offer, which the machine's figure contains.
    case pageCache(offeredBytes: UInt64)
  }

  /// The bytes left.
  package var byteCount: UInt64
  /// The bytes in all.
  package var total: UInt64

  /// Less than an eighth left is short, less than a sixteenth is critical. A reaction begins below a sixteenth, and goes on to an
  /// eighth, so that it does not begin again at once.
  package static let shortShare: UInt64 = 8
  package static let criticalShare: UInt64 = 16

  package init(_ byteCount: UInt64, of total: UInt64) {
    (self.byteCount, self.total) = (byteCount, total)
  }

  package init(of machine: MachineMemory, counting account: Account) {
    var left = machine.availableBytes
    if case .pageCache(let offeredBytes) = account { left -= min(left, offeredBytes) }
    self.init(left, of: machine.totalBytes)
  }

  /// nil where the group has no limit, or does not tell what it uses.
  package init?(of group: MemoryGroup.Level, counting account: Account) {
    guard let limit = group.limitBytes else { return nil }
    switch account {
    case .takeable:
      guard let used = group.workingSetBytes else { return nil }
      self.init(limit - min(limit, used), of: limit)
    case .pageCache:
      guard let room = group.roomWithPageCacheBytes else { return nil }
      self.init(room, of: limit)
    }
  }

  /// How short that is.
  package var level: PressureLevel {
    byteCount < total / Self.criticalShare ? .critical : byteCount < total / Self.shortShare ? .warning : .normal
  }

  /// The bytes to give back: 0 while a reaction need not begin, or, once one has begun (`isShort`), need not go on.
  package func missingBytes(isShort: Bool) -> UInt64 {
    level >= (isShort ? .warning : .critical) ? total / Self.shortShare - byteCount : 0
  }
}

// MARK: For sources

extension MemoryRoom {
  /// How short the machine is; normal where that is not known.
  static func level(of machine: MachineMemory?) -> PressureLevel {
    machine.map { MemoryRoom(of: $0, counting: .takeable).level } ?? .normal
  }

  /// How short the group is that is shortest of those that limit us; normal for nil. Takes no memory.
  static func level(of group: MemoryGroup?) -> PressureLevel {
    var level = PressureLevel.normal
    group?.forEachLevel { level = max(level, self.level(of: $0)) }
    return level
  }

  /// Normal without a limit.
  static func level(of group: MemoryGroup.Level) -> PressureLevel {
    guard let room = MemoryRoom(of: group, counting: .takeable) else { return .normal }
    // The group is full, though of memory that can be taken: the kernel has begun to choose.
    if room.level == .normal, let left = group.roomBytes, MemoryRoom(left, of: room.total).level == .critical {
      return .warning
    }
    return room.level
  }
}

// MARK: For reactions

extension MemoryRoom {
  /// What is missing now, in the machine or in whichever group that limits us misses most. `offeredBytes`: what this process has
  /// on offer. Some 5 system calls, and 10 more for each level of nesting. Takes no memory.
  package static func missingBytes(
    in group: MemoryGroup?, isShort: Bool, offeredBytes: UInt64, root: String = "/"
  ) -> UInt64 {
    look(in: group, isShort: isShort, offeredBytes: offeredBytes, root: root).missingBytes
  }

  /// The same, and how many bytes more could be taken before a reaction would begin: of whichever has the fewest, below 0 where
  /// it would; nil where nothing can be read.
  static func look(
    in group: MemoryGroup?, isShort: Bool, offeredBytes: UInt64, root: String = "/"
  ) -> (missingBytes: UInt64, spareBytes: Int?) {
    var most: UInt64 = 0
    var least: Int?
    forEach(in: group, offeredBytes: offeredBytes, root: root) { room in
      most = max(most, room.missingBytes(isShort: isShort))
      let spare = Int(clamping: room.byteCount) - Int(clamping: room.total / criticalShare)
      least = min(least ?? spare, spare)
    }
    return (most, least)
  }

  /// Calls `body` with the machine's room, and that of each group that limits us, as reactions count it.
  private static func forEach(in group: MemoryGroup?, offeredBytes: UInt64, root: String, _ body: (MemoryRoom) -> Void) {
    let account = Account.pageCache(offeredBytes: offeredBytes)
    if let machine = MachineMemory.current(root: root) { body(MemoryRoom(of: machine, counting: account)) }
    group?.forEachLevel { level in
      if let room = MemoryRoom(of: level, counting: account) { body(room) }
    }
  }

  /// How much more may be taken until there is too little room to keep anything off offer: a quarter of the memory or, after that
  /// (`wasTight`), three eighths. 0 for too little now; nil where nothing can be read. The kernel cannot take what is kept, so
  /// there is some time to let it go.
  package static func spareBytes(
    in group: MemoryGroup?, wasTight: Bool, offeredBytes: UInt64, root: String = "/"
  ) -> UInt64? {
    var least: UInt64?
    forEach(in: group, offeredBytes: offeredBytes, root: root) { room in
      least = min(least ?? .max, room.byteCount - min(room.byteCount, room.total / 8 * (wasTight ? 3 : 2)))
    }
    return least
  }
}
