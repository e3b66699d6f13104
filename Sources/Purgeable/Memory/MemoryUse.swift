// SPDX-License-Identifier: MIT
// One model of memory for regions, heaps and caches: the same words, the same sums.
//
//     held  =  locked, or waiting to be offered  +  on offer  +  known to be discarded      (by what the library did and found)
//     resident                                                                              (by what the kernel says)
//
// On offer may have been discarded without anybody having noticed: so resident is between held - offered - discarded and
// held - discarded. What smaps calls LazyFree is what is on offer and still there.

/// Purgeable memory by state, in bytes; and what became of it since the thing it describes was made.
public struct MemoryUse: Sendable, Hashable {
  /// What the program stored and could read now, less what is known to be lost. Of regions: the same as `held` less `discarded`.
  public var payload: UInt64 = 0
  /// Locked or being written; in heaps and caches payload, each lock counted, in regions whole pages.
  public var locked: UInt64 = 0
  /// Pages held: written to in this life, there or not.
  public var held: UInt64 = 0
  /// Of the held: on offer, as far as is known.
  public var offered: UInt64 = 0
  /// Of the held: known to be gone.
  public var discarded: UInt64 = 0
  /// Of the held: in memory, by the kernel's account. Of regions it is not asked for: nil.
  public var resident: UInt64?
  /// Bookkeeping outside of purgeable pages.
  public var ordinary: UInt64 = 0
  /// So far: content that the kernel took, as found out. Payload; of regions whole pages.
  public var discardedByKernel: UInt64 = 0
  /// So far: pages given up to the system by the library or the program.
  public var givenBack: UInt64 = 0
  /// So far: locks refused for a limit.
  public var refusedLocks: UInt64 = 0

  /// Nothing.
  public init() {}

  /// Adds up, a resident size only where both have one.
  public static func + (left: MemoryUse, right: MemoryUse) -> MemoryUse {
    var sum = MemoryUse()
    sum.payload = left.payload + right.payload
    sum.locked = left.locked + right.locked
    sum.held = left.held + right.held
    sum.offered = left.offered + right.offered
    sum.discarded = left.discarded + right.discarded
    sum.resident = left.resident.flatMap { one in right.resident.map { one + $0 } }
    sum.ordinary = left.ordinary + right.ordinary
    sum.discardedByKernel = left.discardedByKernel + right.discardedByKernel
    sum.givenBack = left.givenBack + right.givenBack
    sum.refusedLocks = left.refusedLocks + right.refusedLocks
    return sum
  }
}

extension HeapStatistics {
  /// The same in the words that regions and caches share.
  public var memory: MemoryUse {
    var use = MemoryUse()
    use.payload = payloadByteCount
    use.locked = lockedByteCount
    use.held = heldByteCount
    use.offered = offeredByteCount
    use.discarded = discardedByteCount
    use.resident = residentByteCount
    use.ordinary = ordinaryByteCount
    use.discardedByKernel = discardedPayloadByteCount
    use.givenBack = givenBackByteCount
    use.refusedLocks = refusedLockCount
    return use
  }
}

extension RegionStatistics {
  /// The same in the words that heaps and caches share.
  public var memory: MemoryUse {
    var use = MemoryUse()
    use.payload = byteCount - min(byteCount, discardedByteCount)
    use.locked = lockedByteCount
    use.held = byteCount
    use.offered = offeredByteCount
    use.discarded = discardedByteCount
    use.discardedByKernel = kernelDiscardByteCount
    use.givenBack = ownDiscardByteCount
    use.refusedLocks = refusedLockCount
    return use
  }
}
