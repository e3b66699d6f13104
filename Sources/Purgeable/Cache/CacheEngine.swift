// SPDX-License-Identifier: MIT
// The engine: a cache from key bytes to value bytes, on a slab heap. Everything that has to be fast or exact is here; the typed
// caches over it only encode, decode and call back.
//
//     key --> hash --> shard --> index: slot --> place in the heap --> [header| key | cost? | value]
//                        |
//                        +-- probation stream, main stream: slabs in order of birth, which is S3-FIFO's order of eviction
//
// Who may do what:
//   - Reads take no mutex. They load a slot, the slab's generation, the slot again, copy, and check (CacheEngine+Read.swift).
//   - Everything that changes a shard's slots happens under the shard's mutex. Readers change only a slot's counter, by exchange.
//   - Order of mutexes: a shard's, then the totals', then those inside the heap. No foreign code runs under any of them, but
//     for the key table's bookkeeping (EngineObserver).

import CPurgeable
import Synchronization

/// The heap's handle. `@unchecked Sendable`: all of its functions may be called from any thread.
@safe struct HeapHandle: @unchecked Sendable {
  let raw: OpaquePointer
}

enum EngineQueue: Int, CaseIterable {
  case probation = 0
  case main = 1
}

/// What the living entries of one queue of one shard add up to.
struct QueueSums {
  var count = 0
  var cost: UInt128 = 0
  var byteCount = 0
}

/// Where eviction, entry by entry, has got to in a queue.
struct EvictionCursor {
  var slab = purgeable_slab_t(index: 0, generation: 0)
  var element: UInt32 = 0
}

/// An entry with a tracked key that left. Collected under the mutex, told of after it.
struct EngineDeparture {
  let number: UInt32
  let reason: DepartureReason
  let cost: UInt64
  let value: [UInt8]?
  /// Another value took its place: the key stays.
  var keepsKey: Bool
}

/// The shell's part in an entry's departure. `entriesDeparted` is called under the shard's mutex, only to take the numbers out of
/// the key table; `deliver` is called afterwards, outside of all mutexes.
protocol EngineObserver: ForkProtected {
  var wantsValues: Bool { get }
  func entriesDeparted(_ departures: [EngineDeparture], shard: Int)
  func deliver()
  /// The hash of a tracked key that has not been told of as departed.
  func hash(ofNumber number: UInt32, shard: Int) -> UInt64?
  /// Ordinary memory of the key table, in bytes.
  var byteCount: Int { get }
}

struct ShardState {
  var ghost = Ghost()
  var slotCount = 0
  /// Raised whenever a slot is emptied or its place exchanged, so that a slot found before is known to be the same.
  var changes: UInt64 = 0
  var sums = [QueueSums(), QueueSums()]
  var cursors = [EvictionCursor(), EvictionCursor()]
  var counters = EngineCounters()
  var departures: [EngineDeparture] = []
  /// Entries of another shard departed on this one's account.
  var owesDelivery = false
  /// Bytes stored since the last look for slabs worth compacting.
  var storedSinceCompaction = 0
  var compactionCursor = purgeable_slab_t(index: 0, generation: 0)
  /// While a whole slab is emptied.
  var emptying: Emptying?
  /// Of the eager mode, by queue.
  var idleMarks: [[IdleMark]] = [[], []]
}

/// What the end of a slab's entries comes to, settled once for all of them.
struct Emptying {
  /// The places of entries that left; their elements live until all are through.
  var places: [UInt64] = []
  var count = 0
  var cost: Int128 = 0
}

/// What happened in a shard since the cache was made.
struct EngineCounters {
  var insertions: UInt64 = 0
  var replacements: UInt64 = 0
  var departures = [UInt64](repeating: 0, count: DepartureReason.allCases.count)
  var misses = [UInt64](repeating: 0, count: MissReason.allCases.count)
  var copies: UInt64 = 0
  var refusals: UInt64 = 0
}

final class EngineShard: Sendable {
  let number: Int
  let index: SlotIndex
  let streams: [purgeable_stream_t]
  let state = Guarded(ShardState())

  init(number: Int, index: SlotIndex, streams: [purgeable_stream_t]) {
    self.number = number
    self.index = index
    self.streams = streams
  }

  deinit { index.destroy() }
}

/// How an element's payload begins.
enum KeyLayout: Equatable {
  /// Keys of one size, as they are.
  case fixed(Int)
  /// A length, then the key; or a tracked key's number (EntryPrefix.swift).
  case variable
}

struct EngineOptions {
  var countLimit: Int?
  var costLimit: UInt64?
  var byteLimit: Int?
  var memoryShare: Double?
  var lockedByteLimit: Int?
  var idleNanoseconds: UInt64?
  var keyLayout = KeyLayout.variable
  var shardCount: Int?
}

/// The indexes of all shards, without a reference count. `@unchecked Sendable`: never changed after it was made.
@safe struct IndexList: @unchecked Sendable {
  private let first: UnsafeMutablePointer<SlotIndex>
  private let count: Int

  init(_ indexes: [SlotIndex]) {
    unsafe first = .allocate(capacity: indexes.count)
    unsafe first.initialize(from: indexes, count: indexes.count)
    count = indexes.count
  }

  /// The index of a shard by its number, which the caller has masked.
  @inline(__always) subscript(number: Int) -> SlotIndex { unsafe first[number] }

  func destroy() {
    unsafe first.deinitialize(count: count)
    unsafe first.deallocate()
  }
}

final class CacheEngine: ForkProtected {
  let heap: HeapHandle
  let shards: [EngineShard]
  let shardMask: UInt64
  /// The shards' indexes once more, without a reference count between a look-up and its slot.
  let indexes: IndexList
  let pageSums: PageSums
  let seed: UInt64
  let secondSeed: UInt64
  let keyLayout: KeyLayout
  let slabBytes: Int
  /// Streams from this number on are main queues, those below probation.
  let firstMainStream: purgeable_stream_t
  /// nil is `Int.max`, `UInt64.max`.
  let countLimit: Atomic<Int>
  let costLimit: Atomic<UInt64>
  let byteLimit: Atomic<Int>
  let totalCount = Atomic<Int>(0)
  let totalCost = Guarded<UInt128>(0)
  /// Bytes of ghosts, for the byte limit.
  let ghostBytes = Atomic<Int>(0)
  let indexBytes = Atomic<Int>(0)
  let observer = Guarded<WeakObserver>(WeakObserver())
  let storedSinceOffer = Atomic<Int>(0)
  /// When the core last looked for lost pages.
  let lastSweep = Atomic<UInt64>(0)
  /// How long that took.
  let lastSweepLength = Atomic<UInt64>(0)
  /// What limits are made of (CacheEngine+Budget.swift).
  let budget: Guarded<CacheBudget>
  /// The level of pressure that was last heard of, as its raw value.
  let pressure = Atomic<Int32>(0)
  /// What was held when something had been given back for want of memory, `Int.max` for never, when that was, and how many bytes a
  /// second it may be more.
  let growthBase = Atomic<Int>(.max)
  let growthBegin = Atomic<UInt64>(0)
  let growthRate = Atomic<Int>(0)
  let lastIdleRound = Atomic<UInt64>(0)
  /// Payload that the policy copied to fresh slabs.
  let copiedBytes = Atomic<Int>(0)
  /// The shard that was last trimmed.
  let trimCursor = Atomic<Int>(0)

  struct WeakObserver: Sendable {
    weak var value: (any EngineObserver)?
  }

  /// Fails with `outOfMemory` only.
  init(_ options: EngineOptions) throws(PurgeableError) {
    let outOfMemory = PurgeableError(
      .outOfMemory, in: "PurgeableCache.init", errorNumber: 12,
      explanation: "there is no memory or address space for a cache's index and heap; free some, or raise the process's limits")
    var options = options
    if options.byteLimit == nil, options.countLimit == nil, options.costLimit == nil, options.memoryShare == nil,
      let limit = Self.limitWhereNothingIsDiscarded
    {
      // Nothing else would ever make it smaller.
      options.byteLimit = limit
    }
    let limits = CacheBudget(
      memoryShare: options.memoryShare, byteLimit: options.byteLimit, lockedByteLimit: options.lockedByteLimit,
      idleNanoseconds: options.idleNanoseconds)
    if let share = options.memoryShare {
      options.byteLimit = min(options.byteLimit ?? .max, Int(Double(ProcessMemory.limit()) * share))
    }
    var heapOptions = unsafe purgeable_heap_options_t()
    let page = Int(purgeable_page_size_bytes())
    let budget = options.byteLimit ?? Int.max
    let slabPages = budget < 4 << 20 ? 4 : budget >= 1 << 30 && options.byteLimit != nil ? 64 : 16
    unsafe heapOptions.slab_bytes = slabPages * page
    if budget < 64 << 20 {
      var chunk = 64 << 20
      while chunk / 4 >= budget, chunk / 2 >= 16 * slabPages * page { chunk /= 2 }
      unsafe heapOptions.chunk_bytes = chunk
    }
    var made: OpaquePointer?
    guard unsafe purgeable_heap_create(&heapOptions, &made) == 0, let heap = unsafe made else { throw outOfMemory }
    guard let pageSums = PageSums() else {
      unsafe purgeable_heap_destroy(heap)
      throw outOfMemory
    }
    let count = Self.shardCount(for: options, slabBytes: slabPages * page)
    var shards: [EngineShard] = []
    var streams: [purgeable_stream_t] = []
    for _ in 0..<2 * count {
      var stream: purgeable_stream_t = 0
      if unsafe purgeable_stream_create(heap, &stream) == 0 { streams.append(stream) }
    }
    if streams.count == 2 * count {
      for number in 0..<count {
        guard let index = SlotIndex() else { break }
        shards.append(EngineShard(number: number, index: index, streams: [streams[number], streams[count + number]]))
      }
    }
    guard shards.count == count else {
      // The shards free their indexes themselves.
      pageSums.destroy()
      unsafe purgeable_heap_destroy(heap)
      throw outOfMemory
    }
    unsafe self.heap = HeapHandle(raw: heap)
    self.pageSums = pageSums
    self.shards = shards
    shardMask = UInt64(count - 1)
    indexes = IndexList(shards.map(\.index))
    seed = UInt64.random(in: .min ... .max)
    secondSeed = UInt64.random(in: .min ... .max) | 1
    keyLayout = options.keyLayout
    slabBytes = slabPages * page
    firstMainStream = streams[count]
    countLimit = Atomic(options.countLimit ?? .max)
    costLimit = Atomic(options.costLimit ?? .max)
    byteLimit = Atomic(options.byteLimit ?? .max)
    self.budget = Guarded(limits)
    applyBudget()
    indexBytes.store(shards.reduce(0) { $0 + $1.index.byteCount }, ordering: .relaxed)
  }

  deinit {
    indexes.destroy()
    pageSums.destroy()
    unsafe purgeable_heap_destroy(heap.raw)
  }

  /// Each shard keeps two slabs open, so a small cache must not have many; and with strict limits the order of eviction is exact
  /// within a shard only.
  private static func shardCount(for options: EngineOptions, slabBytes: Int) -> Int {
    if let asked = options.shardCount { return max(1, min(64, asked)) }
    var count = 16
    if let limit = options.byteLimit { count = min(count, limit / (slabBytes * 64)) }
    if let limit = options.countLimit { count = min(count, limit / 262_144) }
    if options.costLimit != nil { count = 1 }
    // The largest power of two.
    return count < 2 ? 1 : 1 << (Int.bitWidth - 1 - count.leadingZeroBitCount)
  }

  /// A quarter of the group's or the machine's memory where the kernel takes nothing back by itself; nil where it does.
  static let limitWhereNothingIsDiscarded: Int? = {
    guard let support = try? KernelSupport.probe() else { return nil }
    switch support.behavior {
    case .works, .immediate: return nil
    case .noEffect, .unsupported, .mlocked:
      return Int(clamping: ProcessMemory.limit() / 4)
    }
  }()

  // MARK: Small things

  func shard(of key: EngineKey) -> EngineShard { shards[Int(key.shardHash & shardMask)] }

  func queue(at place: UInt64) -> EngineQueue {
    unsafe purgeable_heap_stream_at(heap.raw, place) >= firstMainStream ? .main : .probation
  }

  func reference(_ place: UInt64) -> purgeable_reference_t {
    unsafe purgeable_reference_t(place: place, generation: UInt64(purgeable_heap_generation(heap.raw, place)))
  }

  /// Everything the byte limit counts, but for slabs.
  var ordinaryBytes: Int {
    let table = observer.withLock { $0.value?.byteCount ?? 0 }
    return unsafe Int(purgeable_heap_ordinary_bytes(heap.raw)) + indexBytes.load(ordering: .relaxed)
      + ghostBytes.load(ordering: .relaxed) + table
  }

  var heldBytes: Int { unsafe Int(purgeable_heap_held_bytes(heap.raw)) }

  /// Runs `body` under a shard's mutex, and after it tells the observer of the departures it caused.
  func withState<R>(_ shard: EngineShard, _ body: (inout ShardState) -> R) -> R {
    var told: (any EngineObserver)?
    // The state leaves nothing behind: the closure's result is a value of its own.
    let result = shard.state.withLock { state in
      if shard.index.isWiped { beginAnew(shard, &state) }
      let result = Box(body(&state))
      if !state.departures.isEmpty || state.owesDelivery {
        told = observer.withLock { $0.value }
        told?.entriesDeparted(state.departures, shard: shard.number)
        state.departures.removeAll(keepingCapacity: true)
        state.owesDelivery = false
      }
      return result
    }
    told?.deliver()
    return result.value
  }

  func lockForFork() {
    for shard in shards { shard.state.lock() }
    totalCost.lock()
    budget.lock()
    observer.lock()
  }

  func unlockAfterFork() {
    observer.unlock()
    budget.unlock()
    totalCost.unlock()
    for shard in shards.reversed() { shard.state.unlock() }
  }

  /// In a forked child: the index is wiped, the heap begins anew by itself.
  private func beginAnew(_ shard: EngineShard, _ state: inout ShardState) {
    _ = shard.index.beginAnew()
    for queue in EngineQueue.allCases {
      let sums = state.sums[queue.rawValue]
      totalCount.subtract(sums.count, ordering: .relaxed)
      totalCost.withLock { $0 -= sums.cost }
    }
    let counters = state.counters
    state = ShardState()
    state.counters = counters
  }
}

/// `@unchecked Sendable`: carries a result out of a mutex to the thread that was in it.
private struct Box<Value>: @unchecked Sendable {
  let value: Value
  init(_ value: Value) { self.value = value }
}
