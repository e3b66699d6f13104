// SPDX-License-Identifier: MIT
// What goes by time, and what goes for room.

#if SQLite
  import Foundation
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database behind a cache: time and limits")
  struct StoreLimitTests {
    @Test(
      "what has expired is never returned, and goes when asked for; uses prolong what expires since its last use"
    )
    func expiry() throws {
      try withPlace { place in
        try place.withStore(PurgeableStoreOptions(expiry: .sinceLastUse(.seconds(100)))) { store in
          for key in 0..<10 { store.setValue([UInt8(key)], forKey: "\(key)") }
          store.setValue([20], forKey: "always", expiry: .never)
          store.setValue([21], forKey: "created", expiry: .sinceCreation(.seconds(300)))
          try store.flush()
          store.cache.removeAll()
          place.clock.pass(.seconds(60))
          // A use.
          #expect(store.value(forKey: "1") == [1])
        }
        place.clock.pass(.seconds(60))
        try place.withStore { store in
          #expect(store.value(forKey: "2") == nil && store.value(forKey: "1") == [1])
          _ = try store.removeExpired()
          #expect(store.statistics.recordCount == 3)
          place.clock.pass(.seconds(200))
          store.cache.removeAll()
          #expect(store.value(forKey: "created") == nil && store.value(forKey: "always") == [20])
          _ = try store.removeExpired()
          #expect(store.statistics.recordCount == 1)
        }
      }
    }

    @Test("what has expired goes first thing at opening, and what expires then, in time, with nobody asking")
    func expiresByItself() throws {
      try withPlace { place in
        try place.withStore { store in
          for key in 0..<10 { store.setValue([UInt8(key)], forKey: "\(key)", expiry: .sinceCreation(.seconds(100))) }
          store.setValue([20], forKey: "always")
        }
        place.clock.pass(.seconds(200))
        try place.withStore { store in
          #expect(patiently { store.statistics.recordCount == 1 }, "\(store.statistics)")
          #expect(try place.number("SELECT count(*) FROM record") == 1)
          store.setValue([21], forKey: "soon", expiry: .sinceCreation(.milliseconds(200)))
          try store.flush()
          // By the machine's time, which the store's goes on with.
          #expect(patiently { store.statistics.recordCount == 1 }, "\(store.statistics)")
          #expect(store.value(forKey: "always") == [20])
        }
      }
    }

    @Test("without an expiry of the store's the cache's holds, for the record too, over a restart; never is never")
    func expiryOfTheCache() throws {
      try withPlace { place in
        let hour = Expiry.sinceCreation(.seconds(3600))
        for options in [PurgeableStoreOptions(), PurgeableStoreOptions(expiry: .sinceCreation(.seconds(7200)))] {
          let store = try place.open(options, of: [UInt8].self, .purgeableBytes, memoryExpiry: hour)
          store.setValue([1], forKey: "a")
          store.setValue([2], forKey: "never", expiry: .never)
          #expect(store.value(forKey: "loaded") { [3] } == [3])
          try store.close()
          for step in 1...5 {
            place.clock.pass(.seconds(1440))
            let again = try place.open(options, of: [UInt8].self, .purgeableBytes, memoryExpiry: hour)
            let lives = step * 1440 < (options.expiry == nil ? 3600 : 7200)
            #expect(again.value(forKey: "a") == (lives ? [1] : nil) && again.value(forKey: "loaded") == (lives ? [3] : nil))
            again.cache.removeAll()
            #expect(again.containsValue(forKey: "a") == lives && again.value(forKey: "never") == [2])
            place.clock.memory.advance(by: .seconds(3600))
            #expect(again.cache.peekValue(forKey: "never") == [2])
            try again.close()
          }
        }
      }
    }

    @Test("a clock that is set back gives no record a longer life than it began with; one that is set forward ends no others")
    func clocks() throws {
      try withPlace { place in
        try place.withStore { store in
          store.setValue([1], forKey: "a", expiry: .sinceLastUse(.seconds(100)))
          store.setValue([2], forKey: "b")
          store.setValue([3], forKey: "c", expiry: .sinceCreation(.seconds(100)))
        }
        place.clock.pass(.seconds(-365 * 86_400))
        try place.withStore { store in
          #expect(store.value(forKey: "a") == [1] && store.value(forKey: "b") == [2] && store.value(forKey: "c") == [3])
          for key in ["a", "c"] {
            let entry = try #require(store.cache.entries.first { $0.key == key })
            #expect(try #require(entry.remainingTime) <= .seconds(100))
          }
        }
        // Once: it is not read again and again until the clock is where it was.
        place.clock.pass(.seconds(60))
        try place.withStore { store in
          #expect(store.value(forKey: "a") == [1] && store.value(forKey: "c") == [3] && store.statistics.convertedCount == 0)
        }
        place.clock.pass(.seconds(60))
        try place.withStore { store in
          #expect(store.value(forKey: "a") == [1] && store.value(forKey: "c") == nil && store.value(forKey: "b") == [2])
        }
        place.clock.pass(.seconds(2 * 365 * 86_400))
        try place.withStore { store in #expect(store.value(forKey: "a") == nil && store.value(forKey: "b") == [2]) }
      }
    }

    @Test("above a limit the least recently used go, down to nine tenths; uses count, and expired ones go before")
    func limits() throws {
      try withPlace { place in
        try place.withStore(.hundred) { store in
          for key in 0..<90 {
            store.setValue([UInt8(key)], forKey: "\(key)")
            place.clock.pass(.seconds(1))
          }
          try store.flush()
          store.cache.removeAll()
          place.clock.pass(.seconds(100))
          for key in 0..<10 { #expect(store.value(forKey: "\(key)") == [UInt8(key)]) }
          store.setValue([0], forKey: "short", expiry: .sinceCreation(.seconds(1)))
          try store.flush()
          #expect(store.statistics.recordCount == 91)
          place.clock.pass(.seconds(2))
          #expect(store.statistics.evictedCount == 0)
          for key in 90..<97 { store.setValue([UInt8(key)], forKey: "\(key)") }
          try store.flush()
          #expect(store.statistics.recordCount == 90 && store.statistics.evictedCount == 7, "\(store.statistics)")
          store.cache.removeAll()
          let left = (0..<97).filter { store.value(forKey: "\($0)") != nil }
          // Those that were read stay; of the others the oldest have gone.
          #expect(left == Array(0..<10) + Array(17..<97))
        }
        #expect(
          try place.number("SELECT count(*) FROM record") == 90
            && place.number("SELECT sum(size) FROM life") == place.number("SELECT bytes FROM total"))
      }
    }

    @Test("what is used in memory alone stays in the database, too: its uses are asked for before anything goes, and at the end")
    func memoryUses() throws {
      try withPlace { place in
        func fill(_ keys: Range<Int>, _ store: BytesStore) throws {
          for key in keys { store.setValue([UInt8(key)], forKey: "\(key)") }
          try store.flush()
        }
        try place.withStore(.hundred) { store in
          try fill(0..<50, store)
          place.clock.pass(.seconds(100))
          for key in 10..<20 { #expect(store.value(forKey: "\(key)") == [UInt8(key)]) }
          #expect(store.statistics.hitCount == 0)
        }
        place.clock.pass(.seconds(100))
        try place.withStore(.hundred) { store in
          try fill(50..<97, store)
          let left = (0..<97).filter { store.cache.containsValue(forKey: "\($0)") || store.containsValue(forKey: "\($0)") }
          #expect(left == Array(7..<97))
          try store.trim(toBytes: 57 * 103)
          #expect((0..<50).filter { store.containsValue(forKey: "\($0)") } == Array(10..<20))
        }
      }
    }

    @Test("a trim asks memory first: what is hot there stays")
    func hotAtTrim() throws {
      try withPlace { place in
        try place.withStore { store in
          for key in 0..<50 {
            store.setValue([UInt8(key)], forKey: "\(key)")
            place.clock.pass(.seconds(1))
          }
          try store.flush()
          place.clock.pass(.seconds(1000))
          for key in 0..<10 { #expect(store.value(forKey: "\(key)") == [UInt8(key)]) }
          try store.trim(toBytes: 10 * 103)
          store.cache.removeAll()
          #expect((0..<50).filter { store.containsValue(forKey: "\($0)") } == Array(0..<10))
        }
      }
    }

    /// With the clock of the machine, also in memory.
    private func inRealTime(_ place: StorePlace, _ options: PurgeableStoreOptions, _ body: (BytesStore) throws -> Void) throws {
      let store = try BytesStore("store", directory: place.folder.path, cache: PurgeableCache(), options: options)
      try body(store)
      try store.close()
    }

    @Test("what memory answers all the time is not the first to go, also in a store that turns over within a second")
    func hotOfYoung() throws {
      try withPlace { place in
        let options = PurgeableStoreOptions(countLimit: 100)
        try inRealTime(place, options) { store in
          for key in 0..<10 { store.setValue([UInt8(key)], forKey: "hot \(key)") }
          for key in 0..<1000 {
            store.setValue([0], forKey: "cold \(key)")
            for hot in 0..<10 { #expect(store.value(forKey: "hot \(hot)") == [UInt8(hot)]) }
            // Uses are known to a hundredth of a second.
            if key % 20 == 19 {
              usleep(30_000)
              try store.flush()
            }
          }
        }
        try inRealTime(place, options) { store in
          for key in 0..<10 { #expect(store.value(forKey: "hot \(key)") == [UInt8(key)]) }
        }
      }
    }

    @Test("what memory answers all the time does not expire in the database, however long that goes on")
    func hotOfShort() throws {
      try withPlace { place in
        let options = PurgeableStoreOptions(expiry: .sinceLastUse(.seconds(4)))
        try inRealTime(place, options) { store in
          for key in 0..<20 { store.setValue([UInt8(key)], forKey: "\(key)") }
          try store.flush()
          let end = MonotonicTime.now + 10_000_000_000
          while MonotonicTime.now < end {
            let began = MonotonicTime.now
            for key in 0..<10 { #expect(store.value(forKey: "\(key)") == [UInt8(key)]) }
            usleep(50_000)
            if MonotonicTime.now - began > 1_000_000_000 { try Test.cancel("this machine let a thread wait for a second") }
          }
          #expect(store.statistics.hitCount == 0 && store.statistics.recordCount == 10, "\(store.statistics)")
        }
        try inRealTime(place, options) { store in
          for key in 0..<10 { #expect(store.value(forKey: "\(key)") == [UInt8(key)]) }
        }
      }
    }

    @Test("a byte limit holds, a value of more than an eighth of it is in memory only, and a trim goes as far as it says")
    func byteLimit() throws {
      try withPlace { place in
        try place.withStore(PurgeableStoreOptions(byteLimit: 100_000)) { store in
          for key in 0..<300 {
            store.setValue(content(key), forKey: "\(key)")
            if key % 20 == 0 { try store.flush() }
          }
          try store.flush()
          #expect(store.statistics.byteCount <= 95_000 && store.statistics.byteCount >= 80_000)
          store.setValue(content(1, count: 20_000), forKey: "large")
          #expect(store.value(forKey: "large") == content(1, count: 20_000))
          store.cache.removeAll()
          #expect(store.value(forKey: "large") == nil)
          try store.trim(toBytes: 10_000)
          #expect(store.statistics.byteCount <= 10_000 && store.statistics.byteCount > 8000)
          #expect(store.value(forKey: "299") == content(299))
          try store.trim(toBytes: 0)
          #expect(store.statistics.recordCount == 0 && store.statistics.byteCount == 0)
        }
      }
    }

    @Test(
      "opened with a limit of no bytes a store lets all go, a hundred thousand records in a full run, and their room on the disk")
    func noBytes() async throws {
      try await withPlace { place in
        let count = TestRun.isFull ? 100_000 : 4000
        try place.withStore { store in
          for key in 0..<count {
            store.setValue(content(key, count: 100), forKey: "\(key)")
            if key % 10_000 == 9999 { try store.flush() }
          }
          try store.flush()
          #expect(store.statistics.recordCount == count)
        }
        func size() -> Int { (try? FileManager.default.attributesOfItem(atPath: place.database))?[.size] as? Int ?? .max }
        let before = size()
        let store = try place.open(PurgeableStoreOptions(byteLimit: 0))
        store.setValue([1], forKey: "1")
        try await store.flush()
        #expect(store.statistics.recordCount == 0 && store.statistics.byteCount == 0)
        let inMemory = await store.value(forKey: "1")
        store.cache.removeAll()
        let found = (await store.value(forKey: "1"), await store.value(forKey: "2"))
        #expect(inMemory == [1] && found.0 == nil && found.1 == nil && store.statistics.failureCount == 0)
        // When it has nothing else to do.
        let isGivenBack = await TestRun.comes { size() < before / 4 }
        #expect(isGivenBack, "\(before) bytes before, \(size())")
        try store.close()
        #expect(try place.number("SELECT count(*) FROM record") == 0)
      }
    }
  }
#endif
