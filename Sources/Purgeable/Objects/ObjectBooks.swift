// SPDX-License-Identifier: MIT
// What the shards of a cache of objects have in common and what is not generic: limits, sums, settings.

import Synchronization

/// What the cost limit follows from.
struct ObjectBudget: Sendable {
  var costLimit: Int?
  /// Costs count as bytes against these.
  var bytes: CacheBudget
  var idleMarks = IdleMarks<UInt64>(none: 0)

  /// What the costs may add up to, and the reason why entries leave that exceed it; `.max` stands for no limit.
  var limit: (cost: UInt64, reason: DepartureReason) {
    let byteLimit = bytes.byteLimitInForce.limit
    let ofCosts = LimitCheck.ofCosts(costLimit)
    return byteLimit != .max && UInt64(byteLimit) < ofCosts ? (UInt64(byteLimit), .bytes) : (ofCosts, .cost)
  }
}

/// A sum of costs in two parts: that of their lower 40 bits, which does not overflow with fewer than 16 million entries, and that
/// of the others.
struct CostSum {
  static let lowBits: UInt64 = 40
  var low: UInt64 = 0
  var high: UInt64 = 0

  init(_ cost: Int = 0) { add(cost) }

  mutating func add(_ cost: Int) {
    low &+= UInt64(cost) & (1 << Self.lowBits - 1)
    high &+= UInt64(cost) >> Self.lowBits
  }
}

/// Limits and sums are sequentially consistent: of a store that books its entry and then looks at the limits, and of a thread
/// that lowers a limit and then looks at the sums, one sees the other. All else is relaxed.
///
/// The superclass, not a part, of the store: code that is compiled into callers calls these functions without holding another
/// object for each.
@usableFromInline
class ObjectBooks: ProgramClient, @unchecked Sendable {
  /// `.max` stands for no limit.
  final let countLimit: Atomic<Int>
  final let costLimit: Atomic<UInt64>
  private final let limitsBytes: Atomic<Bool>
  final let budget: Guarded<ObjectBudget>
  private final let entries = Atomic<Int>(0)
  /// A `CostSum`. The parts are not read at one moment: where single costs are 2^40 and more, a sum may be read that never was.
  private final let lowCosts = Atomic<UInt64>(0)
  private final let highCosts = Atomic<UInt64>(0)
  final let growth = SlowGrowth(floor: 16)
  final let evictsDiscarded: Atomic<Bool>
  /// Whether somebody is told, is asked, and finds costs.
  final let hasHandler = Atomic<Bool>(false)
  final let hasVeto = Atomic<Bool>(false)
  final let hasCosts = Atomic<Bool>(false)
  /// Whether somebody wants to know what changes.
  final let hasWatcher = Atomic<Bool>(false)
  @usableFromInline final var isWatched: Bool { hasWatcher.load(ordering: .acquiring) }
  @usableFromInline final var tells: Bool { hasHandler.load(ordering: .acquiring) }
  @usableFromInline final var asks: Bool { hasVeto.load(ordering: .acquiring) }
  @usableFromInline final var findsCosts: Bool { hasCosts.load(ordering: .acquiring) }
  /// The last type of a value that was found to have no content to discard.
  private final let plainType = Atomic<UInt>(0)
  final let clock: MonotonicClock
  /// How long entries are valid that are stored without an expiry.
  final let lifetime: SharedLifetime
  /// No end of an entry that is noted is earlier; `.max` where none is. While what is over is dropped, later than some. Signed:
  /// `min` of unsigned ones compares them as signed in Swift 6.3.1.
  final let nextEnd = Atomic<Int>(.max)
  /// Of the oldest entry that came from a file: below the stamps of all others, which are times.
  private final let restoredStamp: Atomic<UInt64>
  /// Of the oldest entry that did not.
  final let firstStamp = MonotonicTime.now
  /// When the last restore ended: a time as stamps are; `.max` during one.
  final let restored = Atomic<UInt64>(0)
  /// The queues, a bit for each, that ever had an entry.
  private final let queuesSeen = Atomic<UInt16>(0)

  init(_ options: CacheOptions, clock: MonotonicClock) {
    let budget = ObjectBudget(
      costLimit: options.costLimit,
      bytes: CacheBudget(
        memoryShare: options.memoryShare, byteLimit: options.byteLimit,
        idleNanoseconds: options.idleTime.map(CacheBudget.nanoseconds)))
    countLimit = Atomic(options.countLimit ?? .max)
    costLimit = Atomic(budget.limit.cost)
    limitsBytes = Atomic(budget.limit.reason == .bytes)
    self.budget = Guarded(budget)
    evictsDiscarded = Atomic(options.evictsEntriesWithDiscardedContent)
    self.clock = clock
    restoredStamp = Atomic(firstStamp)
    lifetime = SharedLifetime(options.expiry)
  }

  // MARK: Sums

  final var count: Int { entries.load(ordering: .sequentiallyConsistent) }

  final var totalCost: UInt128 {
    let high = UInt128(highCosts.load(ordering: .sequentiallyConsistent))
    return high << CostSum.lowBits + UInt128(lowCosts.load(ordering: .sequentiallyConsistent))
  }

  /// Books entries that came, less those that left.
  @usableFromInline
  final func book(entries change: Int, cost added: Int, less removed: Int) {
    if change != 0 { entries.wrappingAdd(change, ordering: .sequentiallyConsistent) }
    guard added != removed else { return }
    book(CostSum(added), less: CostSum(removed))
  }

  final func book(_ added: CostSum, less removed: CostSum) {
    lowCosts.wrappingAdd(added.low &- removed.low, ordering: .sequentiallyConsistent)
    if added.high != removed.high { highCosts.wrappingAdd(added.high &- removed.high, ordering: .sequentiallyConsistent) }
  }

  /// There is something to give back: the library's thread watches for pressure. Under no mutex.
  @usableFromInline
  final func noteStore() { WorkBell.ring() }

  /// Before an entry comes into the queue: who has seen the entry booked sees its queue.
  @usableFromInline
  final func noteQueue(_ queue: ObjectQueue) {
    // The first hit makes it normal.
    let bits = queue.bit | queue.with(.normal).bit
    if queuesSeen.load(ordering: .relaxed) & bits != bits { queuesSeen.bitwiseOr(bits, ordering: .relaxed) }
  }

  /// How many queues may have entries, from the first on.
  final var queueLimit: Int { UInt16.bitWidth - queuesSeen.load(ordering: .relaxed).leadingZeroBitCount }

  @usableFromInline
  final func queues(onlyWithCost: Bool) -> UInt16 {
    queuesSeen.load(ordering: .relaxed) & (onlyWithCost ? ObjectQueue.bitsWithCost : ObjectQueue.allBits)
  }

  /// The next stamp behind all others.
  final func nextRestoredStamp() -> UInt64 { restoredStamp.subtract(1, ordering: .relaxed).newValue }

  // MARK: Limits

  /// Whether there is room for an entry without an eviction.
  final func hasRoom(_ cost: Int, growing growthLimit: Int) -> Bool {
    let limit = costLimit.load(ordering: .sequentiallyConsistent)
    return count < min(growthLimit, countLimit.load(ordering: .sequentiallyConsistent))
      && (cost == 0 || limit == .max || totalCost + UInt128(cost) <= UInt128(limit))
  }

  /// Changes the budget, or reviews it: the memory that limits the process may have changed.
  final func change(_ body: (inout ObjectBudget) -> Void = { _ in }) {
    // Under the mutex to the end, so that the last change is also applied last.
    budget.withLock { budget in
      body(&budget)
      let (cost, reason) = budget.limit
      limitsBytes.store(reason == .bytes, ordering: .relaxed)
      costLimit.store(cost, ordering: .sequentiallyConsistent)
    }
  }

  final var byteLimitInForce: (byteCount: Int, reason: CacheLimitReason)? {
    budget.withLock { budget in
      let (limit, _) = budget.bytes.byteLimitInForce
      return limit == .max ? nil : (limit, limit == budget.bytes.byteLimit ? .byteLimit : .memoryShare)
    }
  }

  /// Whether an entry exceeds a limit even when it is alone.
  @usableFromInline
  final func refuses(_ cost: Int) -> Bool {
    countLimit.load(ordering: .sequentiallyConsistent) == 0 || UInt64(cost) > costLimit.load(ordering: .sequentiallyConsistent)
  }

  /// The most entries while the cache grows slowly, by the clock, which may be the program's: under no mutex.
  @usableFromInline
  final var growthLimit: Int { growth.limit(by: clock) }

  /// The limit that is exceeded now.
  @usableFromInline
  final func exceededLimit(growing growthLimit: Int) -> DepartureReason? {
    let count = count
    if count > countLimit.load(ordering: .sequentiallyConsistent) { return .count }
    let limit = costLimit.load(ordering: .sequentiallyConsistent)
    if limit != .max, totalCost > UInt128(limit) { return limitsBytes.load(ordering: .relaxed) ? .bytes : .cost }
    return count > growthLimit ? .growth : nil
  }

  @usableFromInline
  final var isOverLimit: Bool { exceededLimit(growing: growthLimit) != nil }

  // MARK: Discardable content

  /// Whether the value is an object whose content may be discarded. Objects are mostly of one type, which is asked once.
  @inlinable
  final func isDiscardable<Value>(_ value: Value) -> Bool {
    let type: ObjectIdentifier
    if Value.self is AnyClass {
      type = ObjectIdentifier(Swift.type(of: value))
    } else if Value.self == AnyObject.self {
      // Safe: the same type.
      type = ObjectIdentifier(Swift.type(of: unsafe unsafeBitCast(value, to: AnyObject.self)))
    } else {
      // An object behind a protocol. The cast alone would have the runtime make an object of any value, and take memory for it.
      return Swift.type(of: value as Any) is AnyClass && value is any DiscardableContent
    }
    return !isPlain(type) && isFoundDiscardable(value, type)
  }

  @usableFromInline
  final func isPlain(_ type: ObjectIdentifier) -> Bool { plainType.load(ordering: .relaxed) == UInt(bitPattern: type) }

  @usableFromInline
  final func isFoundDiscardable<Value>(_ value: Value, _ type: ObjectIdentifier) -> Bool {
    if value is any DiscardableContent { return true }
    plainType.store(UInt(bitPattern: type), ordering: .relaxed)
    return false
  }
}
