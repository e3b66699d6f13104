// SPDX-License-Identifier: MIT
// What a review found: orders of calls, numbers that no store writes, and ends at the wrong moment.

#if SQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Synchronization
  import Testing

  @testable import PurgeableSQLite

  /// Called once, where a test says.
  private final class Hook: Sendable {
    private let body = Mutex<(@Sendable () -> Void)?>(nil)
    func set(_ body: @escaping @Sendable () -> Void) { self.body.withLock { $0 = body } }
    func call() { body.withLock { exchange(&$0, with: nil) }?() }
  }

  /// Calls a hook when its hash is asked for, and another when its bytes are.
  private struct HookedNumber: PurgeableValue, Hashable {
    static let (onHash, onBytes) = (Hook(), Hook())
    let number: Int

    init(_ number: Int) { self.number = number }
    init?(purgeableBytes: RawSpan) {
      guard let number = Int(purgeableBytes: purgeableBytes) else { return nil }
      self.number = number
    }
    func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
      Self.onBytes.call()
      return try number.withPurgeableBytes(body)
    }
    func hash(into hasher: inout Hasher) {
      Self.onHash.call()
      hasher.combine(number)
    }
  }

  @Suite("a database, attacked", .serialized)
  struct StoreAttackTests {
    // MARK: Orders

    @Test(
      "a read of the database that began within a store, before its turn, and ends after it, does not bring the older value back")
    func readWithinStore() throws {
      try withPlace { place in
        let (decodes, goesOn) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
        let decoding = Hook()
        let format = StoredFormat<HookedNumber>(version: 1) { value in
          unsafe withUnsafeBytes(of: value.number) { unsafe [UInt8]($0) }
        } decode: { bytes, _ in
          decoding.call()
          return HookedNumber(purgeableBytes: bytes)
        }
        let store = try place.open(of: HookedNumber.self, format)
        store.setValue(HookedNumber(1), forKey: "a")
        try store.flush()
        store.cache.removeAll()
        decoding.set {
          decodes.signal()
          goesOn.comes()
        }
        let reader = Mutex<DispatchSemaphore?>(nil)
        HookedNumber.onBytes.set {
          reader.withLock { $0 = onThread { _ = store.value(forKey: "a") } }
          #expect(decodes.comes())
        }
        store.setValue(HookedNumber(2), forKey: "a")
        #expect(store.value(forKey: "a") == HookedNumber(2))
        goesOn.signal()
        #expect(reader.withLock { $0 }?.comes() == true)
        #expect(store.value(forKey: "a") == HookedNumber(2))
        store.cache.removeAll()
        #expect(store.value(forKey: "a") == HookedNumber(2))
        try store.close()
      }
    }

    @Test(
      "a load that ends within a removal, or a removal of everything, leaves nothing, in memory or in the database",
      arguments: [false, true])
    func loadWithinRemoval(ofAll: Bool) throws {
      try withPlace { place in
        let store = try PurgeableStore("store", directory: place.folder.path, cache: PurgeableCache<HookedNumber, [UInt8]>())
        let key = HookedNumber(7)
        let (began, goesOn) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
        let loader = onThread {
          _ = store.value(forKey: key) { () -> [UInt8] in
            began.signal()
            goesOn.comes()
            return [1]
          }
        }
        #expect(began.comes())
        if ofAll {
          goesOn.signal()
        } else {
          HookedNumber.onHash.set {
            goesOn.signal()
            #expect(loader.comes())
            loader.signal()
          }
        }
        if ofAll { try store.removeAll() } else { store.remove(forKey: key) }
        #expect(loader.comes())
        if !ofAll { #expect(store.value(forKey: key) == nil) }
        store.remove(forKey: key)
        store.cache.removeAll()
        #expect(store.value(forKey: key) == nil)
        try store.close()
      }
    }

    @Test("what was read before a change of its key is none to keep, and none to put in the change's place")
    func changeNumbers() throws {
      try withPlace { place in
        let folder = try StoreFolder.open("store", in: place.folder.path, operation: "test")
        let uses = MemoryUses {
          0
        } forEachKey: { _, _ in
        }
        let database = try StoreDatabase("store", folder, StoreLimits(), uses, now: { WallTime.now }, operation: "test")
        func record(_ byte: UInt8) -> StoredRecord { StoredRecord(value: [byte], format: 0, made: 0, used: 0) }
        let (key, other) = (StoreKey([1]), StoreKey([2]))
        for change in [Change.put(record(2)), .removal, nil] {
          database.change(key, .put(record(1)))
          database.change(other, .put(record(1)))
          let (found, number) = database.read(key)
          #expect(found?.value == [1] && database.isUnchanged(key, since: number))
          if let change { database.change(key, change) } else { database.removeAll() }
          #expect(!database.isUnchanged(key, since: number))
          #expect(!database.change(key, .put(record(3)), ifUnchangedSince: number))
          let now = database.read(key)
          #expect(
            now.record?.value == (change == nil ? nil : { if case .put(let record)? = change { record.value } else { nil } }()))
          #expect(database.change(key, .put(record(4)), ifUnchangedSince: now.number) && database.read(key).record?.value == [4])
        }
        try database.end(in: "test")
      }
    }

    @Test("values' files that are replaced while another store reads them: no flushed value is lost")
    func replacedFiles() throws {
      try withPlace { place in
        var options = PurgeableStoreOptions()
        options.fileThresholdBytes = 16 << 10
        let (writer, reader) = (try place.open(options), try place.open(options))
        writer.setValue(content(0, count: 20_000), forKey: "a")
        try writer.flush()
        let isOver = Mutex(false)
        let threads = (0..<2).map { _ in
          onThread {
            while !isOver.withLock({ $0 }) {
              reader.cache.remove(forKey: "a")
              _ = reader.value(forKey: "a")
            }
          }
        }
        for version in 1..<(TestRun.isFull ? 400 : 60) {
          writer.setValue(content(version, count: 20_000), forKey: "a")
          try writer.flush()
          usleep(3000)
          #expect(try place.number("SELECT count(*) FROM record") == 1)
        }
        isOver.withLock { $0 = true }
        for thread in threads { #expect(thread.comes()) }
        try writer.close()
        try reader.close()
      }
    }

    @Test("a store that only reads finds the database that another one has made in the place of its own")
    func replacedDatabase() throws {
      try withPlace { place in
        let (first, second) = (try place.open(), try place.open())
        first.setValue([1], forKey: "a")
        try first.flush()
        first.cache.removeAll()
        #expect(first.value(forKey: "a") == [1])
        first.cache.removeAll()
        try FileManager.default.removeItem(atPath: place.path)
        second.setValue([2], forKey: "a")
        try second.flush()
        #expect(first.value(forKey: "a") == [2])
        try first.close()
        try second.close()
      }
    }

    @Test("a pool of readers ends while more threads want a reader than there are")
    func poolEnds() throws {
      try withPlace { place in
        try place.withStore { $0.setValue([1], forKey: "a") }
        let pool = ReaderPool(try StoreFolder.open("store", in: place.folder.path, operation: "test"))
        let goesOn = DispatchSemaphore(value: 0)
        let reading = CallCount()
        var threads = (0..<4).map { _ in
          onThread {
            _ = try? pool.withReader { (_) throws(StoreFailure) in
              reading.add()
              goesOn.comes()
            }
          }
        }
        while reading.value < 4 { usleep(1000) }
        threads += (0..<6).map { _ in onThread { _ = try? pool.withReader { (_) throws(StoreFailure) in } } }
        usleep(50_000)
        threads.append(onThread { pool.end() })
        usleep(50_000)
        for _ in 0..<4 { goesOn.signal() }
        for thread in threads { #expect(thread.comes()) }
      }
    }

    // MARK: Sizes and versions

    @Test("a value longer than all that may wait is written, and what else waits or is there stays")
    func long() throws {
      try withPlace { place in
        try place.withStore { store in
          for key in 0..<100 { store.setValue([1], forKey: "\(key)") }
          try store.flush()
          store.setValue([UInt8](repeating: 1, count: 65 << 20), forKey: "long")
          try store.flush()
          #expect(store.statistics.recordCount == 101 && store.statistics.failureCount == 0)
        }
      }
    }

    @Test("a version may have any character; the age of a value counts over a restart of the machine")
    func versionsAndAges() async throws {
      try await withPlace { place in
        let store = try place.open()
        store.setValue([1], forKey: "a", version: "a\0b")
        _ = await store.value(forKey: "old", refreshAfter: .seconds(86_400)) { [1] }
        try store.close()
        // Two days later; the machine's clock began an hour ago.
        place.clock.pass(.seconds(2 * 86_400))
        var options = CacheOptions()
        let memory = ManualClock()
        memory.advance(by: .seconds(3600))
        options.clock = memory
        let clock = place.clock
        let later = try PurgeableStore(
          "store", directory: place.folder.path, cache: PurgeableCache<String, [UInt8]>(options)
        ) { clock.now }
        #expect(await later.value(forKey: "a", version: "a\0b") { [9] } == [1])
        #expect(later.statistics.failureCount == 0)
        let loads = CallCount()
        func ask() async -> [UInt8] {
          await later.value(forKey: "old", refreshAfter: .seconds(86_400)) {
            loads.add()
            return [2]
          }
        }
        #expect(await ask() == [1])
        _ = await ask()
        #expect(await TestRun.comes { loads.value == 1 })
        try later.close()
      }
    }

    // MARK: A database that is being made

    @Test("who reads while one database is put aside and the next is made, again and again, harms neither")
    func readersOfNew() throws {
      try withPlace { place in
        let folder = try StoreFolder.open("store", in: place.folder.path, operation: "test")
        let (stops, ends) = (CallCount(), CallCount())
        for _ in 0..<2 {
          Thread.detachNewThread {
            let pool = ReaderPool(folder)
            while stops.value == 0 { _ = try? pool.withReader { (reader) throws(StoreFailure) in try reader.read([1]) } }
            pool.end()
            ends.add()
          }
        }
        defer {
          stops.add()
          while ends.value < 2 { usleep(100) }
        }
        for turn in 0..<(TestRun.isFull ? 1000 : 100) {
          let writer = try folder.locked { () throws(StoreFailure) in try StoreWriter(folder, fileThreshold: 1 << 20) }
          var changes = Changes()
          changes.set(.put(StoredRecord(value: [UInt8(turn % 256)], format: 0, made: 1, used: 1)), StoreKey([1]))
          try writer.write(changes)
          let pool = ReaderPool(folder)
          let found = try pool.withReader { (reader) throws(StoreFailure) in try reader.read([1]) }
          pool.end()
          #expect(found??.record.value == [UInt8(turn % 256)])
          #expect(try place.number("PRAGMA page_size") == Int64(Schema.pageByteCount))
          #expect(try place.number("PRAGMA auto_vacuum") == 2)
          try folder.locked { () throws(StoreFailure) in try folder.putAside() }
          if turn % 50 == 0 { folder.removeDamaged() }
        }
      }
    }

    @Test("while a database is made anew nothing is read of it, and nothing is told; who waits for a reader goes on")
    func unmade() throws {
      try withPlace { place in
        let folder = try StoreFolder.open("store", in: place.folder.path, operation: "test")
        func make() throws {
          _ = try folder.locked { () throws(StoreFailure) in try StoreWriter(folder, fileThreshold: 1 << 20) }
        }
        try make()
        let pool = ReaderPool(folder)
        func read() throws -> Bool {
          try pool.withReader { (reader) throws(StoreFailure) in try reader.has([1], at: 0) } != nil
        }
        #expect(try read())
        pool.reopen(isMade: false)
        try folder.locked { () throws(StoreFailure) in try folder.putAside() }
        try Data().write(to: URL(fileURLWithPath: folder.database))
        #expect(try !read())
        try make()
        #expect(try !read())
        pool.reopen()
        #expect(try read())
        pool.end()
      }
    }

    // MARK: Numbers that no store writes

    @Test("whatever numbers the database has, nothing ends the program, and the store goes on")
    func numbers() async {
      await #expect(processExitsWith: .success) {
        let least = "-9223372036854775807-1"
        for statement in [
          "UPDATE life SET used=\(least)", "UPDATE life SET used=9223372036854775807", "UPDATE record SET made=\(least)",
          "UPDATE life SET size=\(least)", "UPDATE life SET size=9223372036854775807",
          "UPDATE total SET bytes=9223372036854775807",
          "UPDATE total SET records=\(least)", "UPDATE life SET used=9000000000000000000, idle=9000000000000000000",
          "UPDATE life SET deadline=\(least)", "UPDATE life SET idle=\(least)",
          "UPDATE record SET deadline=\(least)", "UPDATE record SET idle=\(least), deadline='x'",
          "UPDATE record SET cost=\(least), format=\(least)",
          "UPDATE life SET expires='x'", "UPDATE life SET used='x', size='x'", "UPDATE record SET value='x', version=x'00'",
        ] {
          guard let place = try? StorePlace() else { fatalError("a folder") }
          do {
            try place.withStore { store in
              for key in 0..<20 {
                store.setValue([UInt8(key)], forKey: "\(key)", expiry: key % 2 == 0 ? .sinceLastUse(.seconds(100)) : nil)
              }
            }
            try place.run(statement)
            try place.withStore(PurgeableStoreOptions(countLimit: 30)) { store in
              for key in 0..<20 {
                let found = store.value(forKey: "\(key)")
                demand(found == nil || found == [UInt8(key)], "\(statement): a wrong value")
              }
              store.remove(forKey: "3")
              for key in 0..<40 { store.setValue([1, 2], forKey: "new \(key)") }
              try store.flush()
              demand(store.value(forKey: "new 39") == [1, 2], "\(statement): it goes on")
              try store.trim(toBytes: 100)
            }
          } catch { fatalError("\(statement): \(error)") }
          place.folder.remove()
        }
      }
    }

    @Test("a time that is none has no transaction follow another")
    func noTime() throws {
      try withPlace { place in
        try place.withStore { store in store.setValue([1], forKey: "a", expiry: .sinceCreation(.seconds(1000))) }
        try place.run("UPDATE life SET expires='x'")
        try place.withStore { store in
          store.setValue([1], forKey: "b")
          try store.flush()
          func logByteCount() throws -> Int {
            try #require(FileManager.default.attributesOfItem(atPath: place.database + "-wal")[.size] as? Int)
          }
          let (before, began) = (try logByteCount(), MonotonicTime.now)
          usleep(300_000)
          let growth = try logByteCount() - before
          // One look a second, and this thread may have been away for longer than it asked.
          let seconds = Int((MonotonicTime.now - began) / 1_000_000_000)
          #expect(growth < 20 * (1 + seconds) * Schema.pageByteCount)
        }
      }
    }

    @Test("while the database is off its thread rests")
    func off() throws {
      try withPlace { place in
        let store = try place.open(PurgeableStoreOptions(expiry: .sinceCreation(.seconds(1))))
        store.setValue([1], forKey: "a")
        try store.flush()
        try FileManager.default.removeItem(atPath: place.path)
        try place.folder.write("store", "a file in its place")
        place.clock.pass(.seconds(10))
        store.setValue([2], forKey: "a")
        #expect(throws: PurgeableError.self) { try store.flush() }
        let (before, began) = (store.statistics.failureCount, MonotonicTime.now)
        usleep(300_000)
        let failureCount = store.statistics.failureCount - before
        let seconds = Int((MonotonicTime.now - began) / 1_000_000_000)
        #expect(failureCount < 3 * (1 + seconds) && store.value(forKey: "a") == [2])
        try? FileManager.default.removeItem(atPath: place.path)
        try store.flush()
        store.cache.removeAll()
        // It was given up when it could not be written.
        #expect(store.value(forKey: "a") == nil)
        try store.close()
      }
    }

    @Test("a row without its other half, and a table with other columns, do not stop the store")
    func halves() throws {
      try withPlace { place in
        try place.withStore { store in for key in 0..<10 { store.setValue([1], forKey: "\(key)") } }
        try place.run("DELETE FROM record WHERE id=(SELECT max(id) FROM record)")
        try place.withStore { store in
          store.setValue([2], forKey: "new")
          try store.flush()
          store.cache.removeAll()
          #expect(store.value(forKey: "new") == [2])
        }
        try place.run("ALTER TABLE record RENAME COLUMN made TO lade")
        try place.withStore { store in
          #expect(store.value(forKey: "new") == nil)
          store.setValue([3], forKey: "new")
          try store.flush()
        }
      }
    }

    // MARK: Places

    @Test("a link on the way to the folder is followed")
    func link() throws {
      try withPlace { place in
        let real = place.folder.path + "/real"
        try FileManager.default.createDirectory(atPath: real, withIntermediateDirectories: true)
        try place.folder.link("link", real)
        let store = try BytesStore("store", directory: place.folder.path + "/link", cache: PurgeableCache())
        store.setValue([1], forKey: "a")
        try store.close()
        #expect(FileManager.default.fileExists(atPath: real + "/store/data/database"))
      }
    }

    @Test("without a descriptor a value in a file is missing for the moment, and its record stays")
    func descriptors() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open() else { fatalError("a store") }
        store.setValue([1], forKey: "small")
        store.setValue(content(1, count: 1 << 20), forKey: "long")
        guard (try? store.flush()) != nil else { fatalError("a flush") }
        store.cache.removeAll()
        // A connection is open afterwards.
        demand(store.value(forKey: "small") == [1], "a value")
        var taken: [Int32] = []
        while case let file = unsafe open("/dev/null", O_RDONLY), file >= 0 { taken.append(file) }
        demand(store.value(forKey: "long") == nil, "no descriptor")
        for file in taken { close(file) }
        demand(store.statistics.lastError?.errorNumber == EMFILE, "\(store.statistics.lastError as Any)")
        usleep(100_000)
        try? store.flush()
        demand(store.value(forKey: "long") == content(1, count: 1 << 20), "it is there")
        demand((try? store.close()) != nil, "an end")
        place.folder.remove()
      }
    }
  }
#endif
