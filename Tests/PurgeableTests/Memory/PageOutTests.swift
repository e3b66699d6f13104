// SPDX-License-Identifier: MIT
// Discards on demand, with which demonstrations and tests make the kernel take what is on offer.

import CPurgeable
import CPurgeable.Testing
import Testing

@testable import Purgeable

@Suite("page out on demand")
struct PageOutTests {
  static let canDiscard = (try? KernelSupport.probe())?.behavior == .works
  static let valueBytes = 8 << 10

  static func value(_ number: Int) -> [UInt8] { pattern(valueBytes, seed: UInt8(truncatingIfNeeded: number)) }

  static func filled(_ count: Int) throws -> PurgeableCache<Int, [UInt8]> {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for number in 0..<count { cache.setValue(value(number), forKey: number) }
    // A page that lies in a processor's batch can be neither offered nor taken.
    drainBatches()
    cache.offerIdle()
    cache.offerIdle()
    return cache
  }

  static func leftCount(_ cache: PurgeableCache<Int, [UInt8]>, of count: Int) -> Int {
    (0..<count).count { number in
      guard let found = cache.peekValue(forKey: number) else { return false }
      #expect(found == value(number))
      return true
    }
  }

  @Test("what is on offer goes, and only that; what is left is right", .enabled(if: canDiscard))
  func takesWhatIsOffered() throws {
    let cache = try Self.filled(1000)
    var hand = PageOutHand()
    let taken = try cache.pageOut(hand: &hand)
    #expect(taken > 3 << 20)
    #expect(Self.leftCount(cache, of: 1000) < 900)
    // Nothing is left to take, except pages that one offer skipped.
    #expect(try cache.pageOut(hand: &hand) < 1 << 20)
  }

  @Test("a program has its own cache taken: misses, counted as discarded, and nothing wrong", .enabled(if: canDiscard))
  func byTheProgram() throws {
    let cache = try PurgeableCache<Int, [UInt8]>()
    for number in 0..<1000 { cache.setValue(Self.value(number), forKey: number) }
    drainBatches()
    #expect(try cache.pageOut() > 3 << 20)
    let left = Self.leftCount(cache, of: 1000)
    #expect(left < 900)
    #expect(cache.statistics.departures[.discarded] == 1000 - left)
    // Stored again, they are there.
    for number in 0..<1000 { cache.setValue(Self.value(number), forKey: number) }
    #expect(Self.leftCount(cache, of: 1000) == 1000)
  }

  @Test("as much as was asked for, slab by slab, all round", .enabled(if: canDiscard))
  func takesInTurn() throws {
    let cache = try Self.filled(2000)
    var hand = PageOutHand()
    let first = try cache.pageOut(1 << 20, hand: &hand)
    #expect((1 << 20...2 << 20).contains(first))
    let before = Self.leftCount(cache, of: 2000)
    #expect(before > 1500 && before < 2000)
    #expect(try cache.pageOut(1 << 20, hand: &hand) >= 1 << 20)
    #expect(Self.leftCount(cache, of: 2000) < before)
    #expect(try cache.pageOut(0, hand: &hand) == 0)
    #expect(try cache.pageOut(-5, hand: &hand) == 0)
  }

  @Test("what is locked stays", .enabled(if: canDiscard))
  func lockedStays() throws {
    let cache = try Self.filled(500)
    let intact: Bool? = try cache.withBytes(forKey: 250) { span in
      var hand = PageOutHand()
      try cache.pageOut(hand: &hand)
      return span.array == Self.value(250)
    }
    #expect(intact == true)
  }

  @Test("NULL is refused; an empty heap has nothing; a hand beyond the end begins anew")
  func edges() throws {
    var discarded = 7
    #expect(unsafe purgeable_heap_page_out(nil, .max, nil, &discarded) == Status.invalid)
    #expect(discarded == 7)
    var made: OpaquePointer?
    try #require(unsafe purgeable_heap_create(nil, &made) == 0)
    defer { unsafe purgeable_heap_destroy(made) }
    var hand: UInt32 = 12345
    #expect(unsafe purgeable_heap_page_out(made, .max, &hand, &discarded) == 0)
    #expect(discarded == 0)
    #expect(hand == 0)
    #expect(unsafe purgeable_heap_page_out(made, .max, nil, nil) == 0)
  }

  @Test("a system call that fails is answered with its number, and nothing leaks or changes")
  func faults() async {
    // In a process of its own, because the fault would hit other tests.
    await #expect(processExitsWith: .success) {
      let cache = try PageOutTests.filled(300)
      let calls = [purgeable_testing_call_mincore, purgeable_testing_call_madvise_other, purgeable_testing_call_allocate]
      for call in calls {
        var hand = PageOutHand()
        purgeable_testing_fail(call.rawValue, 1, 12, false)
        #expect(throws: PurgeableError.self) { try cache.pageOut(hand: &hand) }
        #expect(purgeable_testing_has_failed())
        purgeable_testing_fail(0, 0, 0, false)
      }
      #expect(PageOutTests.leftCount(cache, of: 300) == 300)
    }
  }
}
