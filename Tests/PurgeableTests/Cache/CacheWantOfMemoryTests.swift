// SPDX-License-Identifier: MIT
// A cache allocates nothing to give memory back: bookkeeping never grows by a reaction or a trim, and refused memory is not
// needed.

import CPurgeable
import CPurgeable.Testing
import Glibc
import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("PurgeableCache, want of memory", .notUnderThreadSanitizer)
struct CacheWantOfMemoryTests {
  private func filled(_ count: Int = 16_000) throws -> PurgeableCache<Int, [UInt8]> {
    let cache = try PurgeableCache<Int, [UInt8]>()
    cache.staysInOneShard()
    for key in 0..<count { cache[key] = pattern(16) }
    return cache
  }

  @Test("no reaction and no trim makes bookkeeping larger, the first one of a full cache without limits neither")
  func bookkeepingDoesNotRise() throws {
    let count = TestRun.isFull ? 16_000 : 5000
    for level in [PressureLevel.normal, .warning, .critical] {
      let cache = try filled(count)
      let before = cache.engine.base.ordinaryBytes
      cache.trimUntimed(level: level)
      #expect(cache.engine.base.ordinaryBytes <= before, "\(level): \(before), then \(cache.engine.base.ordinaryBytes)")
    }
    let trims: [(PurgeableCache<Int, [UInt8]>) -> Void] = [
      { $0.trim(toCount: count / 32 * 31) }, { $0.trim(toCost: count / 64 * 1000) }, { $0.trim(toBytes: $0.byteCount / 8 * 7) },
      { $0.trim(toFraction: 0.9) }, { $0.sweep() }, { $0.offerIdle() },
    ]
    for trim in trims {
      let cache = try filled(count)
      let before = cache.engine.base.ordinaryBytes
      trim(cache)
      #expect(cache.engine.base.ordinaryBytes <= before, "\(before), then \(cache.engine.base.ordinaryBytes)")
    }
  }

  @Test("what the kernel took, found by a look-up or by a sweep, makes bookkeeping no larger")
  func lossesDoNotRaiseBookkeeping() throws {
    try needRealDiscards()
    let cache = try filled()
    let before = cache.engine.base.ordinaryBytes
    cache.discardEveryThirdPage()
    for key in 0..<1000 { _ = cache.value(forKey: key) }
    cache.sweep()
    #expect(cache.engine.base.ordinaryBytes <= before)
  }

  @Test("a ghost of a sixteenth is there in advance: what one slice gave back is remembered, in part")
  func ghostInAdvance() throws {
    let cache = try filled()
    let before = cache.count
    cache.trimUntimed(level: .warning)
    let gone = (0..<16_000).filter { !cache.containsValue(forKey: $0) }
    #expect(gone.count > before / 32)
    let remembered = gone.count { MissReason.of(cache.lookUpValue(forKey: $0)) == .evicted }
    #expect(remembered > gone.count / 10, "\(remembered) of \(gone.count)")
    let ghosts = cache.engine.base.totals.ghostBytes.load(ordering: .relaxed)
    #expect(ghosts < 16_000, "\(ghosts) bytes of ghosts for 16,000 entries")
  }

  @Test("a ghost of a small cache is some hundred bytes, not a page; without memory for one there is none")
  func smallGhosts() async {
    // In a process of its own, because the refusals would hit other tests.
    await #expect(processExitsWith: .success) {
      var ghost = Ghost()
      require(ghost.byteCount == 0, "a new ghost has memory")
      ghost.reserve(64)
      require(ghost.byteCount > 0 && ghost.byteCount <= 512, "\(ghost.byteCount) bytes")
      ghost.note(1 << 40, .removed)
      purgeable_testing_fail(UInt32(purgeable_testing_call_any.rawValue), 1, ENOMEM, true)
      ghost.reserve(100_000)
      purgeable_testing_fail(0, 0, 0, false)
      require(ghost.byteCount <= 512 && ghost.rememberedLimit == 64, "the old ghost stays")
      require(ghost.reason(of: 1 << 40) == .removed, "and what it remembers")
    }
  }

  @Test("a slab of more entries than are noted at a time is emptied piece by piece, and the books stay right")
  func pieces() throws {
    // 16 bytes an entry: a slab of 64 KiB has four thousand of them, two pieces.
    let cache = try PurgeableCache<UInt32, [UInt8]>()
    let count: UInt32 = TestRun.isFull ? 80_000 : 40_000
    let value = pattern(4)
    for key in 0..<count { cache[key] = value }
    let heap = cache.engine.heap
    let most = cache.engine.shards.all.flatMap { shard in
      cache.engine.shards.hold(shard) { held in
        held.usedLanes.flatMap { heap.slabs(of: held.stream($0)).compactMap { heap.information($0)?.element_count } }
      }
    }.max()
    #expect(try #require(most) > EvictionNotes.pieceCapacity)
    for key in stride(from: 0, to: count, by: 3) { for _ in 0..<2 { #expect(cache.value(forKey: key) == value) } }
    // Evicts slab by slab until there is room.
    try cache.setByteLimit(cache.byteCount / 3)
    #expect(cache.statistics.copyCount > 0)
    #expect(cache.count < Int(count))
    cache.checkBooksSwept()
    // No slab went back with entries in it.
    #expect(cache.statistics.departures[.discarded, default: 0] == 0)
    var (used, others) = (0, 0)
    for key in 0..<count {
      guard let found = cache.value(forKey: key) else { continue }
      #expect(found == value)
      if key % 3 == 0 { used += 1 } else { others += 1 }
    }
    // Used entries stay, however far the limit was lowered: a larger share of them than of the others, of which there are twice
    // as many.
    #expect(used > others, "\(used) that were used, \(others) others")
  }

  @Test("marks of idle time keep to their room: the oldest first, those of a slab at once")
  func idleMarks() {
    var marks = SlabMarks()
    func slab(_ number: UInt32) -> purgeable_slab_t { purgeable_slab_t(index: number, generation: 1) }
    for number in 0..<12 { marks.append(slab(UInt32(number % 4)), now: UInt64(number)) }
    marks.removeAll(at: slab(0))
    // Left are those of 1, 2, 3 and 5.
    #expect(marks.takeDue(12, now: 12) == nil)
    #expect(marks.takeDue(11, now: 12)?.index == 1)
    #expect(!marks.wantsMark(32, now: 12) && marks.wantsMark(28, now: 12))
    #expect(marks.takeDue(0, now: 12)?.index == 2)
    for number in 1..<4 { marks.removeAll(at: slab(UInt32(number))) }
    #expect(marks.takeDue(0, now: 12) == nil && marks.wantsMark(.max, now: 0))
  }
}
