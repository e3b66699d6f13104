// SPDX-License-Identifier: MIT
// The shards of a cache: to which one a key belongs, how their mutexes are taken, and which one evicts next by age.

import Glibc
import Synchronization

/// Part of one engine; lives as long as the engine.
struct CacheShards: ~Copyable, Sendable {
  let base: CacheBase
  /// The only shard while the cache is small, or has to keep one order of eviction. Empty soon after others have opened.
  let founder: EngineShard
  let positions: ShardPositions<EngineShard>
  /// All shards, once the others have been made.
  let made = AtomicLazyReference<AllShards>()
  private let alone: [EngineShard]
  /// Whether the limits allow other shards, as far as is known, and memory for them was not refused since the last review.
  let mayOpen = Atomic<Bool>(false)
  /// Whether a batch of a file comes, in the midst of which they do not open.
  let isRestoring = Atomic<Bool>(false)
  let sizes = ShardSizes()

  init(_ base: CacheBase, founder index: SlotIndex) {
    self.base = base
    founder = EngineShard(0, base, index)
    positions = ShardPositions(founder)
    alone = [founder]
  }

  deinit {
    // These begin in the home of the founder's index, so they end before it does.
    base.pageSums.destroy()
    base.slabNotes.destroy()
    positions.destroy()
  }

  /// Makes the other shards. False when there is no memory. The founder's mutex is held, and no mask leads to them yet.
  func makeOthers(_ count: Int) -> Bool {
    var indexes: [SlotIndex] = []
    while indexes.count < count {
      guard let index = SlotIndex() else {
        for made in indexes { made.destroy() }
        return false
      }
      indexes.append(index)
    }
    // Each shard frees its own index.
    let shards = indexes.enumerated().map { i, index in
      EngineShard(Int(EngineKey.firstOther) + i, base, index)
    }
    for shard in shards { positions.set(shard.number, shard) }
    _ = made.storeIfNil(AllShards([founder] + shards))
    base.indexes.publish(shards)
    return true
  }

  // MARK: Which

  /// All shards, the founder first.
  var all: [EngineShard] { made.load()?.list ?? alone }

  /// The number of shards that keys belong to.
  var openCount: Int { base.openCount }

  /// The shard that a key belongs to now.
  func shard(of key: EngineKey) -> EngineShard { positions[base.indexes.mask.home(of: key.shardHash)] }

  // MARK: Holding

  /// Runs `body` under a shard's mutex. After its release, gives back the slabs that `body` emptied, and tells of the departures
  /// that it caused.
  func hold<R>(_ shard: EngineShard, _ body: (inout HeldShard) -> R) -> R {
    var isNewChild = false
    let (result, departed) = shard.whileHeld { held in
      if held.index.isWiped {
        held.beginAnew()
        isNewChild = true
      }
      assert(held.number == shard.number, "PurgeableCache: another shard's mutex")
      return (body(&held), held.departures.take())
    }
    base.heap.wipeDeferred()
    deliver(departed)
    if isNewChild { beginAnewInChild() }
    return result
  }

  /// Holds a shard again and again, as long as `part` says that there is more to do. Whoever gives a mutex back can take it again
  /// before a thread that waits for it is awake: so now and then it is left alone for that long.
  func holdInParts(_ shard: EngineShard, _ part: (inout HeldShard) -> Bool) {
    var count = 0
    while hold(shard, part) {
      count += 1
      if count % 8 == 0 { usleep(1) }
    }
  }

  /// As `hold(_:_:)`, for the shard that a key belongs to, which has the key's entry then if there is one.
  func hold<R>(homeOf key: EngineKey, _ body: (inout HeldShard) -> R) -> R {
    while true {
      let mask = base.indexes.mask
      if mask.isMoving { bringHome(key.identity) }
      // Looked at again under the mutex: while it is held, the mask cannot change.
      let result: R? = hold(positions[mask.home(of: key.shardHash)]) { base.indexes.mask == mask ? body(&$0) : nil }
      if let result { return result }
    }
  }

  /// Tells of departures. Called with no mutex held.
  func deliver(_ departed: DepartureList) {
    guard let observer = base.observer else { return }
    if !departed.isEmpty { observer.deliver(departed) }
    observer.helpTelling()
  }

  // MARK: Forks (ForkGuard.swift)

  /// Called before totals are read: in a forked child they are the parent's until the shards begin anew. One load in any other
  /// process.
  @inline(__always) func healIfChild() { if base.indexes[0].isWiped { beginAnewInChild() } }

  /// Runs what a child will run when it begins anew (ForkGuard.swift says why), before any other thread knows of the shards,
  /// which are empty.
  func rehearseChild() {
    hold(founder) { $0.beginAnew() }
    beginAnewInChild()
  }

  /// In a forked child, all shards begin anew as soon as one does, since totals and bookkeeping count for all of them.
  @inline(never)
  private func beginAnewInChild() {
    for shard in all where shard.index.isWiped { hold(shard) { _ in } }
    // That goes on in the parent.
    isRestoring.store(false, ordering: .relaxed)
  }

  /// For a fork, for moves of entries, and for a copy of all of them.
  func lockAll() {
    // While the founder's mutex is held, no other shards are made.
    founder.held.lock()
    for shard in all.dropFirst() { shard.held.lock() }
  }

  func unlockAll() {
    for shard in all.reversed() { shard.held.unlock() }
  }

  // MARK: All of them

  /// Seals all open slabs.
  func sealAll() {
    for i in 0..<all.count {
      for lane in Lanes(Lane.numberLimit) { base.heap.seal(base.heap.streams[lane, i]) }
    }
  }

  /// Visits all shards, and misses no entry that stays: when shards open, entries move from the founder, which is first; where
  /// they have closed meanwhile, visits all again.
  func visit(_ body: (EngineShard) -> Void) {
    againWhereMoved { for shard in all { body(shard) } }
  }

  private func againWhereMoved(_ body: () -> Void) {
    var mask: ShardMask
    repeat {
      mask = base.indexes.mask
      body()
    } while base.indexes.mask != mask
  }

  /// Calls `evict` on the shard with the lowest `age`, again and again, until `isDone` or until no shard has anything left. A
  /// shard whose `evict` returned false is not tried again. `spared`: the number of a shard that is tried only when no other has
  /// anything left.
  func evictByAge(
    sparing spared: Int? = nil, age: (borrowing HeldShard) -> UInt64, until isDone: () -> Bool,
    evict: (inout HeldShard) -> Bool
  ) {
    againWhereMoved {
      if isDone() { return }
      let shards = all
      // A single shard needs no age.
      let isAlone = shards.count == 1
      var ages = InlineArray<17, UInt64>(repeating: 0)
      for (i, shard) in shards.enumerated() where !isAlone { ages[i] = hold(shard) { age($0) } }
      while !isDone(), let oldest = oldest(of: ages, shards, sparing: spared) {
        ages[oldest] = hold(shards[oldest]) { held in
          // Checked again under the mutex: other threads may have made room meanwhile.
          if isDone() { return ages[oldest] }
          guard evict(&held) else { return .max }
          return isAlone ? 0 : age(held)
        }
      }
    }
  }

  /// The position in `shards` of the lowest age; that of the spared shard only when no other is left.
  private func oldest(of ages: borrowing InlineArray<17, UInt64>, _ shards: [EngineShard], sparing spared: Int?) -> Int? {
    var (oldest, oldestAge) = (-1, UInt64.max)
    var last: Int?
    for i in shards.indices where ages[i] != .max {
      if shards[i].number == spared {
        last = i
      } else if ages[i] < oldestAge {
        (oldest, oldestAge) = (i, ages[i])
      }
    }
    return oldest >= 0 ? oldest : last
  }

  enum Elsewhere { case freed, nothing, busy }

  /// For a store whose own shard has nothing left to free: frees a slab of the shard with the oldest slab, among those whose
  /// mutex is free. The mutex is taken out of order, beside the mutex of `own`, so it is only tried and never waited for: `busy`
  /// where one was taken and no other had anything.
  func freeSlabElsewhere(_ reason: DepartureReason, than own: inout HeldShard) -> Elsewhere {
    // A bit for each shard's number: no allocation.
    var asked = UInt32(1) << UInt32(own.number)
    var isBusy = false
    let shards = all
    while true {
      var oldest: EngineShard?
      var oldestAge = UInt64.max
      for shard in shards where asked & 1 << UInt32(shard.number) == 0 {
        let age = shard.held.withLockIfAvailable { $0.oldestSlabAge() }
        if age == nil { isBusy = true }
        if let age, age < oldestAge { (oldest, oldestAge) = (shard, age) }
      }
      guard let shard = oldest else { return isBusy ? .busy : .nothing }
      assert(shard.number != own.number, "PurgeableCache: a shard evicts from itself as from another")
      asked |= 1 << UInt32(shard.number)
      let freed = shard.held.withLockIfAvailable { held in (held.freeSlab(reason), held.departures.take()) }
      guard let (hasFreed, departed) = freed else {
        isBusy = true
        continue
      }
      own.departures.append(departed)
      if hasFreed { return .freed }
    }
  }
}
