// SPDX-License-Identifier: MIT
// What the tests of the cache share: real discards of a cache's slabs, keys with manners of their own, a record of departures.

import CPurgeable
import Glibc
import Synchronization
import Testing

@testable import Purgeable

// MARK: Chance

/// SplitMix64: small, seeded, good enough to choose what a test does next.
struct SeededRandom: RandomNumberGenerator {
  var state: UInt64

  init(seed: UInt64) { state = seed }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var z = state
    z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
    z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
    return z ^ (z >> 31)
  }

  mutating func below(_ bound: Int) -> Int { Int(next() % UInt64(bound)) }
}

/// The seed of a random test: PURGEABLE_SEED, or one made up. A test that fails says which it was.
let chosenSeed: UInt64 =
  unsafe getenv("PURGEABLE_SEED").flatMap { unsafe UInt64(String(cString: $0)) } ?? UInt64.random(in: 1...(.max))

/// Heavy loops are divided by this under the thread sanitizer, where everything takes ten times as long.
let slowness: Int = unsafe dlsym(nil, "__tsan_init") != nil ? 10 : 1

extension Trait where Self == ConditionTrait {
  /// For long tests of one thread: the thread sanitizer has nothing to see there, and its own memory would be in the way.
  static var notUnderThreadSanitizer: Self { .enabled(if: slowness == 1, "one thread only, and long") }

  /// For tests that count what the process has resident or mapped: the sanitizers' own memory is in the way.
  static var countsMemory: Self {
    .enabled(if: unsafe slowness == 1 && dlsym(nil, "__asan_init") == nil, "the sanitizer has memory of its own")
  }

  /// For tests that fork: the thread sanitizer ends a child that starts a thread.
  static var forks: Self { .enabled(if: slowness == 1, "the thread sanitizer does not support threads after a fork") }
}

/// Whether the library was built to be fast: then loops may be longer.
#if DEBUG
  let isOptimized = false
#else
  let isOptimized = true
#endif

// MARK: Values

/// A value that says what it is: key and version in front, then bytes that follow from both.
func described(_ key: UInt32, version: UInt32, count: Int) -> [UInt8] {
  var bytes = [UInt8](repeating: UInt8(truncatingIfNeeded: key &* 7 &+ version) | 1, count: max(8, count))
  for i in 0..<4 {
    bytes[i] = UInt8(truncatingIfNeeded: key >> (8 * UInt32(i)))
    bytes[4 + i] = UInt8(truncatingIfNeeded: version >> (8 * UInt32(i)))
  }
  return bytes
}

/// The version that a described value carries; nil unless it is wholly one of that key.
func versionDescribed(in bytes: [UInt8], key: UInt32) -> UInt32? {
  guard bytes.count >= 8 else { return nil }
  var itsKey: UInt32 = 0
  var version: UInt32 = 0
  for i in 0..<4 {
    itsKey |= UInt32(bytes[i]) << (8 * UInt32(i))
    version |= UInt32(bytes[4 + i]) << (8 * UInt32(i))
  }
  let filler = UInt8(truncatingIfNeeded: key &* 7 &+ version) | 1
  return itsKey == key && !bytes[8...].contains { $0 != filler } ? version : nil
}

// MARK: Keys

/// Any other Hashable: no bytes of its own.
struct StructKey: Hashable, Sendable {
  var a: Int
  var b: String
}

/// Every two of them collide.
struct CollidingKey: Hashable, Sendable {
  var number: Int
  func hash(into hasher: inout Hasher) { hasher.combine(0) }
}

/// A key with an encoding of its own, of which only a part decides.
struct EncodedKey: PurgeableKey {
  var number: Int32
  var note: String

  static func == (left: Self, right: Self) -> Bool { left.number == right.number }
  func hash(into hasher: inout Hasher) { hasher.combine(number) }
  func withKeyBytes<R>(_ body: (RawSpan) -> R) -> R {
    unsafe withUnsafeBytes(of: number) { unsafe body($0.bytes) }
  }
}

// MARK: Departures

/// What a cache's delegate was told.
final class Departures<Key: Hashable & Sendable, Value: PurgeableValue>: Sendable {
  private let list = Mutex<[Departure<Key, Value>]>([])

  func note(_ departure: Departure<Key, Value>) { list.withLock { $0.append(departure) } }

  var all: [Departure<Key, Value>] { list.withLock { $0 } }

  /// All so far, which are then forgotten.
  func take() -> [Departure<Key, Value>] {
    list.withLock { list in
      defer { list = [] }
      return list
    }
  }

  func count(of reason: DepartureReason) -> Int { all.count { $0.reason == reason } }
}

extension MissReason {
  /// As a word, for expectations about look-ups.
  static func of<Value>(_ lookup: Lookup<Value>) -> MissReason? {
    if case .miss(let reason) = lookup { reason } else { nil }
  }
}

// MARK: Real discards

extension PurgeableCache {
  /// Where the cache's slabs lie now. Looks at one element of each, by locking it: what was on offer there has to be offered again.
  func slabRanges() -> [PageRange] {
    var ranges: [PageRange] = []
    let heap = unsafe engine.heap.raw
    for stream in engine.shards.flatMap(\.streams) {
      var slab = purgeable_slab_t(index: 0, generation: 0)
      var error = unsafe purgeable_stream_oldest(heap, stream, &slab)
      while error == 0 {
        if let range = range(of: slab) { ranges.append(range) }
        error = unsafe purgeable_slab_next(heap, slab, &slab)
      }
    }
    return ranges
  }

  private func range(of slab: purgeable_slab_t) -> PageRange? {
    let heap = unsafe engine.heap.raw
    var cursor: UInt32 = 0
    var reference = purgeable_reference_t(place: 0, generation: 0)
    while unsafe purgeable_slab_next_element(heap, slab, &cursor, &reference) == 0 {
      var bytes: UnsafeRawPointer?
      var length = 0
      guard unsafe purgeable_heap_lock(heap, reference, &bytes, &length) == .intact else { continue }
      // Kept only to tell the kernel about it. Slabs are aligned to their size.
      let address = UInt(bitPattern: bytes)
      _ = unsafe purgeable_heap_unlock(heap, reference)
      let start = address & ~UInt(engine.slabBytes - 1)
      return PageRange(start: start, byteCount: max(engine.slabBytes, Int(address - start) + length))
    }
    return nil
  }

  /// Nothing stays open: every page may go on offer.
  private func sealAll() {
    for stream in engine.shards.flatMap(\.streams) { _ = unsafe purgeable_stream_seal(engine.heap.raw, stream) }
  }

  /// Has the kernel take every third page of what is unlocked. Nobody is told.
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

  /// Has the kernel take all that is unlocked. Nobody is told.
  func discardAll() {
    sealAll()
    discardOffered()
    // A page that both offers skipped, on a busy machine, goes on offer again only after it was locked.
    for _ in 0..<50 where statistics.residentBytes > 0 {
      drainBatches()
      lockEach()
      discardOffered()
    }
  }

  /// Locks and unlocks every element that is there.
  private func lockEach() {
    let heap = unsafe engine.heap.raw
    for stream in engine.shards.flatMap(\.streams) {
      var slab = purgeable_slab_t(index: 0, generation: 0)
      var error = unsafe purgeable_stream_oldest(heap, stream, &slab)
      while error == 0 {
        var cursor: UInt32 = 0
        var reference = purgeable_reference_t(place: 0, generation: 0)
        while unsafe purgeable_slab_next_element(heap, slab, &cursor, &reference) == 0 {
          guard unsafe purgeable_heap_lock(heap, reference, nil, nil) == .intact else { continue }
          _ = unsafe purgeable_heap_unlock(heap, reference)
        }
        error = unsafe purgeable_slab_next(heap, slab, &slab)
      }
    }
  }

  /// As `discardAll`, but open slabs stay open.
  func discardOffered() {
    let ranges = slabRanges()
    // One offer skips pages that lie in a CPU's batch, and so does one PAGEOUT.
    for _ in 0..<4 {
      offerIdle()
      for range in ranges { range.advise(advicePageout) }
    }
  }

  /// Where one value lies.
  func valueRange(_ key: Key) -> PageRange? { withBytes(forKey: key) { PageRange(of: $0) } }

  /// What always holds while nobody changes anything: totals against slots, sums, and what can be found.
  func checkBooks(sourceLocation: SourceLocation = #_sourceLocation) {
    var count = 0
    var cost: UInt128 = 0
    for shard in engine.shards {
      let (slots, sums) = engine.withState(shard) { state -> (Int, [QueueSums]) in
        let table = shard.index.current()
        let slots = (0..<table.slotCount).count { !Slot(bits: table.slots![$0].relaxed).isEmpty }
        #expect(slots == state.slotCount, sourceLocation: sourceLocation)
        return (slots, state.sums)
      }
      // Entries on a page that is known to be lost are off the books before they leave.
      #expect(sums[0].count + sums[1].count <= slots, sourceLocation: sourceLocation)
      count += sums[0].count + sums[1].count
      cost += sums[0].cost + sums[1].cost
    }
    #expect(self.count == count, sourceLocation: sourceLocation)
    #expect(totalCost == UInt64(clamping: cost), sourceLocation: sourceLocation)
  }

  /// After a sweep, what was stored and did not leave is there.
  func checkBooksSwept(sourceLocation: SourceLocation = #_sourceLocation) {
    sweep()
    checkBooks(sourceLocation: sourceLocation)
    let numbers = statistics
    let left = numbers.departures.values.reduce(0, +)
    #expect(UInt64(count) == numbers.insertions + numbers.replacements - left, sourceLocation: sourceLocation)
  }
}

extension PageRange {
  init(start: UInt, byteCount: Int) {
    self.start = start
    self.byteCount = byteCount
  }
}
