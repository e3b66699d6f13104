// SPDX-License-Identifier: MIT
// How long the log becomes, and what is left of a store in memory and in the page cache when it rests or is closed.

#if SQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Synchronization
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database behind a cache: its log")
  struct StoreLogTests {
    /// Stores so many values with one of their own, and runs `body`. How long the log was then at most.
    private static func mostLogBytes(
      of place: StorePlace, _ count: Int, _ expiry: (Int) -> Expiry, _ value: [UInt8], _ body: (BytesStore) throws -> Void
    ) throws -> Int {
      let store = try place.open()
      for key in 0..<count {
        store.setValue(value, forKey: "\(key)", expiry: expiry(key))
        if key % 5000 == 4999 { try store.flush() }
      }
      try store.flush()
      let isOver = Atomic<Bool>(false)
      let most = Atomic<Int>(0)
      let watcher = onThread {
        while !isOver.load(ordering: .relaxed) {
          most.max(place.logByteCount, ordering: .relaxed)
          usleep(100)
        }
      }
      defer {
        isOver.store(true, ordering: .relaxed)
        watcher.comes()
      }
      place.clock.pass(.seconds(2000))
      try body(store)
      try store.close()
      return most.load(ordering: .relaxed)
    }

    @Test("however many records expire together, the log stays short while they go")
    func manyExpire() throws {
      try withPlace { place in
        // In another order than they lie.
        let expiry = { Expiry.sinceCreation(.seconds(100 + $0 * 7919 % 1000)) }
        let most = try Self.mostLogBytes(of: place, 20_000, expiry, [UInt8](repeating: 1, count: 1000)) { store in
          _ = try store.removeExpired()
          #expect(store.statistics.recordCount == 0)
        }
        #expect(most < 48 << 20)
      }
    }

    @Test("however many entries were used in memory, the log stays short while their uses are written")
    func manyUses() throws {
      try withPlace { place in
        let count = 40_000
        let most = try Self.mostLogBytes(of: place, count, { _ in .never }, [1]) { store in
          // Memory has them in another order than they lie.
          store.cache.removeAll()
          for key in 0..<count { _ = store.value(forKey: "\(key * 7919 % count)") }
          place.clock.pass(.seconds(2000))
          for key in 0..<count { #expect(store.value(forKey: "\(key)") == [1]) }
        }
        #expect(try place.number("SELECT count(*) FROM life WHERE used>\(place.clock.now - 1_000_000_000_000)") == Int64(count))
        #expect(most < 48 << 20)
      }
    }

    @Test(
      "a reader that stands in the way when a store at rest cuts its log: it is cut when the reader has gone",
      .enabled(if: TestRun.isFull, "in a full run: a store rests after seconds"), .timeLimit(.minutes(10)))
    func readerAtRest() throws {
      try withPlace { place in
        try place.withStore { store in
          for key in 0..<2000 { store.setValue(content(key), forKey: "\(key)") }
          try store.flush()
          let reader = try Connection(place.database, makes: false, busyMilliseconds: 1000)
          try reader.run("BEGIN")
          #expect(try reader.number("SELECT count(*) FROM record") == 2000)
          // After five seconds it is tried, which waits for as long.
          Thread.sleep(forTimeInterval: 12)
          #expect(place.logByteCount > 1 << 20)
          try reader.run("COMMIT")
          #expect(patiently { place.logByteCount == 0 })
          #expect(store.statistics.failureCount == 0)
        }
      }
    }

    /// Runs `body` with a store of some mebibytes that was closed.
    private func withClosedStore(_ body: (StorePlace) throws -> Void) throws {
      try withPlace { place in
        try cancelWherePagesStay(place.folder.path + "/plain")
        try place.withStore { store in
          for key in 0..<5000 { store.setValue(content(key), forKey: "\(key)") }
        }
        #expect(StoreFolder.byteCount(place.database) > 4 << 20)
        try body(place)
      }
    }

    @Test("a store that is closed leaves no page of its database in the page cache")
    func closed() throws {
      try withClosedStore { place in
        let cached = try cachedPages(place.database)
        #expect(cached < 64)
      }
    }

    @Test("a database that is smaller than what may stay in the page cache stays there, however much is read")
    func small() throws {
      try withClosedStore { place in
        try #require(StoreFolder.byteCount(place.database) < StoreDatabase.mostReadBytes())
        try place.withStore { store in
          // Pages are given up when nothing was written for a while, and a slow machine reads for that long: then they come
          // again.
          var cached = 0
          for _ in 0..<3 where cached <= 1000 {
            store.cache.removeAll()
            for key in 0..<5000 { #expect(store.value(forKey: "\(key)") == content(key)) }
            store.database.noteReadBytes(1 << 50)
            cached = try cachedPages(place.database)
          }
          #expect(cached > 1000)
        }
      }
    }
  }
#endif
