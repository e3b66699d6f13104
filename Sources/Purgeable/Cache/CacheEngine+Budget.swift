// SPDX-License-Identifier: MIT
// Budgets: a share of the memory that limits this process, what may be locked, and how fast a cache may grow after pressure.
//
//     byte limit        the program's own, and its share of the memory (the smaller)      strict
//     growth limit      what was held when memory was short, rising with time             yields where nothing else can be had
//     locked limit      the program's, or half the memory; less while memory is short     locks above it are refused

import CPurgeable
import Synchronization

/// What a cache may take, beyond strict limits.
struct CacheBudget: Sendable {
  /// Of the group's limit or the machine's memory, whichever is smaller; nil for no share.
  var memoryShare: Double?
  /// The program's byte limit, nil for none.
  var byteLimit: Int?
  /// What may be locked at a time; nil for half the memory.
  var lockedByteLimit: Int?
  /// How long an entry may go unused before it is given back; nil for ever.
  var idleNanoseconds: UInt64?

  /// A time as this struct has it: a millisecond at least, what no clock reaches at most.
  static func nanoseconds(_ time: Duration) -> UInt64 {
    let (seconds, attoseconds) = time.components
    guard seconds >= 0, attoseconds >= 0 else { return 1_000_000 }
    let (whole, overflow) = UInt64(seconds).multipliedReportingOverflow(by: 1_000_000_000)
    return overflow ? .max / 4 : max(1_000_000, min(.max / 4, whole + UInt64(attoseconds) / 1_000_000_000))
  }
}

/// How much memory this process may use.
enum ProcessMemory {
  /// The smallest limit of its groups, or the machine's memory. Some 10 system calls for each level of nesting.
  static func limit() -> UInt64 {
    let machine = MachineMemory.current()?.totalBytes ?? 1 << 30
    return min(machine, MemoryGroup.current()?.limitBytes ?? .max)
  }
}

extension CacheEngine {
  /// How fast a cache may grow after it gave something back: by a sixteenth a second of what it held before, so that it is back there in
  /// a quarter of a minute at the soonest, and does not swing. After a minute in which nothing was given back nothing holds it back.
  static let growthPerSecond = 16
  static let growthEnd: UInt64 = 60_000_000_000
  /// What it may always hold.
  static let growthFloor = 4 << 20

  /// Takes budgets over: the byte limit from share and number, the locked limit by the level of pressure.
  func applyBudget() {
    // Under the mutex to the end: the last one to change a budget is the last one to apply it.
    budget.withLock { apply($0) }
  }

  private func apply(_ budget: CacheBudget) {
    var limit = budget.byteLimit ?? .max
    var memory: UInt64?
    if let share = budget.memoryShare {
      let total = ProcessMemory.limit()
      memory = total
      limit = min(limit, Int(Double(total) * share))
    }
    byteLimit.store(limit, ordering: .relaxed)
    let locked = budget.lockedByteLimit ?? Int(clamping: (memory ?? Self.memoryAtStart) / 2)
    // Under pressure less may be kept from the kernel: half, a quarter.
    let level = pressure.load(ordering: .relaxed)
    let part = level == PressureLevel.critical.rawValue ? 4 : level == PressureLevel.some.rawValue ? 2 : 1
    // 0 would be no limit for the heap.
    unsafe purgeable_heap_set_locked_limit(heap.raw, max(1, locked / part))
  }

  /// Read once: a limit that nobody chose need not follow every change.
  static let memoryAtStart = ProcessMemory.limit()

  // MARK: Growth after pressure

  /// From here on the cache grows slowly. `before`: what it held before it gave something back.
  func beginSlowGrowth(from before: Int) {
    // Slowed down already: it need not get slower with each of several reactions.
    let rate = growthBase.load(ordering: .relaxed) == .max ? 0 : growthRate.load(ordering: .relaxed)
    growthRate.store(max(rate, before / Self.growthPerSecond), ordering: .relaxed)
    growthBegin.store(MonotonicTime.now, ordering: .relaxed)
    growthBase.store(max(Self.growthFloor, heldBytes + ordinaryBytes), ordering: .relaxed)
  }

  /// What it may hold for now; `Int.max` when nothing was given back for a minute.
  var growthLimit: Int {
    let base = growthBase.load(ordering: .relaxed)
    guard base != .max else { return .max }
    let begin = growthBegin.load(ordering: .relaxed)
    let elapsed = MonotonicTime.now - min(begin, MonotonicTime.now)
    guard elapsed < Self.growthEnd else {
      growthBase.store(.max, ordering: .relaxed)
      return .max
    }
    return base + Int(Double(growthRate.load(ordering: .relaxed)) * (Double(elapsed) / 1e9))
  }
}
