// SPDX-License-Identifier: MIT
// Shared by the tests of the cache: real discards of a cache's slabs, special keys, a record of departures.

import CPurgeable
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

// MARK: Caches

extension PurgeableCache {
  /// A cache with a clock that the test sets, a seed of the keys' hashes, an order of its own.
  convenience init(
    name: String = "cache", countLimit: Int? = nil, costLimit: Int? = nil, byteLimit: Int? = nil,
    idleTime: Duration? = nil, tracksKeys: Bool = false, clock: MonotonicClock, hashSeed: UInt64? = nil,
    entryOrder: (@Sendable () -> any EntryOrder)? = nil, onDeparture: (@Sendable (Departure<Key, Value>) -> Void)? = nil
  ) throws(PurgeableError) {
    var options = CacheOptions(name: name, countLimit: countLimit, costLimit: costLimit, byteLimit: byteLimit)
    (options.idleTime, options.tracksKeys) = (idleTime, tracksKeys)
    try self.init(options, clock: clock, hashSeed: hashSeed, entryOrder: entryOrder, onDeparture: onDeparture)
  }
}

/// Of this process.
func residentBytes() -> Int {
  SmallFile.text("/proc/self/smaps_rollup").flatMap { SmallFile.number(after: "Rss", in: $0) }.map { Int($0) } ?? 0
}

// MARK: Chance

/// The seed of random tests.
let chosenSeed = TestRun.seed

/// Chance on any thread, from the seed. Which thread gets which number hangs on the scheduler.
enum Chance {
  private static let askCount = Atomic<UInt64>(0)

  /// True once in so many calls.
  static func comes(onceIn count: Int) -> Bool {
    var random = SplitMix64(seed: chosenSeed &+ askCount.add(1, ordering: .relaxed).oldValue)
    return random.index(below: count) == 0
  }
}

/// Heavy loops are divided by this under the thread sanitizer, where everything takes ten times as long.
let slowness: Int = unsafe dlsym(nil, "__tsan_init") != nil ? 10 : 1

extension Trait where Self == ConditionTrait {
  /// For long tests of one thread: the thread sanitizer finds nothing there, and its own memory is in the way.
  static var notUnderThreadSanitizer: Self { .enabled(if: slowness == 1, "one thread only, and long") }

  /// For tests that count what the process has resident or mapped: the sanitizers' own memory is in the way.
  static var countsMemory: Self {
    .enabled(if: unsafe slowness == 1 && dlsym(nil, "__asan_init") == nil, "the sanitizer has memory of its own")
  }

  /// For tests that fork: the thread sanitizer ends a child that starts a thread.
  static var forks: Self { .enabled(if: slowness == 1, "the thread sanitizer does not support threads after a fork") }
}

/// Whether the library was optimized: then loops may be longer.
#if DEBUG
  let isOptimized = false
#else
  let isOptimized = true
#endif

// MARK: Values

/// A value that describes itself: key and version in front, then bytes that follow from both.
func described(_ key: UInt32, version: UInt32, count: Int) -> [UInt8] {
  let length = max(8, count)
  // By calls of the C library and stores of whole numbers: debug builds take far longer byte by byte.
  return unsafe [UInt8](unsafeUninitializedCapacity: length) { buffer, made in
    made = length
    let bytes = UnsafeMutableRawPointer(buffer.baseAddress!)
    // Safe: there is room for so many bytes, and these are eight or more.
    unsafe memset(bytes, Int32(rest(key, version)), length)
    unsafe bytes.storeBytes(of: key.littleEndian, as: UInt32.self)
    unsafe bytes.storeBytes(of: version.littleEndian, toByteOffset: 4, as: UInt32.self)
  }
}

/// Each byte of a described value behind the first eight.
private func rest(_ key: UInt32, _ version: UInt32) -> UInt8 { UInt8(truncatingIfNeeded: key &* 7 &+ version) | 1 }

/// The version in a described value; nil unless all of it is one of that key.
func versionDescribed(in bytes: [UInt8], key: UInt32) -> UInt32? {
  guard bytes.count >= 8 else { return nil }
  return unsafe bytes.withUnsafeBytes { bytes -> UInt32? in
    guard unsafe UInt32(littleEndian: bytes.loadUnaligned(as: UInt32.self)) == key else { return nil }
    let version = unsafe UInt32(littleEndian: bytes.loadUnaligned(fromByteOffset: 4, as: UInt32.self))
    if bytes.count == 8 { return version }
    // All bytes of the rest are the same where each is the same as the next one. Safe: there is one at least.
    let start = unsafe bytes.baseAddress! + 8
    let isWhole = unsafe bytes[8] == rest(key, version) && memcmp(start, start + 1, bytes.count - 9) == 0
    return isWhole ? version : nil
  }
}

// MARK: Keys

/// A Hashable key without an encoding of its own.
struct StructKey: Hashable, Sendable {
  var a: Int
  var b: String
}

/// A key whose hash is the same for all.
struct CollidingKey: Hashable, Sendable {
  var number: Int
  func hash(into hasher: inout Hasher) { hasher.combine(0) }
}

/// A key with an encoding of its own; only a part of the key decides.
struct EncodedKey: PurgeableKey {
  var number: Int32
  var note: String

  static func == (left: Self, right: Self) -> Bool { left.number == right.number }
  func hash(into hasher: inout Hasher) { hasher.combine(number) }
  init(number: Int32, note: String) { (self.number, self.note) = (number, note) }
  init?(purgeableBytes: RawSpan) {
    guard let number = Int32(purgeableBytes: purgeableBytes) else { return nil }
    self.init(number: number, note: "from bytes")
  }
  func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R { try number.withPurgeableBytes(body) }
}

/// Members without a byte between them, or behind them.
struct TileKey: PurgeableKey, BitwiseCopyable {
  enum Kind: PurgeableKey, BitwiseCopyable { case land, water }

  var level: Int8
  var kind: Kind
  var column: Int16
  var place: (UInt8, Bool)

  static func == (left: Self, right: Self) -> Bool {
    left.level == right.level && left.kind == right.kind && left.column == right.column && left.place == right.place
  }
  func hash(into hasher: inout Hasher) { hasher.combine(column) }
}

struct FloatKey: PurgeableKey, BitwiseCopyable { var x: Float }

/// Three bytes between its members have no meaning.
struct PaddedKey: PurgeableKey, BitwiseCopyable {
  var level: Int8
  var column: Int32

  init(_ number: Int8, padding: UInt8) {
    (level, column) = (number, Int32(number))
    unsafe withUnsafeMutableBytes(of: &self) { bytes in
      for i in 1..<4 { unsafe bytes[i] = padding }
    }
  }
}

extension PurgeableCache {
  /// How many tracked keys there are, and how many have departed and not ended.
  var keyCounts: (living: Int, departed: Int) {
    guard let nodes = teller?.nodes else { return (0, 0) }
    var (living, tableBytes) = (0, 0)
    for shard in engine.shards.all {
      engine.shards.hold(shard) { held in
        living += held.keys.count
        tableBytes += held.keys.byteCount
      }
    }
    return (living, (nodes.byteCount.load(ordering: .relaxed) - tableBytes) / nodes.nodeByteCount - living)
  }
}

// MARK: Departures

/// The departures that a cache's handler was told.
final class Departures<Key: Hashable & Sendable, Value: Sendable>: Sendable {
  private let list = Mutex<[Departure<Key, Value>]>([])

  func note(_ departure: Departure<Key, Value>) { list.withLock { $0.append(departure) } }

  var all: [Departure<Key, Value>] { list.withLock { $0 } }

  /// Returns all departures so far, and forgets them.
  func take() -> [Departure<Key, Value>] {
    list.withLock { list in
      defer { list = [] }
      return list
    }
  }

  func count(of reason: DepartureReason) -> Int { all.count { $0.reason == reason } }
}

extension MissReason {
  /// The reason of a miss, for expectations about look-ups.
  static func of<Value>(_ lookup: Lookup<Value>) -> MissReason? {
    if case .miss(let reason) = lookup { reason } else { nil }
  }
}

// MARK: Real discards

/// A clock that stands still until it is told how much time has passed.
final class SetClock: Sendable {
  private let nanoseconds = Atomic<UInt64>(1_000_000_000_000)

  var monotonic: MonotonicClock { MonotonicClock { self.nanoseconds.load(ordering: .relaxed) } }

  func advance(seconds: Double) { nanoseconds.add(UInt64(seconds * 1e9), ordering: .relaxed) }
}

extension PurgeableCache {
  /// The cache's slabs now. Locks one element of each, so what was on offer there has to be offered again.
  func slabRanges() -> [PageRange] { engine.streams.flatMap { ranges(of: $0) } }

  /// Those of one queue in the founder.
  func founderRanges(of queue: EvictionQueue) -> [PageRange] {
    let streams = engine.shards.hold(engine.shards.all[0]) { held in held.usedLanes(of: queue).map { held.stream($0) } }
    return streams.flatMap { ranges(of: $0) }
  }

  private func ranges(of stream: purgeable_stream_t) -> [PageRange] {
    engine.heap.slabs(of: stream).compactMap { range(of: $0) }
  }

  private func range(of slab: purgeable_slab_t) -> PageRange? {
    let heap = engine.heap
    var cursor: UInt32 = 0
    while let reference = heap.nextElement(of: slab, &cursor) {
      let (outcome, payload) = unsafe heap.lock(reference)
      guard outcome == .intact else { continue }
      // Kept only to tell the kernel about it. Slabs are aligned to their size.
      let address = UInt(bitPattern: payload.baseAddress)
      heap.unlock(reference)
      let start = address & ~UInt(heap.slabBytes - 1)
      return PageRange(start: start, byteCount: max(heap.slabBytes, Int(address - start) + payload.count))
    }
    return nil
  }

  /// As `trim(level:)`, without its time limit: in a fifth of a second a busy machine does fewer slices than were asked for.
  @discardableResult
  func trimUntimed(level: PressureLevel) -> PressureRelief { engine.trim(level: level, timeLimit: .max) }

  /// Moves all small entries to fresh slabs.
  func moveAll() {
    for shard in engine.shards.all {
      engine.shards.hold(shard) { held in
        for lane in held.usedLanes {
          held.heap.seal(held.stream(lane))
          for slab in Array(held.heap.slabs(of: held.stream(lane))) { _ = held.run(over: slab, .compaction) }
        }
      }
    }
  }

  /// Seals all open slabs, so that every page may go on offer.
  func sealAll() {
    for stream in engine.streams { engine.heap.seal(stream) }
  }

  /// Has the kernel take every third page of unlocked slabs, without telling the library.
  func discardEveryThirdPage() {
    sealAll()
    let ranges = slabRanges()
    for _ in 0..<4 {
      offerIdle()
      for range in ranges {
        for page in stride(from: 0, to: range.byteCount / pageSize, by: 3) {
          range.advise(advicePageout, page: page, pageCount: 1)
        }
      }
    }
  }

  /// Has the kernel take all slabs, of which none is locked, without telling the library. For caches that have lost nothing so
  /// far: a page without any entry that is whole cannot be locked, and so goes on offer no more if an offer skipped it.
  func discardAll() {
    sealAll()
    discardOffered()
    // A page that both offers skipped, on a busy machine, goes on offer again only after it was locked.
    var left = statistics.memory.residentBytes!
    var roundsWithoutProgress = 0
    while left > 0, roundsWithoutProgress < 200 {
      drainBatches()
      lockEach()
      discardOffered()
      let now = statistics.memory.residentBytes!
      roundsWithoutProgress = now < left ? 0 : roundsWithoutProgress + 1
      left = now
    }
  }

  /// Has the kernel take what it will of unlocked slabs. For caches of which something is locked or lost, or which other threads
  /// use.
  func discardMost() {
    sealAll()
    discardOffered()
  }

  /// Locks and unlocks every element.
  private func lockEach() {
    let heap = engine.heap
    for slab in engine.streams.flatMap({ heap.slabs(of: $0) }) {
      var cursor: UInt32 = 0
      while let reference = heap.nextElement(of: slab, &cursor) {
        if unsafe heap.lock(reference).outcome == .intact { heap.unlock(reference) }
      }
    }
  }

  /// As `discardMost`, but open slabs stay open.
  func discardOffered() {
    let ranges = slabRanges()
    // One offer skips pages that lie in a processor's batch, and so does one PAGEOUT.
    for _ in 0..<4 {
      offerIdle()
      for range in ranges { range.advise(advicePageout) }
    }
  }

  /// The pages of one value.
  func valueRange(_ key: Key) -> PageRange? { withBytes(forKey: key) { PageRange(of: $0) } }

  /// Compares every sum with a recount over index and heap. Also while other threads use the cache.
  func recountBooks(sourceLocation: SourceLocation = #_sourceLocation) {
    let failures = engine.shards.checkBooks()
    #expect(failures.isEmpty, "\(failures.joined(separator: "\n"))", sourceLocation: sourceLocation)
  }

  /// Checks what always holds while no thread of the program changes the cache: totals against slots, sums, and entries that can
  /// be found. The library's thread may be giving entries back, so totals and sums are compared again where they differ.
  func checkBooks(sourceLocation: SourceLocation = #_sourceLocation) {
    recountBooks(sourceLocation: sourceLocation)
    var sums = addUp(sourceLocation)
    for _ in 0..<1000 where count != sums.count || totalCost != Int(clamping: sums.cost) {
      usleep(1000)
      sums = addUp(sourceLocation)
    }
    #expect(count == sums.count, sourceLocation: sourceLocation)
    #expect(totalCost == Int(clamping: sums.cost), sourceLocation: sourceLocation)
  }

  private func addUp(_ sourceLocation: SourceLocation) -> (count: Int, cost: UInt128) {
    var (all, lostCount) = ((count: 0, cost: UInt128(0)), 0)
    for shard in engine.shards.all {
      let (slots, sums) = engine.shards.hold(shard) { held -> (Int, QueueSums) in
        var slots = 0
        shard.index.forEachSlot { _ in slots += 1 }
        #expect(slots == held.slots.count, sourceLocation: sourceLocation)
        let kept = held.keys.hollowCount
        #expect(held.books.lostCount >= kept, sourceLocation: sourceLocation)
        lostCount += held.books.lostCount
        return (slots, QueueSums(cost: held.books.cost, count: held.books.count, byteCount: held.books.byteCount))
      }
      // Entries on a page that is known to be lost are off the books before they leave.
      #expect(sums.count <= slots, sourceLocation: sourceLocation)
      all.count += sums.count
      all.cost += sums.cost
    }
    all.count += lostCount
    return all
  }

  /// Sweeps, and checks that the entries that were stored and did not leave are there.
  func checkBooksSwept(sourceLocation: SourceLocation = #_sourceLocation) {
    sweep()
    checkBooks(sourceLocation: sourceLocation)
    let numbers = statistics
    let left = numbers.departures.values.reduce(0, +)
    #expect(count == numbers.insertionCount + numbers.replacementCount - left, sourceLocation: sourceLocation)
  }
}

extension PageRange {
  init(start: UInt, byteCount: Int) {
    self.start = start
    self.byteCount = byteCount
  }
}

/// From here on this process can start no thread: their stacks would be larger than the address space. For exit tests.
func refuseThreads() {
  var attributes = pthread_attr_t()
  unsafe pthread_attr_init(&attributes)
  unsafe pthread_attr_setstacksize(&attributes, 1 << 50)
  typealias SetDefault = @convention(c) (UnsafeMutableRawPointer) -> Int32
  // Safe: the C library's function has exactly this type.
  let setDefault = unsafe unsafeBitCast(dlsym(nil, "pthread_setattr_default_np"), to: SetDefault.self)
  let status = unsafe withUnsafeMutablePointer(to: &attributes) { unsafe setDefault($0) }
  require(status == 0, "pthread_setattr_default_np: \(status)")
}

/// The library's thread does not begin in this process: it counts as called, and nobody calls it again. For exit tests that count
/// what other threads do.
func keepLibraryThreadAway() {
  WorkBell.isRung.store(true, ordering: .relaxed)
  Maintainer.shared.hasNews.store(true, ordering: .relaxed)
}

extension CacheEngine {
  /// The streams of all shards.
  var streams: [purgeable_stream_t] {
    shards.all.flatMap { shard in shards.hold(shard) { held in held.usedLanes.map { held.stream($0) } } }
  }
}
