// SPDX-License-Identifier: MIT
// The engine: a cache from key bytes to value bytes, on a slab heap. Everything that has to be fast or exact is here; the typed
// caches over it only encode, decode and call back.
//
//     key --> hash --> shard --> index: slot --> place in the heap --> [header| key | cost? | value]
//                        |       (one while the cache is small, then sixteen more: Shard/CacheShards+Opening.swift)
//                        +-- probation stream, main stream: slabs in order of birth, which is S3-FIFO's order of eviction
//
// What passes which files:
//
//   hit       PurgeableCache+Access -> CacheEngine+Read -> heap_read.c -> a counter in the slot
//   store     PurgeableCache+Access -> CacheEngine+Store -> CacheShards (which shard, its mutex)
//             -> HeldShard+Store (room, memory, bytes) -> HeldShard+Insert (the slot)
//             128 KiB and more: LargeStore, whose bytes are written under no mutex
//   eviction  asked for by            HeldShard+Store, CacheEngine+Limits; CacheEngine+React; CacheEngine+Upkeep
//             decided by              S3FIFOOrder, or an EntryOrder
//             one entry               HeldShard+Evict                     limits of count and cost
//             slabs                   HeldShard+EvictionRun               bytes, pressure, trims, idle entries
//             as an exact order says  HeldShard+EntryOrder
//             ends an entry           HeldShard.drop -> ShardBooks, Ghost -> ShardDepartures -> KeyTeller
//
// Its parts, each with its own state:
//   CacheBase      what all shards have in common: heap, limits, totals, indexes
//   CacheShards    the shards: to which one a key belongs, how mutexes are taken, which one is next by age
//   HeldShard      one shard while its mutex is held: everything that changes something
//   CacheEngine    reads, and what goes over all shards: limits, upkeep, reactions
//
// Rules for threads and mutexes:
//   - Reads take no mutex. They load a slot, the slab's generation, the slot again, copy, and check (CacheEngine+Read.swift).
//   - Everything that changes a shard's slots happens under the shard's mutex. Readers change only a slot's counter, by exchange.
//   - Order of mutexes: a shard's (several at once only in the order of their numbers), then those inside the heap. No foreign
//     code runs under any of them: code of keys and values, and handlers, is called before the first is taken and after the last
//     was released (Keys/KeySearch.swift, Keys/KeyTeller.swift).

import Synchronization

final class CacheEngine: ForkProtected {
  let base: CacheBase
  /// The table of keys that are being loaded, for forks: it does not refer to the engine, nor the engine to its content.
  let loads: (any AbsenceKeeper)?
  let shards: CacheShards
  /// Who asks the program before an eviction, once it wants to be asked.
  let asker = AtomicLazyReference<AskingClient>()
  let lazy = LazyParts()
  /// The heap of `base`, one load nearer for reads.
  let heap: SlabHeap
  /// The engine's link in the list of those that the library's thread works for.
  let link = ClientLink<UnownedClient>()
  /// The bytes that were held when the last reaction began to give back.
  let heldBeforeReaction = Atomic<Int>(0)
  /// What slices have come to since the last slab that went for one.
  let owedBytes = Atomic<Int>(0)
  /// What `relievedBytes` was when the last reaction began to give back.
  let freedBeforeReaction = Atomic<Int>(0)
  let lastIdleRound = Atomic<UInt64>(0)
  /// Look-ups that found bytes of which no value could be made. The indexes count them as hits, and the statistics take them off.
  let undecodableCount = Atomic<UInt64>(0)

  /// Fails with `outOfMemory` only. `hashSeed`: of the keys' hashes; nil for a random one. `entryOrder`: nil for that of the
  /// options.
  init(
    _ options: CacheOptions, keyLayout: KeyLayout, clock: MonotonicClock = .system, hashSeed: UInt64? = nil,
    observer: (any EngineObserver)? = nil, loads: (any AbsenceKeeper)? = nil,
    entryOrder: (@Sendable () -> any EntryOrder)? = nil
  ) throws(PurgeableError) {
    let outOfMemory = PurgeableError.withoutMemory(in: "PurgeableCache.init")
    // Swift's runtime ends the program when it gets no memory for objects and arrays.
    guard MemoryReserve.isThere(MemoryReserve.ofObjects) else { throw outOfMemory }
    let limits = CacheLimits(options, clock: clock)
    guard let heap = SlabHeap.make(forBytes: limits.bytes.load(ordering: .relaxed)) else { throw outOfMemory }
    guard GivingBackTurn.shared.prepare(), let index = SlotIndex() else {
      heap.destroy()
      throw outOfMemory
    }
    self.heap = heap
    self.loads = loads
    let keys = KeyHashing(layout: keyLayout, seed: hashSeed)
    base = CacheBase(
      heap: heap, keys: keys, founder: index, limits: limits, observer,
      options, entryOrder, absentBytes: loads?.absentBytes)
    shards = CacheShards(base, founder: index)
    base.limits.apply(to: heap)
    shards.reviewOpening()
    shards.rehearseChild()
  }

  /// Ends all tracked keys, untold: called when the cache has ended, under no mutex. Entries that are left have none from here
  /// on.
  func endKeys() {
    shards.visit { shard in shards.hold(shard) { held in held.departures.append(held.keys.takeAll()) } }
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() {
    shards.lockAll()
    base.limits.budget.lock()
  }

  func unlockAfterFork() {
    base.limits.budget.unlock()
    shards.unlockAll()
  }
}
