// SPDX-License-Identifier: MIT
// What the shards of a cache of objects have in common and what is not generic: limits, sums, settings.

import Synchronization

/// What the cost limit follows from.
struct ObjectBudget: Sendable {
  var costLimit: Int?
  /// Costs count as bytes against these.
  var bytes: CacheBudget

  /// `.max` stands for no limit.
  var limit: UInt64 {
    let byteLimit = CacheLimits.byteLimit(of: bytes).limit
    return min(costLimit.map { UInt64($0) } ?? .max, byteLimit == .max ? .max : UInt64(byteLimit))
  }
}

/// All loads and stores are relaxed: each number by itself is exact, and what is decided by several is decided again under the
/// shard's mutex.
@usableFromInline
final class ObjectBooks: Sendable {
  /// `.max` stands for no limit.
  let countLimit: Atomic<Int>
  let costLimit: Atomic<UInt64>
  let budget: Guarded<ObjectBudget>
  private let entries = Atomic<Int>(0)
  /// The sum of the costs in two parts, neither of which can overflow: that of their lower 32 bits, and that of the others.
  private let lowCosts = Atomic<UInt64>(0)
  private let highCosts = Atomic<UInt64>(0)
  let growth = SlowGrowth(floor: 16)
  let evictsDiscarded: Atomic<Bool>
  /// Whether somebody is told, and whether somebody is asked.
  let hasHandler = Atomic<Bool>(false)
  let hasVeto = Atomic<Bool>(false)
  /// The last type of a value that was found to have no content to discard.
  private let plainType = Atomic<UInt>(0)
  let clock: CacheClock

  init(_ options: CacheOptions, clock: CacheClock) {
    let budget = ObjectBudget(
      costLimit: options.costLimit, bytes: CacheBudget(memoryShare: options.memoryShare, byteLimit: options.byteLimit))
    countLimit = Atomic(options.countLimit ?? .max)
    costLimit = Atomic(budget.limit)
    self.budget = Guarded(budget)
    evictsDiscarded = Atomic(options.evictsEntriesWithDiscardedContent)
    self.clock = clock
  }

  /// The time of a use.
  @usableFromInline var time: UInt64 { MonotonicTime.now }

  // MARK: Sums

  var count: Int { entries.load(ordering: .relaxed) }

  var totalCost: UInt128 {
    UInt128(highCosts.load(ordering: .relaxed)) << 32 + UInt128(lowCosts.load(ordering: .relaxed))
  }

  /// Books entries that came, less those that left.
  @usableFromInline
  func book(entries change: Int, cost added: Int, less removed: Int) {
    if change != 0 { entries.add(change, ordering: .relaxed) }
    guard added != removed else { return }
    let (added, removed) = (UInt64(added), UInt64(removed))
    lowCosts.wrappingAdd((added & 0xFFFF_FFFF) &- (removed & 0xFFFF_FFFF), ordering: .relaxed)
    if added >> 32 != removed >> 32 { highCosts.wrappingAdd((added >> 32) &- (removed >> 32), ordering: .relaxed) }
  }

  /// There is something to give back: the library's thread watches for pressure. Under no mutex.
  @usableFromInline
  func noteStore() { WorkBell.ring() }

  // MARK: Limits

  /// Changes the budget, or reviews it: the memory that limits the process may have changed.
  func change(_ body: (inout ObjectBudget) -> Void = { _ in }) {
    // Under the mutex to the end, so that the last change is also applied last.
    budget.withLock { budget in
      body(&budget)
      costLimit.store(budget.limit, ordering: .relaxed)
    }
  }

  /// Whether an entry exceeds a limit even when it is alone.
  @usableFromInline
  func refuses(_ cost: Int) -> Bool {
    countLimit.load(ordering: .relaxed) == 0 || UInt64(cost) > costLimit.load(ordering: .relaxed)
  }

  /// The limit that is exceeded now.
  @usableFromInline
  var exceededLimit: DepartureReason? {
    let count = count
    if count > countLimit.load(ordering: .relaxed) { return .count }
    let limit = costLimit.load(ordering: .relaxed)
    if limit != .max, totalCost > UInt128(limit) { return .cost }
    return count > growth.limit(by: clock) ? .growth : nil
  }

  // MARK: Discardable content

  /// Whether the value is an object whose content may be discarded.
  @usableFromInline
  func isDiscardable<Value>(_ value: Value) -> Bool {
    // Objects are mostly of one type, which is asked once.
    let type: UInt
    if Value.self == AnyObject.self {
      // Safe: the same type.
      type = UInt(bitPattern: ObjectIdentifier(Swift.type(of: unsafe unsafeBitCast(value, to: AnyObject.self))))
    } else if Value.self is AnyClass {
      type = UInt(bitPattern: ObjectIdentifier(Swift.type(of: value)))
    } else {
      return value is any DiscardableContent
    }
    if plainType.load(ordering: .relaxed) == type { return false }
    if value is any DiscardableContent { return true }
    plainType.store(type, ordering: .relaxed)
    return false
  }
}
