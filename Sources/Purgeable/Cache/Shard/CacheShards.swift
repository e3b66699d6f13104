// SPDX-License-Identifier: MIT
// The shards of a cache: to which one a key belongs, how their mutexes are taken, and which one evicts next by age.

import Synchronization

/// Part of one engine; lives as long as the engine.
struct CacheShards: ~Copyable, Sendable {
  let base: CacheBase
  /// The only shard while the cache is small, or has to keep one order of eviction. Later it has the entries that were there
  /// when the others opened, until they leave.
  let founder: EngineShard
  let positions: ShardPositions<EngineShard>
  /// All shards, once the others have been made.
  let made = AtomicLazyReference<AllShards>()
  private let alone: [EngineShard]
  /// Whether the limits allow other shards, as far as is known, and memory for them was not refused since the last review.
  let mayOpen = Atomic<Bool>(false)
  let sizes = ShardSizes()

  init(_ base: CacheBase, founder index: SlotIndex) {
    self.base = base
    founder = EngineShard(0, base, index, streamsOf: 0)
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
      EngineShard(Int(EngineKey.firstOther) + i, base, index, streamsOf: 1 + i)
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
  func shard(of key: EngineKey) -> EngineShard { positions[key.shardHash & base.indexes.mask.load(ordering: .acquiring)] }

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
      let result = body(&held)
      if held.number == 0 { endDraining(&held) }
      return (result, held.departures.take())
    }
    base.heap.wipeDeferred()
    deliver(departed)
    if isNewChild { beginAnewInChild() }
    return result
  }

  /// As `hold(_:_:)`, for the shard that has the entry of a key with bytes; where none has one, for the shard that the key
  /// belongs to. `prefix`: the beginning of the key's payload.
  func hold<R>(of key: EngineKey, _ prefix: RawSpan, _ body: (inout HeldShard) -> R) -> R {
    while true {
      // Acquire: pairs with the release in `openShards`.
      let mask = base.indexes.mask.load(ordering: .acquiring)
      if founderMayHave(key, mask) {
        let result: R? = hold(founder) { held in held.find(key, prefix) == nil ? nil : body(&held) }
        if let result { return result }
      }
      if let result = hold(homeOf: key, mask, body) { return result }
    }
  }

  /// As `hold(_:_:)`, for a store: for the shard that the key belongs to, which has the key's entry by then if there is one.
  func hold<R>(toStore key: EngineKey, _ body: (inout HeldShard) -> R) -> R {
    while true {
      let mask = base.indexes.mask.load(ordering: .acquiring)
      if founderMayHave(key, mask) { bringHome(key.identity) }
      if let result = hold(homeOf: key, mask, body) { return result }
    }
  }

  /// As `hold(_:_:)`, for the shard that a tracked key with this hash belongs to: the founder has none while others are open.
  func hold<R>(ofTracked hash: UInt64, _ body: (inout HeldShard) -> R) -> R {
    let key = EngineKey(hash: hash)
    while true {
      if let result = hold(homeOf: key, base.indexes.mask.load(ordering: .acquiring), body) { return result }
    }
  }

  /// nil where the key may belong to another shard by now, or the founder may have its entry.
  private func hold<R>(homeOf key: EngineKey, _ mask: UInt64, _ body: (inout HeldShard) -> R) -> R? {
    let shard = positions[key.shardHash & mask]
    return hold(shard) { held in
      // Checked again under the mutex: while it is held, the mask cannot change away from this shard.
      base.indexes.mask.load(ordering: .relaxed) == mask ? body(&held) : nil
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
  }

  /// For a fork, for closing, and for a copy of all entries.
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

  /// Visits all shards, and misses no entry that stays: entries move from the founder, which is first, and the others are looked
  /// up after that. Where they move to the founder meanwhile, visits all shards again.
  func visit(_ body: (EngineShard) -> Void) {
    againWhereClosed {
      body(founder)
      for shard in all.dropFirst() { body(shard) }
    }
  }

  /// Runs `body`, and runs it again where shards closed meanwhile: the founder has then what was theirs.
  private func againWhereClosed(_ body: () -> Void) {
    var version: UInt64
    repeat {
      version = base.indexes.version
      body()
    } while base.indexes.version != version
  }

  /// Calls `evict` on the shard with the lowest `age`, again and again, until `isDone` or until no shard has anything left. A
  /// shard whose `evict` returned false is not tried again. `spared`: the number of a shard that is tried only when no other has
  /// anything left.
  func evictByAge(
    sparing spared: Int? = nil, age: (borrowing HeldShard) -> UInt64, until isDone: () -> Bool,
    evict: (inout HeldShard) -> Bool
  ) {
    againWhereClosed {
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

  /// For a store at a limit: evicts from the founder, while its oldest entries are older than those of `own`. False where they
  /// are not, or the founder's mutex is taken, which is only tried, out of order.
  func evictFromFounder(_ reason: DepartureReason, before own: inout HeldShard) -> Bool {
    guard own.number != 0, base.indexes.mask.load(ordering: .relaxed) & Self.draining != 0 else { return false }
    let ownAge = own.oldestSlabAge()
    let evicted = founder.held.withLockIfAvailable { held -> (Bool, DepartureList) in
      defer { endDraining(&held) }
      guard held.oldestSlabAge() < ownAge else { return (false, DepartureList()) }
      let byEntry = reason == .count || reason == .cost
      let isDone = byEntry ? held.evictEntry(reason) : held.evictSlab(reason)
      return (isDone, held.departures.take())
    }
    guard let (isDone, departed) = evicted else { return false }
    own.departures.append(departed)
    return isDone
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
