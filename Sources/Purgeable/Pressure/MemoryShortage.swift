// SPDX-License-Identifier: MIT
// How much memory has to come back before the kernel need not choose.

/// By how much the room that is left falls short, in the group that is tightest and in the machine as a whole.
///
///     limit |------ anonymous, kernel ------|--- page cache ---|-- free --|
///                                           |<---------- room ----------->|
///
/// Page cache counts as room: the kernel takes it without asking anybody. Memory on offer does not, although it could be taken as
/// easily: that is what the library would rather choose itself. So a cache that fills its group is short of room before the group
/// is full, and files that are read beside it do not make it give way more than the kernel does.
package struct MemoryShortage: Equatable, Sendable {
  /// What is missing to the room that is wanted; 0 for nothing.
  package var byteCount: UInt64

  /// Below a sixteenth of the limit it begins to be short, and then an eighth is wanted, so that it does not begin again at once.
  package static let lowRoomShare: UInt64 = 16
  package static let wantedRoomShare: UInt64 = 8

  package init(byteCount: UInt64) {
    self.byteCount = byteCount
  }

  /// What is missing where `room` of `total` is left. `isShort`: it was short a moment ago.
  package init(room: UInt64, of total: UInt64, isShort: Bool) {
    let wanted = total / Self.wantedRoomShare
    byteCount = room < (isShort ? wanted : total / Self.lowRoomShare) ? wanted - room : 0
  }

  /// As it is now. `offeredBytes`: what this process has on offer, which MemAvailable counts as room. Some 5 system calls, and 10 more for
  /// each level of nesting.
  package static func current(
    of group: MemoryGroup?, isShort: Bool, offeredBytes: UInt64, root: String = "/"
  ) -> MemoryShortage {
    var worst = MemoryShortage(byteCount: 0)
    if let machine = MachineMemory.current(root: root) {
      let room = machine.availableBytes - min(machine.availableBytes, offeredBytes)
      worst.byteCount = max(worst.byteCount, MemoryShortage(room: room, of: machine.totalBytes, isShort: isShort).byteCount)
    }
    for level in group?.levels() ?? [] {
      guard let limit = level.limitBytes, let room = level.roomWithPageCacheBytes else { continue }
      worst.byteCount = max(worst.byteCount, MemoryShortage(room: room, of: limit, isShort: isShort).byteCount)
    }
    return worst
  }
}
