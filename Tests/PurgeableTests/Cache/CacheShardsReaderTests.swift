// SPDX-License-Identifier: MIT
// What readers find while shards open and close, at each moment of a move.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

#if DEBUG
  /// The readers that take no mutex, where keys are not tracked.
  enum Reader: CaseIterable {
    case value, lock, contains

    /// The version of a key's value; -1 where there is one whose bytes are not looked at, nil where there is none.
    func version(of key: UInt32, in cache: PurgeableCache<UInt32, [UInt8]>) -> Int? {
      switch self {
      case .value: cache[key].map { versionDescribed(in: $0, key: key).map(Int.init) ?? -2 }
      case .lock:
        cache.withBytes(forKey: key) { versionDescribed(in: [UInt8](copying: $0), key: key).map(Int.init) ?? -2 }
      case .contains: cache.containsValue(forKey: key) ? -1 : nil
      }
    }
  }

  extension PurgeableCache<UInt32, [UInt8]> {
    /// Opens the shards, and moves all entries there; or closes them.
    fileprivate func moveAll(opens: Bool) {
      if !opens { return close() }
      open()
      moveAllHome()
    }
  }

  @Suite("Cache: shards, readers")
  struct CacheShardsReaderTests {
    /// Does something once, when a reader has loaded the mask, before its look of this number.
    private func before(
      look wanted: Int, of cache: PurgeableCache<UInt32, [UInt8]>, _ body: @escaping @Sendable () -> Void
    ) {
      let isDone = Atomic<Bool>(false)
      _ = cache.engine.shards.sizes.lookHook.storeIfNil(
        LookHook { number in
          if number == wanted, !isDone.exchange(true, ordering: .relaxed) { body() }
        })
    }

    @Test(
      "a reader that loaded the mask before the shards opened misses no value that was replaced meanwhile",
      arguments: Reader.allCases)
    func beforeOpening(reader: Reader) throws {
      let cache = try describedCache()
      before(look: 0, of: cache) {
        cache.open()
        cache[5] = described(5, version: 2, count: 300)
      }
      #expect(reader.version(of: 5, in: cache) == (reader == .contains ? -1 : 2))
    }

    @Test("a key that is nowhere is looked for once, and twice while entries move")
    func looks() throws {
      let cache = try describedCache()
      let looks = Mutex<[Int]>([])
      _ = cache.engine.shards.sizes.lookHook.storeIfNil(LookHook { number in looks.withLock { $0.append(number) } })
      #expect(cache[1_000_000] == nil && looks.withLock { $0 } == [0])
      _ = cache.engine.base.moveHook.storeIfNil(
        LookHook { _ in
          looks.withLock { $0 = [] }
          #expect(cache[1_000_000] == nil && looks.withLock { $0 } == [0, 1])
        })
      cache.open()
      cache.moveAllHome()
      looks.withLock { $0 = [] }
      #expect(cache[1_000_000] == nil && looks.withLock { $0 } == [0])
    }

    @Test(
      "a removal between two looks is no miss of another entry, and one of the key itself is a miss",
      arguments: Reader.allCases)
    func removedBetween(reader: Reader) throws {
      let isBetween = Atomic<Bool>(false)
      // Where the library's thread has moved the rest by then, there is one look, and another try.
      for _ in 0..<100 where !isBetween.load(ordering: .relaxed) {
        let cache = try describedCache()
        cache.open()
        // The oldest 256 move home with this.
        cache[299] = described(299, version: 2, count: 200)
        before(look: 1, of: cache) {
          isBetween.store(true, ordering: .relaxed)
          cache.remove(forKey: 5)
          cache.remove(forKey: 6)
        }
        let version = reader.version(of: 5, in: cache)
        if !isBetween.load(ordering: .relaxed) { continue }
        #expect(version == nil)
        #expect(reader.version(of: 6, in: cache) == nil)
        #expect(reader.version(of: 7, in: cache) == (reader == .contains ? -1 : 1))
      }
      let wasBetween = isBetween.load(ordering: .relaxed)
      #expect(wasBetween)
    }

    @Test("a reader that loaded the mask before the shards closed misses no value", arguments: Reader.allCases)
    func beforeClosing(reader: Reader) throws {
      let cache = try describedCache()
      cache.open()
      before(look: 0, of: cache) { cache.close() }
      #expect(reader.version(of: 5, in: cache) == (reader == .contains ? -1 : 1))
      #expect(!cache.isOpen)
    }

    @Test("a reader that began between two moves finds the value, and a value that was replaced is found no more")
    func sameShard() throws {
      for reader in Reader.allCases {
        let cache = try describedCache()
        cache.open()
        before(look: 0, of: cache) {
          cache.close()
          cache[5] = described(5, version: 2, count: 300)
          cache.openAgain()
        }
        #expect(reader.version(of: 5, in: cache) == (reader == .contains ? -1 : 2))
        #expect(cache.isOpen)
      }
    }

    @Test("at each moment of a move, readers find every entry, and totals are exact", arguments: Reader.allCases, [true, false])
    func moving(reader: Reader, opens: Bool) throws {
      let count: UInt32 = TestRun.isFull ? 200 : 100
      let cache = try describedCache(count: count)
      if !opens { cache.moveAll(opens: true) }
      let counts = Mutex((moves: 0, missed: 0))
      let cost = cache.totalCost
      _ = cache.engine.base.moveHook.storeIfNil(
        LookHook { _ in
          let found = (0..<count).count { reader.version(of: $0, in: cache) == (reader == .contains ? -1 : 1) }
          // Looked for in both.
          let isNowhere = reader.version(of: 1_000_000, in: cache) == nil
          let isWell = found == count && isNowhere && cache.count == Int(count) && cache.totalCost == cost
          counts.withLock { $0 = ($0.moves + 1, $0.missed + (isWell ? 0 : 1)) }
        })
      cache.moveAll(opens: opens)
      #expect(counts.withLock { $0 } == (2 * Int(count), 0))
      #expect(cache.count == Int(count) && cache.totalCost == cost)
    }

    @Test(
      "a reader that looks before an entry moves, and again when it has moved, finds it", arguments: Reader.allCases,
      [true, false])
    func movedBetween(reader: Reader, opens: Bool) throws {
      let cache = try describedCache()
      if !opens { cache.moveAll(opens: true) }
      let isBeforeLast = Atomic<Bool>(false)
      let hasMoved = Atomic<Bool>(false)
      // Not called where the first look finds the entry.
      _ = cache.engine.shards.sizes.lookHook.storeIfNil(
        LookHook { number in
          if number == 0 { return }
          isBeforeLast.store(true, ordering: .releasing)
          while !hasMoved.load(ordering: .acquiring) { sched_yield() }
        })
      let found = Mutex<Int?>(nil)
      let isDone = Atomic<Bool>(false)
      let reading = Mutex<TestThread?>(nil)
      let moves = Atomic<Int>(0)
      _ = cache.engine.base.moveHook.storeIfNil(
        LookHook { _ in
          let number = moves.add(1, ordering: .relaxed).newValue
          if number == 1 {
            let thread = TestThread {
              let version = reader.version(of: 5, in: cache)
              found.withLock { $0 = version }
              isDone.store(true, ordering: .releasing)
            }
            reading.withLock { $0 = thread }
            while !isDone.load(ordering: .acquiring), !isBeforeLast.load(ordering: .acquiring) { sched_yield() }
          } else if number == 600 {
            // All but one have moved.
            hasMoved.store(true, ordering: .releasing)
            while !isDone.load(ordering: .acquiring) { sched_yield() }
          }
        })
      cache.moveAll(opens: opens)
      reading.withLock { $0 }?.join()
      #expect(found.withLock { $0 } == (reader == .contains ? -1 : 1))
    }
  }
#endif
