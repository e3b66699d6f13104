// SPDX-License-Identifier: MIT
// The data that all shards of a cache share.

import CPurgeable
import Synchronization

/// Made before the first shard, and refers to none. `CacheShards` does what needs several shards.
final class CacheBase: Sendable {
  let heap: SlabHeap
  let order = S3FIFOOrder()
  let credits = RecomputeCredit()
  let evictionOrder: EvictionOrder
  let makeEntryOrder: @Sendable () -> (any EntryOrder)?
  /// Whether the order names slabs, not entries. One that names entries (`EntryOrder`) is told of each hit.
  let namesSlabs: Bool
  /// Whether an entry whose value is lost stays. All keys are tracked then, and there is one shard.
  let keepsLost: Bool
  /// Reads entries from the heap's elements.
  let elements: ElementReader
  /// The indexes of all shards, for readers.
  let indexes: ShardIndexes
  let pageSums: PageSums
  let limits: CacheLimits
  let totals: CacheTotals
  /// What tells of tracked keys. It does not refer to the engine.
  let observer: (any EngineObserver)?
  let clock: MonotonicClock
  let sweepPace = SweepPace()
  /// How many calls are removing everything right now, and may have slabs to give back (Shard/Removal.swift).
  let removalCount = Atomic<Int>(0)
  /// Whether entries with a deadline were stored since upkeep last looked for what is due.
  let hasDeadlines = Atomic<Bool>(false)
  /// Whether the program is asked before an entry goes for a reason that it is asked about (Engine/CacheEngine+Asking.swift).
  let isAsking = Atomic<Bool>(false)
  /// How many streams of shards' lanes there are.
  private let streamCount = Atomic<Int>(QueueStreams.firstCount)
  /// The lowest age of what was restored.
  let oldestAge = Atomic<UInt64>(ShardIndexes.firstAge)
  let slabNotes: SlabNotes
  /// From when on there is a core: 0 for now, `UInt64.max` for never (Engine/CacheEngine+Core.swift).
  let coreFrom = Atomic<UInt64>(.max)
  /// How many bytes core and pinned entries may take together, as the last round found it, and the core's share of all slabs.
  let coreLimit = Atomic<Int>(0)
  let coreShare = Atomic<Double>(0)
  /// Whether last uses are noted of all entries.
  let notesUses = Atomic<Bool>(false)
  /// Whether it always is: there is a second tier, which is told of them.
  let isTiered = Atomic<Bool>(false)
  #if DEBUG
    /// Called by an eviction run when it has taken notes, so that a test can do something before they are used.
    let notesHook = AtomicLazyReference<NotesHook>()
    /// Called by a shard that takes an entry over: 1 when it has the copy, 2 when the entry has slots in both shards.
    let moveHook = AtomicLazyReference<LookHook>()
  #endif

  init(
    heap: SlabHeap, keys: KeyHashing, founder: SlotIndex, limits: consuming CacheLimits, _ observer: (any EngineObserver)?,
    _ options: CacheOptions, _ entryOrder: (@Sendable () -> any EntryOrder)?, absentBytes: ByteCount?
  ) {
    let evictionOrder = options.evictionOrder
    keepsLost = !options.evictsEntriesWithDiscardedContent
    totals = CacheTotals(absentBytes: absentBytes)
    self.heap = heap
    elements = ElementReader(heap: heap, keys: keys)
    indexes = ShardIndexes(founder)
    pageSums = PageSums(founder)
    slabNotes = SlabNotes(at: founder.slabNotesWord)
    clock = limits.clock
    self.limits = limits
    self.observer = observer
    self.evictionOrder = evictionOrder
    makeEntryOrder = entryOrder ?? { evictionOrder.makeEntryOrder() }
    namesSlabs = makeEntryOrder() == nil
    note(self.limits.budget.withLock { $0.core })
  }

  /// The shards have ended, and their indexes with them.
  deinit {
    indexes.destroy()
    heap.destroy()
  }

  // MARK: What the cache takes

  /// The number of entries, and the sum of their costs. Each shard's part is as it was after the last change under its mutex.
  var count: Int { indexes.entryCount }
  var totalCost: UInt128 { indexes.totalCost }

  /// The number of shards that keys belong to.
  var openCount: Int { indexes.mask.openCount }

  var heldBytes: Int { heap.heldBytes }

  /// The bytes that the byte limit counts, except slabs.
  var ordinaryBytes: Int {
    heap.ordinaryBytes + totals.indexBytes.load(ordering: .relaxed) + totals.ghostBytes.load(ordering: .relaxed)
      + (observer?.nodes.byteCount.load(ordering: .relaxed) ?? 0) + (totals.absentBytes?.value ?? 0)
  }

  /// The bytes that the byte limit counts: bookkeeping, and slabs without the pages that are known to be lost.
  var chargedBytes: Int { heap.chargedBytes + ordinaryBytes }

  /// Bookkeeping that stays however much is evicted.
  var lastingBytes: Int { heap.ordinaryBytes + (1 + indexes.otherCount) * SlotIndex.homeBytes }

  /// The least byte limit: what an empty cache holds, a slab of small entries, and their bookkeeping.
  var neededBytes: Int { ordinaryBytes + heap.slabBytes + Self.firstEntryBytes + (observer == nil ? 0 : Self.firstKeyBytes) }

  /// The bookkeeping of a chunk and a slab, a small ghost, and an index of as many entries as fit a slab.
  private static let firstEntryBytes = 16 << 10
  /// Of tracked keys: the numbers and heads of the first ones, without their nodes.
  private static let firstKeyBytes = 4 << 10

  // MARK: Limits against it

  var isOverLimits: Bool { exceededLimit != nil }

  /// The limit that is exceeded now.
  var exceededLimit: DepartureReason? {
    let countLimit = limits.count.load(ordering: .relaxed)
    if countLimit != .max, count > countLimit { return .count }
    let limit = limits.cost.load(ordering: .relaxed)
    if limit != .max, totalCost > UInt128(limit) { return .cost }
    return isOverByteLimit ? .bytes : nil
  }

  /// What the next entry goes for most likely: the limit that is nearest, or a trim.
  var likelyNeed: EvictionNeed {
    var (reason, most) = (DepartureReason.trimmed, 0.0)
    func look(_ its: DepartureReason, _ now: Double, of limit: Double?) {
      guard let limit, now / max(1, limit) > most else { return }
      (reason, most) = (its, now / max(1, limit))
    }
    let (count, cost, bytes) = (
      limits.count.load(ordering: .relaxed), limits.cost.load(ordering: .relaxed), limits.bytes.load(ordering: .relaxed)
    )
    look(.count, Double(self.count), of: count == .max ? nil : Double(count))
    look(.cost, Double(totalCost), of: cost == .max ? nil : Double(cost))
    look(.bytes, Double(chargedBytes), of: bytes == .max ? nil : Double(bytes))
    return EvictionNeed(reason)
  }

  var isOverByteLimit: Bool {
    let limit = limits.bytes.load(ordering: .relaxed)
    return limit != .max && chargedBytes > limit
  }

  /// Whether an entry exceeds a limit even when it is alone. `beside`: slab bytes that cannot be evicted.
  func exceedsWholeLimit(_ cost: UInt64, _ byteCount: Int, beside: Int = 0) -> Bool {
    if cost > limits.cost.load(ordering: .relaxed) || limits.count.load(ordering: .relaxed) == 0 { return true }
    let limit = limits.bytes.load(ordering: .relaxed)
    if limit == .max { return false }
    // Beside its lasting bookkeeping, the cache has to hold a slab for a small entry, or a large entry.
    let needed = byteCount <= heap.slabBytes / 2 ? heap.slabBytes : bytesAlone(ofLarge: byteCount)
    return needed > limit - min(limit, lastingBytes + beside)
  }

  /// What a large entry takes where there is no other: whole pages with its witnesses, and bookkeeping. That is what a first
  /// entry takes; notes of each slab that the entry spans, up to a chunk of slabs, beyond which it has a mapping of its own; and
  /// what other shards take, if it has them open. A 32nd is more than was measured at any length, and so are 832 KiB.
  private func bytesAlone(ofLarge byteCount: Int) -> Int {
    let page = Int(purgeable_page_size_bytes())
    let bookkeeping = Self.firstEntryBytes + Self.firstKeyBytes + min(byteCount / 32, 832 << 10)
    return byteCount + byteCount / page * 2 + page + bookkeeping
  }

  /// Whether a large value would have no room beside those that are being written, even where all else were evicted.
  func isWithoutRoom(_ byteCount: Int) -> Bool {
    byteCount >= heap.largeByteCount && exceedsWholeLimit(0, byteCount, beside: heap.writingBytes)
  }

  /// The limit of slow growth after pressure, in bytes; `Int.max` for none.
  var growthLimit: Int { limits.growth.limit(by: clock) }

  /// The reason for evictions when memory is refused: the byte limit if there is one, else the machine.
  var refusalReason: DepartureReason { limits.bytes.load(ordering: .relaxed) == .max ? .pressure : .bytes }

  /// Whether nothing may be evicted for this under a shard's mutex.
  func asks(_ reason: DepartureReason) -> Bool { isAsking.load(ordering: .relaxed) && reason.isEviction }

  // MARK: Heads

  /// The head of an entry that is stored at a moment, nil for now. `lifetime`: nil for the default.
  func head(
    cost: UInt64? = nil, lifetime: Lifetime? = nil, recomputeCost: UInt64? = nil, at moment: UInt64? = nil
  ) -> EntryHead {
    let lifetime = lifetime ?? limits.lifetime.value
    var head = EntryHead(
      cost: cost, deadline: lifetime.sinceCreation.map { (moment ?? clock.now()) + $0 }, recomputeCost: recomputeCost)
    head.sinceLastUse = lifetime.sinceLastUse
    return head
  }

  /// The moment to note as an entry's last use; nil where it does not matter. Exact where the entry's time hangs on it.
  @inline(__always) func useMoment(_ head: EntryHead) -> UInt64? {
    head.sinceLastUse != nil ? clock.now() : notesUses.load(ordering: .relaxed) ? clock.recent : nil
  }

  /// When the time of an entry is over, which was last used at a moment, unless it is used again; nil: never. `now` is asked for
  /// only where that hangs on the last use.
  @inline(__always)
  func end(_ head: EntryHead, _ lastUse: UseTime?, asOf now: @autoclosure () -> UInt64) -> UInt64? {
    guard let time = head.sinceLastUse, let lastUse else { return head.deadline }
    return min(head.deadline ?? .max, lastUse.moment(asOf: now()) + time)
  }

  /// Whether the time of an entry with this head is over. `moment`: nil for now.
  @inline(__always)
  func isOver(_ head: EntryHead, _ lastUse: @autoclosure () -> UseTime?, at moment: UInt64? = nil) -> Bool {
    if let deadline = head.deadline, clock.hasReached(deadline) { return true }
    if head.sinceLastUse == nil { return false }
    let moment = moment ?? clock.now()
    return end(head, lastUse(), asOf: moment).map { $0 <= moment } ?? false
  }

  /// Makes the streams of lanes up to this one, unless they are there. False without memory. Threads that do so at the same time
  /// make one more each.
  func makeStreams(upTo lane: Lane) -> Bool {
    let wanted = (lane.index + 1) * QueueStreams.shardCount
    if streamCount.load(ordering: .relaxed) >= wanted { return true }
    let last = heap.streams[wanted - 1]
    while true {
      guard let made = heap.makeStream() else { return false }
      // What is pinned stays off offer.
      if heap.streams.queue(of: made) == .pinned { heap.withhold(made) }
      if made >= last { break }
    }
    streamCount.max(wanted, ordering: .relaxed)
    return true
  }

  // MARK: Losses

  /// Finds out which pages are lost.
  func findLosses() {
    let start = clock.now()
    heap.findLosses()
    sweepPace.note(from: start, to: clock.now())
  }
}

#if DEBUG
  final class NotesHook: Sendable {
    let body: @Sendable (inout HeldShard) -> Void
    init(_ body: @escaping @Sendable (inout HeldShard) -> Void) { self.body = body }
  }
#endif
