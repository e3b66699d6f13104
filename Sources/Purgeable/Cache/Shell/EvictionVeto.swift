// SPDX-License-Identifier: MIT
// The program's say in evictions (Engine/CacheEngine+Asking.swift).

import Synchronization

/// Asks the program's closure. Made with the first closure, and there until the cache ends.
final class EvictionVeto<Key: Hashable & Sendable, Value: PurgeableValue>: AskingClient, @unchecked Sendable {
  typealias Closure = @Sendable (_ key: Key, _ reason: DepartureReason) -> Bool

  /// An object, because the runtime takes memory for a closure that comes out of generic code.
  final class InForce: Sendable {
    let closure: Closure
    init(_ closure: @escaping Closure) { self.closure = closure }
  }

  private let guarded = Guarded(InForce?.none)
  /// The cache keeps this client, not the other way about. Only asked for by threads of the program and by the client's own: the
  /// last reference to a cache must not end on the library's thread.
  private weak let cache: PurgeableCache<Key, Value>?
  private let base: CacheBase

  init(_ cache: PurgeableCache<Key, Value>) { (self.cache, base) = (cache, cache.engine.base) }

  var closure: Closure? { guarded.withLock { $0 }?.closure }

  /// The old one ends under no mutex.
  func set(_ closure: Closure?) {
    let new = closure.map { InForce($0) }
    let old = guarded.withLock { inForce -> InForce? in
      base.isAsking.store(new != nil, ordering: .releasing)
      defer { inForce = new }
      return inForce
    }
    withExtendedLifetime(old) {}
  }

  override func enforceLimits(sparing key: EngineKey?) {
    guard let cache, cache.engine.exceededLimitOrGrowth != nil else { return }
    cache.engine.fitBookkeeping()
    // Who lowers a limit has time to ask about all.
    let most = key == nil ? max(Self.mostPassed, cache.count) : Self.mostPassed
    _ = evict(from: cache, most: most, sparing: key) { cache.engine.exceededLimitOrGrowth }
  }

  /// Not from inside of the closure: what its stores add the call around it evicts.
  private func evict(
    from cache: PurgeableCache<Key, Value>, most: Int, sparing key: EngineKey? = nil, _ reason: () -> DepartureReason?
  ) -> Bool {
    guard !ThreadRole.isTelling(of: ObjectIdentifier(self)) else { return false }
    var (copies, tracked, hasMemory) = (EntryCopies(layout: cache.form.layout), [Key](), true)
    return cache.engine.evict(most: most, sparing: key, reason) { held, found in
      hasMemory = MemoryReserve.isThere(MemoryReserve.ofNews)
      if !hasMemory { return }
      copies.append(found.slot, in: held, payloadBelow: 0) { tracked.append($0.key(as: Key.self)) }
    } mayGo: { reason in
      defer {
        copies.removeAll()
        tracked.removeAll(keepingCapacity: true)
      }
      let key = copies.count == 0 ? nil : cache.key(copies.count - 1, of: copies, tracked)
      // Without memory for the key nobody can be asked.
      guard hasMemory else { return false }
      // A key whose page is lost, or whose bytes are no key.
      guard let key, let closure else { return true }
      return ThreadRole.whileTelling(of: ObjectIdentifier(self)) { closure(key, reason) }
    }
  }

  // MARK: When memory is short (ProgramClient.swift)

  override var holdsAnything: Bool { base.isAsking.load(ordering: .relaxed) && base.heldBytes > 0 }
  override var size: Int { base.heldBytes + base.ordinaryBytes }

  override func giveSlice() -> Bool {
    guard let cache else { return false }
    let goal = base.heldBytes / PressureReaction.sliceShare * (PressureReaction.sliceShare - 1)
    let most = max(Self.mostPassed, cache.count / 4)
    return evict(from: cache, most: most) { base.heldBytes > goal ? .pressure : nil }
  }

  override func endRelief(before: Int) {
    base.limits.growth.begin(before: before, held: base.chargedBytes, now: base.clock.now())
  }

  // MARK: Forks (ForkGuard.swift)

  override func lockForFork() {
    guarded.lock()
    super.lockForFork()
  }

  override func unlockAfterFork() {
    super.unlockAfterFork()
    guarded.unlock()
  }
}

extension PurgeableCache {
  /// Asked, in the order of eviction, before an entry goes for a limit, for slow growth or under pressure (reasons `count`,
  /// `cost`, `bytes`, `growth`, `pressure`); false passes the entry over. nil, as at first: everything may go.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>(countLimit: 1000)
  ///     pages.shouldEvict = { key, _ in !key.hasPrefix("pinned/") }
  ///
  /// Not asked for removals, trims, deciders, idle and expired entries, nor for what the kernel takes. Called under no mutex: on
  /// the thread whose store exceeds a limit, once it has stored; under pressure on a thread of the cache's own, for which only
  /// this cache's giving back waits, not its offers. May read and change the cache. The entry that is being stored is not asked
  /// about. One store passes over 64 entries at most: then it returns, and the cache stays above its limit. The next one goes on
  /// behind them; setting a limit goes through all. Under pressure a quarter of the entries is passed over at a time: where more
  /// of the oldest are kept, the cache gives nothing back before its next turn. Any thread; keys need not be tracked.
  ///
  /// Cost: while there is a closure, a store at a limit stores first and evicts then, entry by entry, so that the limit is
  /// exceeded for a moment: by one entry for each thread that stores, for bytes by a slab. A cache of bytes keeps up to a quarter
  /// of what it holds as holes then.
  public var shouldEvict: (@Sendable (_ key: Key, _ reason: DepartureReason) -> Bool)? {
    get { (engine.asker.load() as? EvictionVeto<Key, Value>)?.closure }
    set {
      let known = engine.asker.load() as? EvictionVeto<Key, Value>
      guard newValue != nil || known != nil else { return }
      veto(known).set(newValue)
      // Room that was not made.
      if newValue == nil, engine.base.isOverLimits { engine.enforceLimits() }
    }
  }

  private func veto(_ known: EvictionVeto<Key, Value>?) -> EvictionVeto<Key, Value> {
    if let known { return known }
    let made = EvictionVeto(self)
    let kept = engine.asker.storeIfNil(made)
    if kept === made { ClientRoster.shared.add(made) }
    return unsafe unsafeDowncast(kept, to: EvictionVeto<Key, Value>.self)
  }
}
