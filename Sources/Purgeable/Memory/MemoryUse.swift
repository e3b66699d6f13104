// SPDX-License-Identifier: MIT
// One model of memory for regions, heaps and caches: the same words, the same sums.
//
//     held  =  locked, or pending  +  on offer  +  known to be discarded                    (by what the library did and found)
//     resident                                                                              (by what the kernel says)
//
// On offer may have been discarded without anybody having noticed: so resident is between held - offered - discarded and
// held - discarded. What smaps calls LazyFree is what is on offer and still there.

import CPurgeable

/// Purgeable memory by state, in bytes, and what became of it since the thing it describes was made: the account that regions,
/// heaps and caches share. Their statistics have it as `memory`, and add what only they count.
public struct MemoryUse: Sendable, Hashable {
  /// What the program stored and could read now, less what is known to be lost. Of regions: the held less the discarded.
  public var payloadBytes = 0
  /// Locked or being written; in heaps and caches payload, each lock counted, in regions whole pages.
  public var lockedBytes = 0
  /// Pages held: written to in this life, there or not.
  public var heldBytes = 0
  /// Of the held: on offer to the kernel, and not known to be gone.
  public var offeredBytes = 0
  /// Of the held: idle, not known to be gone, and not on offer yet. Beyond a share of the memory limit the library offers by
  /// itself what would add to it.
  public var pendingBytes = 0
  /// Of the held: known to be gone.
  public var discardedBytes = 0
  /// Of the held: in memory, by the kernel's account. Of regions all together the kernel is not asked: nil.
  public var residentBytes: Int? = 0
  /// Bookkeeping outside of purgeable pages.
  public var ordinaryBytes = 0
  /// So far: content that the kernel took, as found out. Payload; of regions whole pages.
  public var discardedByKernelBytes = 0
  /// So far: pages given up to the system by the library or the program.
  public var givenBackBytes = 0
  /// So far: locks refused for a limit.
  public var refusedLockCount = 0

  /// Nothing.
  public init() {}

  /// Adds up, a resident size only where both have one.
  public static func + (left: MemoryUse, right: MemoryUse) -> MemoryUse {
    var sum = MemoryUse()
    sum.payloadBytes = left.payloadBytes + right.payloadBytes
    sum.lockedBytes = left.lockedBytes + right.lockedBytes
    sum.heldBytes = left.heldBytes + right.heldBytes
    sum.offeredBytes = left.offeredBytes + right.offeredBytes
    sum.pendingBytes = left.pendingBytes + right.pendingBytes
    sum.discardedBytes = left.discardedBytes + right.discardedBytes
    sum.residentBytes = left.residentBytes.flatMap { one in right.residentBytes.map { one + $0 } }
    sum.ordinaryBytes = left.ordinaryBytes + right.ordinaryBytes
    sum.discardedByKernelBytes = left.discardedByKernelBytes + right.discardedByKernelBytes
    sum.givenBackBytes = left.givenBackBytes + right.givenBackBytes
    sum.refusedLockCount = left.refusedLockCount + right.refusedLockCount
    return sum
  }
}

extension MemoryUse {
  /// The core's account.
  init(_ core: purgeable_memory_use_t, residentBytes: Int?) {
    payloadBytes = Int(core.payload_bytes)
    lockedBytes = Int(core.locked_bytes)
    heldBytes = Int(core.held_bytes)
    offeredBytes = Int(core.offered_bytes)
    pendingBytes = Int(core.pending_bytes)
    discardedBytes = Int(core.discarded_bytes)
    self.residentBytes = residentBytes
    ordinaryBytes = Int(core.ordinary_bytes)
    discardedByKernelBytes = Int(core.discarded_by_kernel_bytes)
    givenBackBytes = Int(core.given_back_bytes)
    refusedLockCount = Int(core.refused_lock_count)
  }
}
