// SPDX-License-Identifier: MIT
// Limits: strict ones, a share of the memory that limits this process, what may be locked, and how fast a cache may grow after
// pressure.
//
//     byte limit        the program's own, and its share of the memory (the smaller)      strict
//     growth limit      what was left after pressure, rising with time                    yields when nothing is left to evict
//     pinned limit      the program's, or an eighth of the memory                         pins above it are refused
//     locked limit      the program's, or half the memory; less while memory is short     locks above it are refused

import Synchronization

/// The limits of a cache. `bytes` is computed from the budget; the other strict limits are as the program set them.
struct CacheLimits: ~Copyable, Sendable {
  /// `Int.max` and `UInt64.max` stand for no limit.
  let count: Atomic<Int>
  let cost: Atomic<UInt64>
  let bytes: Atomic<Int>
  /// The least byte limit: with less, nothing could be stored.
  let leastBytes = Atomic<Int>(0)
  /// How long entries are valid that are stored without an expiry.
  let lifetime: SharedLifetime
  /// The most payload to be pinned.
  let pinned = Atomic<Int>(0)
  let growth = SlowGrowth()
  let budget: Guarded<CacheBudget>
  /// The level of pressure that was last heard of, as its raw value.
  let pressure = Atomic<Int32>(0)
  /// Whether memory was ever short: from then on stores see to it that what leaves is remembered.
  let pressureFelt = Atomic<Bool>(false)
  let clock: MonotonicClock

  /// `cost`, for sums that no cost reaches.
  var mostCost: UInt128 {
    let limit = cost.load(ordering: .relaxed)
    return limit == .max ? .max : UInt128(limit)
  }

  init(_ options: CacheOptions, clock: MonotonicClock) {
    var options = options
    var isDefault = false
    if options.byteLimit == nil, options.countLimit == nil, LimitCheck.ofCosts(options.costLimit) == .max,
      options.memoryShare == nil,
      let limit = Self.limitWhereNothingIsDiscarded
    {
      // Without it, nothing would ever make the cache smaller.
      options.byteLimit = limit
      isDefault = true
    }
    let budget = CacheBudget(
      memoryShare: options.memoryShare, byteLimit: options.byteLimit, isDefault: isDefault,
      lockedByteLimit: options.lockedByteLimit, pinnedByteLimit: options.pinnedByteLimit,
      core: options.core, idleNanoseconds: options.idleTime.map(CacheBudget.nanoseconds))
    count = Atomic(options.countLimit ?? .max)
    cost = Atomic(LimitCheck.ofCosts(options.costLimit))
    bytes = Atomic(budget.byteLimitInForce.limit)
    lifetime = SharedLifetime(options.expiry)
    self.budget = Guarded(budget)
    self.clock = clock
  }

  // What takes system calls to find out is no lazy `static let`: a child that is forked while another thread initialises one
  // waits for that thread for ever. Of threads that come at the same time, each finds it out.

  /// A quarter of the group's or the machine's memory where the kernel takes nothing back by itself; nil where it does.
  private static var limitWhereNothingIsDiscarded: Int? {
    var limit = knownLimit.load(ordering: .relaxed)
    if limit == 0 {
      limit = findLimit() ?? .max
      knownLimit.store(limit, ordering: .relaxed)
    }
    return limit == .max ? nil : limit
  }
  private static let knownLimit = Atomic<Int>(0)

  private static func findLimit() -> Int? {
    guard let support = try? KernelSupport.probe() else { return nil }
    switch support.behavior {
    case .works, .immediate: return nil
    case .noEffect, .unsupported, .mlocked, .partial:
      return max(1, Int(clamping: ProcessMemory.limit() / 4))
    }
  }

  /// Read once: the default of the locked limit need not follow every change.
  private static var memoryAtStart: UInt64 {
    let known = knownMemory.load(ordering: .relaxed)
    if known != 0 { return known }
    let memory = ProcessMemory.limit()
    if ProcessMemory.isKnown { knownMemory.store(memory, ordering: .relaxed) }
    return memory
  }
  private static let knownMemory = Atomic<UInt64>(0)

  /// For tests: the next cache finds out again what the machine has and does.
  static func forgetMachine() {
    knownLimit.store(0, ordering: .relaxed)
    knownMemory.store(0, ordering: .relaxed)
  }

  /// Computes the limits from the budget: the byte limit from number and share, the locked limit by the level of pressure.
  func apply(to heap: SlabHeap) {
    // Under the mutex to the end, so that the last change of the budget is also applied last.
    budget.withLock { budget in
      let (limit, memory) = budget.byteLimitInForce
      let inForce = atLeast(limit)
      bytes.store(inForce, ordering: .relaxed)
      heap.setLimit(inForce == .max ? 0 : max(1, inForce))
      let all = memory ?? Self.memoryAtStart
      pinned.store(budget.pinnedByteLimit ?? Int(clamping: all / 8), ordering: .relaxed)
      let locked = budget.lockedByteLimit ?? Int(clamping: all / 2)
      // Under pressure less may be locked: half at the warning level, a quarter at the critical one.
      let level = pressure.load(ordering: .relaxed)
      let part = level == PressureLevel.critical.rawValue ? 4 : level == PressureLevel.warning.rawValue ? 2 : 1
      // 0 would mean no limit to the heap.
      heap.setLockedLimit(max(1, locked / part))
    }
  }

  @inline(__always) var hasFeltPressure: Bool { pressureFelt.load(ordering: .relaxed) }

  /// Whether entries or costs are limited.
  @inline(__always) var areStrict: Bool {
    count.load(ordering: .relaxed) != .max || cost.load(ordering: .relaxed) != .max
  }

  /// Changes the budget, and applies it.
  func change(_ heap: SlabHeap, _ body: (inout CacheBudget) -> Void) {
    budget.withLock { body(&$0) }
    apply(to: heap)
  }

  /// The limit in force for a given one: at least what an empty cache needs. 0 stays 0, and admits nothing.
  func atLeast(_ limit: Int) -> Int {
    assert(leastBytes.load(ordering: .relaxed) >= 0, "PurgeableCache: the least byte limit is below 0")
    return limit <= 0 ? 0 : max(limit, leastBytes.load(ordering: .relaxed))
  }

  /// The smallest limit in force, and which it is; nil for none.
  func limitInForce() -> (byteCount: Int, reason: CacheLimitReason)? {
    let strict = bytes.load(ordering: .relaxed)
    let soft = growth.limit(by: clock)
    if soft < strict {
      return (soft, .growth(remaining: .nanoseconds(Int64(growth.remaining(now: clock.now())))))
    }
    if strict == .max { return nil }
    let budget = budget.withLock { $0 }
    if let limit = budget.byteLimit, limit <= strict || budget.memoryShare == nil {
      return (strict, budget.isDefault ? .noDiscards : .byteLimit)
    }
    return (strict, .memoryShare)
  }
}

/// How often stores look for lost pages: looking takes a twentieth of the time at most.
///
/// Times are in nanoseconds of the cache's clock (`MonotonicClock`).
struct SweepPace: ~Copyable, Sendable {
  /// When the core last finished looking.
  private let last = Atomic<UInt64>(0)
  /// How long that took.
  private let length = Atomic<UInt64>(0)

  private static let leastPause: UInt64 = 10_000_000

  /// Whether it is time to look again.
  func isDue(now: UInt64) -> Bool {
    now - min(now, last.load(ordering: .relaxed)) >= max(Self.leastPause, 20 * length.load(ordering: .relaxed))
  }

  func note(from start: UInt64, to end: UInt64) {
    last.store(end, ordering: .relaxed)
    length.store(end - min(end, start), ordering: .relaxed)
  }
}
