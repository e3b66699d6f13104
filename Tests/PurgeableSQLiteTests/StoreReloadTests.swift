// SPDX-License-Identifier: MIT
// Loads that get the entry that is due, with a database behind the cache.

#if SQLite
  import Foundation
  import PurgeableTestSupport
  import Synchronization
  import Testing

  @testable import Purgeable
  @testable import PurgeableSQLite

  @Suite("a database behind a cache: reloads")
  struct StoreReloadTests {
    /// A source whose answers a test sets, and what it was asked with.
    private final class Source: Sendable {
      let answer = Mutex<LoadResult<[UInt8]>>(.unchanged)
      let asked = Mutex<[String?]>([])
      var count: Int { asked.withLock { $0.count } }

      func ask(_ store: BytesStore, _ result: LoadResult<[UInt8]>) async -> [UInt8]? {
        answer.withLock { $0 = result }
        return await store.value(forKey: "a", refreshAfter: .seconds(10)) { current in
          self.asked.withLock { $0.append(current?.version) }
          return self.answer.withLock { $0 }
        }
      }
    }

    /// So many loads have ended.
    private func hasEnded(_ count: Int, _ store: BytesStore) async -> Bool {
      await TestRun.comes { store.cache.statistics.loadCount == count && store.cache.loads.counts(of: "a").waiters == 0 }
    }

    @Test("what was read back by a look-up that loads nothing is loaded anew when it is due")
    func readBack() async throws {
      let (place, source) = (try StorePlace(), Source())
      defer { place.folder.remove() }
      let store = try place.open()
      #expect(await source.ask(store, .found([1])) == [1])
      try await store.flush()
      store.cache.removeAll()
      #expect(await store.value(forKey: "a") == [1])
      place.clock.pass(.seconds(60))
      #expect(await source.ask(store, .found([2])) == [1])
      #expect(await TestRun.comes { store.cache.peekValue(forKey: "a") == [2] })
      try store.close()
    }

    @Test("what is loaded and kept nowhere changes nothing, in memory or in the database")
    func keptNowhere() async throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      let store = try place.open(PurgeableStoreOptions(), of: Odd.self, .purgeableBytes)
      func hasLoaded(_ key: String, _ count: Int) async -> Bool {
        await TestRun.comes { store.cache.statistics.loadCount == count && store.cache.loads.counts(of: key).waiters == 0 }
      }
      #expect(await store.value(forKey: "a", version: "1", refreshAfter: .zero) { Odd(number: 1) } == Odd(number: 1))
      #expect(await store.value(forKey: "b", refreshAfter: .zero) { Odd(number: 2) } == Odd(number: 2))
      try await store.flush()
      let long = String(repeating: "v", count: 300)
      #expect(await store.value(forKey: "a", version: long) { Odd(number: 3) } == Odd(number: 3))
      #expect(await hasLoaded("a", 3))
      // Due at once: returned, and loaded anew meanwhile.
      #expect(await store.value(forKey: "b", refreshAfter: .zero) { Odd(number: 13) } == Odd(number: 2))
      #expect(await hasLoaded("b", 4))
      #expect(
        await store.value(forKey: "a", refreshAfter: .zero) { _ in .found(Odd(number: 4), version: long) } == Odd(number: 1))
      #expect(await hasLoaded("a", 5))
      #expect(store.cache.peekValue(forKey: "a") == Odd(number: 1) && store.cache.peekValue(forKey: "b") == Odd(number: 2))
      await #expect(throws: PurgeableError.self) { try await store.flush() }
      store.cache.removeAll()
      #expect(await store.value(forKey: "a") == Odd(number: 1))
      #expect(await store.value(forKey: "b") == Odd(number: 2))
      try store.close()
    }

    @Test("what is stored while a load runs stays where the loaded value is not kept")
    func storedMeanwhile() async throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      // Too long for the database: in memory alone.
      let store = try place.open(PurgeableStoreOptions(byteLimit: 8192))
      let large = [UInt8](repeating: 7, count: 2000)
      let loaded = await store.value(forKey: "a", expiry: .sinceCreation(.zero)) {
        store.setValue(large, forKey: "a")
        return [9]
      }
      #expect(loaded == [9] && store.cache.peekValue(forKey: "a") == large)
      store.cache.removeAll()
      // Nothing came meanwhile: what is over at once takes the older value away.
      store.setValue([1], forKey: "b", version: "1")
      #expect(await store.value(forKey: "b", version: "2", expiry: .sinceCreation(.zero)) { [2] } == [2])
      #expect(store.cache.peekValue(forKey: "b") == nil)
      #expect(await store.value(forKey: "b") == nil)
      try store.close()
    }

    @Test("what is found is in both, with what its load says; unchanged, it begins anew in both, over a restart; absent, it goes")
    func reloads() async throws {
      let (place, source) = (try StorePlace(), Source())
      defer { place.folder.remove() }
      let found = LoadResult<[UInt8]>.found([1], cost: 5, expiry: .sinceCreation(.seconds(100)), version: "7")
      var store = try place.open()
      #expect(await source.ask(store, found) == [1])
      #expect(store.cache.peekEntry(forKey: "a")?.cost == 5 && source.asked.withLock { $0 } == [nil])
      place.clock.pass(.seconds(60))
      // It is due: returned, and asked about meanwhile.
      #expect(await source.ask(store, .unchanged) == [1])
      #expect(await hasEnded(2, store))
      #expect(source.asked.withLock { $0 } == [nil, "7"])
      try store.close()
      // Without the second answer its time would be over.
      place.clock.pass(.seconds(60))
      store = try place.open()
      #expect(await source.ask(store, .absent()) == [1] && source.count == 2, "from the database")
      let entry = try #require(store.cache.peekEntry(forKey: "a"))
      #expect(
        entry.cost == 5 && entry.version == "7" && entry.remainingTime.map { $0 <= .seconds(40) && $0 > .seconds(30) } == true)
      #expect(await source.ask(store, .found([2], version: "8")) == [1], "the next hit asks, as it is old")
      #expect(await TestRun.comes { store.cache.peekValue(forKey: "a") == [2] })
      store.cache.removeAll()
      #expect(await source.ask(store, .absent()) == [2], "from the database")
      place.clock.pass(.seconds(60))
      #expect(await source.ask(store, .absent(keptFor: .seconds(30))) == [2])
      #expect(await TestRun.comes { store.cache.peekValue(forKey: "a") == nil })
      let count = source.count
      #expect(await source.ask(store, found) == nil && source.count == count, "remembered")
      try store.close()
      try place.withStore { store in #expect(store.value(forKey: "a") == nil) }
    }

    @Test("a store or a removal while the load runs wins, in memory and in the database")
    func overtaken() async throws {
      for result in [.found([1]), .unchanged, .absent(keptFor: .seconds(5))] as [LoadResult<[UInt8]>] {
        for isRemoved in [false, true] {
          let place = try StorePlace()
          defer { place.folder.remove() }
          let store = try place.open()
          _ = await store.value(forKey: "a", refreshAfter: .zero) { _ in .found([0]) }
          let value = await store.value(forKey: "a", refreshAfter: .zero) { current in
            #expect(current?.value == [0])
            if isRemoved { store.remove(forKey: "a") } else { store.setValue([9], forKey: "a") }
            return result
          }
          #expect(value == [0])
          #expect(await hasEnded(2, store))
          for _ in 0..<2 {
            #expect(await store.value(forKey: "a") == (isRemoved ? nil : [9]))
            try await store.flush()
            store.cache.removeAll()
          }
          try store.close()
        }
      }
    }
  }
#endif
