// SPDX-License-Identifier: MIT
// What a program sees of a store, on a real database on the disk.

import Testing

#if SQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Synchronization
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database behind a cache")
  struct StoreTests {
    // MARK: Three tiers

    @Test("what was stored is there after the store was closed and opened, byte for byte; and then in memory")
    func reopened() throws {
      try withPlace { place in
        try place.withStore { store in
          for key in 0..<3000 { store.setValue(content(key, count: key % 400), forKey: "\(key)") }
        }
        try place.withStore { store in
          #expect(store.statistics.recordCount == 3000)
          for key in 0..<3000 { #expect(store.value(forKey: "\(key)") == content(key, count: key % 400)) }
          #expect(store.statistics.hitCount == 3000 && store.statistics.missCount == 0)
          #expect(store.cache.count == 3000)
          for key in 0..<3000 { #expect(store.value(forKey: "\(key)") == content(key, count: key % 400)) }
          #expect(store.statistics.hitCount == 3000)
          #expect(store.value(forKey: "none") == nil && store.statistics.missCount == 1)
          #expect(store.statistics.failureCount == 0)
        }
      }
    }

    @Test("what memory lost is read back, also before it is written; what is removed is not, from either")
    func lost() throws {
      try withPlace { place in
        try place.withStore { store in
          store.setValue([1], forKey: "a")
          store.cache.removeAll()
          #expect(store.value(forKey: "a") == [1] && store.containsValue(forKey: "a"))
          try store.flush()
          store.cache.removeAll()
          #expect(store.containsValue(forKey: "a") && store.cache.count == 0)
          #expect(store.value(forKey: "a") == [1])
          store.setValue([2], forKey: "a")
          store.cache.removeAll()
          #expect(store.value(forKey: "a") == [2])
          store.remove(forKey: "a")
          #expect(store.value(forKey: "a") == nil && !store.containsValue(forKey: "a"))
          try store.flush()
          #expect(store.value(forKey: "a") == nil && store.statistics.recordCount == 0)
        }
      }
    }

    @Test("removing everything leaves neither records nor files, also of what waits; what is stored after it stays")
    func removedAll() throws {
      try withPlace { place in
        var options = PurgeableStoreOptions()
        options.fileThresholdBytes = 16 << 10
        try place.withStore(options) { store in
          for key in 0..<20 { store.setValue(content(key, count: key * 2000), forKey: "\(key)") }
          try store.flush()
          #expect(place.valueFiles().count == 11)
          store.setValue([1], forKey: "waits")
          try store.removeAll()
          #expect(store.statistics.recordCount == 0 && store.statistics.byteCount == 0)
          #expect(place.valueFiles().isEmpty && store.value(forKey: "waits") == nil && store.value(forKey: "3") == nil)
          store.setValue([2], forKey: "3")
          try store.flush()
          store.cache.removeAll()
          #expect(store.value(forKey: "3") == [2])
        }
      }
    }

    @Test(
      "a load runs where neither has a value, once for all who ask, and its value is in both afterwards; errors are kept in none")
    func loading() async throws {
      struct Refusal: Error {}
      try await withPlace { place in
        let store = try place.open()
        let loads = CallCount()
        #expect(throws: Refusal.self) { try store.value(forKey: "a") { () throws(Refusal) in throw Refusal() } }
        let values = await withTaskGroup(of: [UInt8].self) { group in
          for _ in 0..<50 {
            group.addTask {
              await store.value(forKey: "a") {
                loads.add()
                try? await Task.sleep(for: .milliseconds(20))
                return [7]
              }
            }
          }
          return await group.reduce(into: []) { $0.append($1) }
        }
        #expect(values == Array(repeating: [7], count: 50) && loads.value == 1)
        try await store.flush()
        try store.close()
        let again = try place.open()
        #expect(await again.value(forKey: "a") { [8] } == [7])
        #expect(await again.value(forKey: "b") { [9] } == [9])
        again.cache.removeAll()
        #expect(await again.value(forKey: "b") == [9])
        try again.close()
      }
    }

    @Test("a store or a removal while a value is loaded wins, in memory and in the database")
    func overtaken() throws {
      try withPlace { place in
        try place.withStore { store in
          #expect(
            store.value(forKey: "a") { () -> [UInt8] in
              store.setValue([2], forKey: "a")
              return [1]
            } == [1])
          #expect(
            store.value(forKey: "b") { () -> [UInt8] in
              store.remove(forKey: "b")
              return [1]
            } == [1])
          #expect(
            store.value(forKey: "c") { () -> [UInt8] in
              try? store.removeAll()
              return [1]
            } == [1])
          store.setValue([3], forKey: "d")
          #expect(store.value(forKey: "c") == nil)
          store.setValue([2], forKey: "a")
          #expect(
            store.value(forKey: "e") { () -> [UInt8] in
              store.setValue([2], forKey: "e")
              return [1]
            } == [1])
          for _ in 0..<2 {
            #expect(store.value(forKey: "a") == [2] && store.value(forKey: "b") == nil && store.value(forKey: "e") == [2])
            try store.flush()
            store.cache.removeAll()
          }
        }
      }
    }

    @Test("a value that memory refuses is in the database all the same, and no older one is found")
    func refused() throws {
      try withPlace { place in
        let cache = try PurgeableCache<String, [UInt8]>(costLimit: 100)
        let store = try BytesStore("store", directory: place.folder.path, cache: cache)
        store.setValue([1], forKey: "a")
        #expect(store.setValue(content(1), forKey: "a") == .tooLarge)
        #expect(cache.count == 0 && store.value(forKey: "a") == content(1))
        try store.flush()
        #expect(store.value(forKey: "a") == content(1))
        #expect(store.setValue([3], forKey: "a", expiry: .sinceCreation(.zero)) == .expired)
        #expect(store.value(forKey: "a") == nil)
        // So does what is loaded.
        #expect(store.value(forKey: "b") { content(2) } == content(2) && cache.count == 0)
        #expect(store.value(forKey: "b") == content(2))
        #expect(store.value(forKey: "c", expiry: .sinceCreation(.zero)) { [1] } == [1] && store.value(forKey: "c") == nil)
        try store.close()
      }
    }

    // MARK: What a record has

    @Test("versions, costs and the time that is left survive; an asker of another version loads")
    func attributes() throws {
      try withPlace { place in
        try place.withStore { store in
          store.setValue([1], forKey: "a", cost: 5, expiry: .sinceCreation(.seconds(1000)), version: "v1")
        }
        place.clock.pass(.seconds(400))
        try place.withStore { store in
          #expect(store.value(forKey: "a", version: "v1") { [9] } == [1])
          let entry = try #require(store.cache.entries.first { _ in true })
          #expect(entry.cost == 5 && entry.version == "v1")
          let left = try #require(entry.remainingTime)
          #expect(left > .seconds(590) && left <= .seconds(1000), "\(left)")
          #expect(store.value(forKey: "a", version: "v2") { [2] } == [2])
          store.cache.removeAll()
          #expect(store.value(forKey: "a", version: "v2") { [3] } == [2])
          // A record of another version is no hit, and stays where there is nothing newer.
          #expect(store.statistics.hitCount == 2 && store.statistics.missCount == 1)
          store.cache.removeAll()
          #expect(store.value(forKey: "a", version: "v3", loading: { () -> [UInt8]? in nil }) == nil)
          #expect(store.value(forKey: "a", version: "v3", loading: { () -> [UInt8]? in nil }) == nil)
          #expect(store.value(forKey: "a") == [2])
        }
      }
    }

    @Test(
      "what does not encode or decode is told, and its record stays; a version that is too long is refused, and changes nothing"
    )
    func untold() throws {
      struct Refusal: Error {}
      try withPlace { place in
        let format = StoredFormat<[UInt8]>(version: 2) { value in
          if value == [13] { throw Refusal() }
          return value
        } decode: { bytes, version in
          version == 2 ? [UInt8](purgeableBytes: bytes) : nil
        }
        try place.withStore { store in store.setValue([1], forKey: "a") }
        let store = try place.open(PurgeableStoreOptions(), of: [UInt8].self, format)
        #expect(store.value(forKey: "a") == nil && store.statistics.missCount == 1 && store.statistics.failureCount == 1)
        #expect(store.statistics.lastError?.explanation.contains("format 0 does not decode") == true)
        store.setValue([13], forKey: "b")
        #expect(store.value(forKey: "b") == [13] && store.statistics.failureCount == 2)
        #expect(store.statistics.lastError?.explanation.contains("does not encode") == true)
        #expect(throws: PurgeableError.self) { try store.flush() }
        try store.flush()
        store.setValue([3], forKey: "c")
        #expect(store.setValue([4], forKey: "c", version: String(repeating: "v", count: 256)) == .notEncodable)
        #expect(store.value(forKey: "c") == [3])
        try store.close()
        try place.withStore { store in #expect(store.value(forKey: "a") == [1] && store.value(forKey: "b") == nil) }
      }
    }

    @Test("a value that neither memory nor the database can keep changes nothing")
    func keptNowhere() throws {
      try withPlace { place in
        let store = try place.open(PurgeableStoreOptions(), of: Odd.self, .purgeableBytes)
        store.setValue(Odd(number: 1), forKey: "a")
        try store.flush()
        #expect(store.setValue(Odd(number: 13), forKey: "a") == .notEncodable)
        #expect(throws: PurgeableError.self) { try store.flush() }
        let text = "\(store.statistics)"
        #expect(text.hasPrefix("1 record, <0.1 MiB, 1 written, 1 failed (last: ") && text.contains("does not encode"), "\(text)")
        for _ in 0..<2 {
          #expect(store.value(forKey: "a") == Odd(number: 1))
          store.cache.removeAll()
        }
        try store.close()
      }
    }

    @Test("times of centuries are as good as shorter ones", arguments: [4_000_000_000, 4_611_000_000, 9_000_000_000_000_000_000])
    func farTimes(seconds: Int64) throws {
      try withPlace { place in
        let times: [Expiry] = [
          .sinceCreation(.seconds(seconds)), .sinceLastUse(.seconds(seconds)),
          Expiry(sinceCreation: .seconds(seconds), sinceLastUse: .seconds(seconds)),
        ]
        try place.withStore { store in
          for (key, expiry) in times.enumerated() { store.setValue(content(key), forKey: "\(key)", expiry: expiry) }
        }
        try place.withStore { store in
          for key in times.indices { #expect(store.value(forKey: "\(key)") == content(key)) }
          #expect(store.statistics.failureCount == 0)
        }
      }
    }

    @Test("strings that are equal are one key, whatever their bytes; keys may be empty, long, or have zeros inside")
    func keys() throws {
      try withPlace { place in
        let long = String(repeating: "k", count: 1 << 20)
        try place.withStore { store in
          store.setValue([1], forKey: "caf\u{E9}")
          store.setValue([2], forKey: "")
          store.setValue([3], forKey: long)
          store.setValue([4], forKey: "a\0b")
          store.setValue([5], forKey: "a\0c")
        }
        try place.withStore { store in
          #expect(store.value(forKey: "cafe\u{301}") == [1] && store.value(forKey: "") == [2])
          #expect(store.value(forKey: long) == [3] && store.value(forKey: "a\0b") == [4] && store.value(forKey: "a\0c") == [5])
          store.remove(forKey: "cafe\u{301}")
          #expect(store.value(forKey: "caf\u{E9}") == nil)
        }
      }
    }

    @Test("values above the threshold are files, removed with their record; around it and of no bytes they come back whole")
    func files() throws {
      try withPlace { place in
        var options = PurgeableStoreOptions()
        // Counts as 16 KiB.
        options.fileThresholdBytes = 1000
        let counts = [0, 1, (16 << 10) - 1, 16 << 10, (16 << 10) + 1, 3 << 20]
        try place.withStore(options) { store in
          for count in counts { store.setValue(content(count, count: count), forKey: "\(count)") }
        }
        #expect(place.valueFiles().count == 2)
        try place.withStore(options) { store in
          for count in counts { #expect(store.value(forKey: "\(count)") == content(count, count: count)) }
          store.setValue([1], forKey: "\(3 << 20)")
          store.remove(forKey: "\((16 << 10) + 1)")
          try store.flush()
          #expect(place.valueFiles().isEmpty)
        }
      }
    }

    @Test("values of an older format are converted when they are read, replaced under their key, and not converted again")
    func formats() throws {
      try withPlace { place in
        func withStore(_ version: Int, _ body: (BytesStore) throws -> Void) throws {
          let store = try place.open(of: [UInt8].self, versionedFormat(version))
          try body(store)
          try store.close()
        }
        try withStore(1) { store in
          for key in 0..<10 { store.setValue(content(key), forKey: "\(key)", expiry: .sinceCreation(.seconds(100))) }
        }
        try withStore(2) { store in
          for key in 0..<5 { #expect(store.value(forKey: "\(key)") == content(key)) }
          #expect(store.statistics.convertedCount == 5)
        }
        #expect(try place.number("SELECT count(*) FROM record WHERE format=2") == 5)
        try withStore(2) { store in
          for key in 0..<5 { #expect(store.value(forKey: "\(key)") == content(key)) }
          #expect(store.statistics.convertedCount == 0 && store.statistics.recordCount == 10)
        }
        // The time of a converted value ends when it would have.
        place.clock.pass(.seconds(101))
        try withStore(2) { store in #expect(store.value(forKey: "1") == nil) }
        // What a newer program wrote is none.
        try withStore(1) { store in #expect(store.value(forKey: "1") == nil) }
      }
    }

    // MARK: Arguments and ends

    @Test("what cannot be is refused by its name, and makes nothing")
    func refusals() throws {
      try withPlace { place in
        let cache = try PurgeableCache<String, [UInt8]>()
        func kind(
          _ name: String = "store", _ options: PurgeableStoreOptions = PurgeableStoreOptions(), _ directory: String? = nil
        )
          throws -> PurgeableError.Kind
        {
          try #require(throws: PurgeableError.self) {
            try BytesStore(name, directory: directory ?? place.folder.path, cache: cache, options: options)
          }.kind
        }
        for name in ["", ".", "..", "a/b", "a\0b"] { #expect(try kind(name) == .invalidArgument("name")) }
        #expect(try kind("store", PurgeableStoreOptions(), "") == .invalidArgument("directory"))
        #expect(try kind("store", PurgeableStoreOptions(byteLimit: -1)) == .invalidArgument("byteLimit"))
        #expect(try kind("store", PurgeableStoreOptions(countLimit: -1)) == .invalidArgument("countLimit"))
        #expect(try kind("store", PurgeableStoreOptions(expiry: .sinceLastUse(.zero))) == .invalidArgument("expiry"))
        var options = PurgeableStoreOptions()
        for threshold in [-1, 1 << 30] {
          options.fileThresholdBytes = threshold
          #expect(try kind("store", options) == .invalidArgument("fileThresholdBytes"))
        }
        options = PurgeableStoreOptions()
        options.writeInterval = .seconds(-1)
        #expect(try kind("store", options) == .invalidArgument("writeInterval"))
        #expect(try FileManager.default.contentsOfDirectory(atPath: place.folder.path).isEmpty)
        try place.folder.write("file", "")
        #expect(try kind("file") == .systemCallFailed(call: "mkdir"))
        try place.withStore { store in
          #expect(throws: PurgeableError.self) { try store.trim(toBytes: -1) }
        }
      }
    }

    @Test(
      "after its end a store finds what memory has, and loads; ends may come again; without one the store flushes when it goes")
    func ends() throws {
      try withPlace { place in
        let store = try place.open()
        store.setValue([1], forKey: "a")
        try store.close()
        try store.close()
        #expect(store.value(forKey: "a") == [1] && store.value(forKey: "b") == nil && store.value(forKey: "c") { [3] } == [3])
        store.setValue([2], forKey: "a")
        #expect(store.value(forKey: "a") == [2])
        #expect(throws: PurgeableError.self) { try store.flush() }
        do {
          let second = try place.open()
          #expect(second.value(forKey: "a") == [1])
          second.setValue([5], forKey: "e")
        }
        try place.withStore { store in #expect(store.value(forKey: "e") == [5] && store.value(forKey: "c") == nil) }
      }
    }

    /// A value of which the second reading of its bytes waits: a store reads them for the database, then for memory.
    private struct SlowValue: PurgeableValue, Equatable {
      let number: UInt8
      var gate: Gate?

      final class Gate: Sendable {
        let count = CallCount()
        let isReached = DispatchSemaphore(value: 0)
        let isOpen = DispatchSemaphore(value: 0)
      }

      init(_ number: UInt8, _ gate: Gate? = nil) { (self.number, self.gate) = (number, gate) }
      init?(purgeableBytes: RawSpan) {
        guard let number = UInt8(purgeableBytes: purgeableBytes) else { return nil }
        self.number = number
      }
      func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
        gate?.count.add()
        if let gate, gate.count.value == 2 {
          gate.isReached.signal()
          gate.isOpen.comes()
        }
        return try number.withPurgeableBytes(body)
      }
      static func == (one: SlowValue, other: SlowValue) -> Bool { one.number == other.number }
    }

    @Test("of stores of one key at the same time, memory and the database keep the same one")
    func sameOrder() throws {
      try withPlace { place in
        let store = try place.open(of: SlowValue.self, .purgeableBytes)
        let gate = SlowValue.Gate()
        let hasEnded = DispatchSemaphore(value: 0)
        Thread.detachNewThread {
          store.setValue(SlowValue(1, gate), forKey: "a")
          hasEnded.signal()
        }
        #expect(gate.isReached.comes())
        store.setValue(SlowValue(2), forKey: "a")
        gate.isOpen.signal()
        #expect(hasEnded.comes())
        #expect(store.cache.value(forKey: "a") == SlowValue(1))
        store.cache.removeAll()
        #expect(store.value(forKey: "a") == SlowValue(1))
        try store.flush()
        store.cache.removeAll()
        #expect(store.value(forKey: "a") == SlowValue(1))
        try store.close()
      }
    }

    @Test(
      "threads that store, remove and read the same keys: each reads what was stored, and at the end both tiers have the same")
    func threads() throws {
      try withPlace { place in
        var options = PurgeableStoreOptions()
        options.writeInterval = .milliseconds(5)
        try place.withStore(options) { store in
          let wrong = CallCount()
          DispatchQueue.concurrentPerform(iterations: 4) { thread in
            var random = SplitMix64(seed: TestRun.seed &+ UInt64(thread))
            for _ in 0..<3000 {
              let key = Int.random(in: 0..<40, using: &random)
              switch Int.random(in: 0..<10, using: &random) {
              case 0..<3: store.setValue(content(key, version: Int.random(in: 0..<4, using: &random)), forKey: "\(key)")
              case 3: store.remove(forKey: "\(key)")
              case 4: store.cache.remove(forKey: "\(key)")
              case 5:
                let value = store.value(forKey: "\(key)") { content(key, version: 5) }
                if !(0..<6).contains(where: { value == content(key, version: $0) }) { wrong.add() }
              default:
                if let value = store.value(forKey: "\(key)"), !(0..<6).contains(where: { value == content(key, version: $0) }) {
                  wrong.add()
                }
              }
            }
          }
          #expect(wrong.value == 0)
          let before = (0..<40).map { store.value(forKey: "\($0)") }
          store.cache.removeAll()
          #expect((0..<40).map { store.value(forKey: "\($0)") } == before)
          try store.flush()
          store.cache.removeAll()
          #expect((0..<40).map { store.value(forKey: "\($0)") } == before)
          #expect(store.statistics.failureCount == 0)
        }
      }
    }
  }
#else
  @Test("a database behind a cache", .disabled("built without the trait SQLite: swift test --traits SQLite"))
  func stores() {}
#endif
