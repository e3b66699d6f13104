// SPDX-License-Identifier: MIT
// What may befall a database: damage, other programs, kills, forks. A miss or an error, never a wrong value.

#if SQLite
  import CPurgeableCases
  import CPurgeableFiles
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database that fails")
  struct StoreFaultTests {
    private static let keys = 200

    private static func fill(_ place: StorePlace) throws {
      try place.withStore(.withFiles) { store in
        for key in 0..<keys { store.setValue(mixedContent(key), forKey: "\(key)") }
      }
    }

    /// How many values are there; none may be another than the one that was stored.
    private static func check(_ place: StorePlace) throws -> Int {
      let store = try place.open(.withFiles)
      var count = 0
      for key in 0..<keys {
        guard let found = store.value(forKey: "\(key)") else { continue }
        #expect(found == mixedContent(key), "\(key)")
        count += 1
      }
      // It can be written and read all the same. Where a page says that it has room where records lie, the first record is lost
      // there, and the damage shows.
      var tries = 0
      repeat {
        store.setValue([1], forKey: "new")
        try? store.flush()
        store.cache.removeAll()
        tries += 1
      } while store.value(forKey: "new") == nil && tries < 3
      #expect(store.value(forKey: "new") == [1], "\(store.statistics)")
      try? store.close()
      return count
    }

    // MARK: Damage

    @Test(
      "a byte changed anywhere in the database, or a page of zeros or of anything: values are right or missing; the store goes on"
    )
    func flipped() throws {
      try withPlace { place in
        try Self.fill(place)
        let original = try Data(contentsOf: URL(fileURLWithPath: place.database))
        var random = SplitMix64(seed: TestRun.seed)
        var least = Self.keys
        for trial in 0..<(TestRun.isFull ? 1000 : 40) {
          var damaged = original
          let at = random.index(below: damaged.count)
          damaged[at] ^= UInt8(1 << random.index(below: 8))
          if trial % 10 == 9 {
            let page = at / Schema.pageByteCount * Schema.pageByteCount
            let isZeroed = trial % 20 == 9
            let bytes = (0..<Schema.pageByteCount).map { _ in isZeroed ? 0 : UInt8(truncatingIfNeeded: random.next()) }
            damaged.replaceSubrange(page..<page + Schema.pageByteCount, with: bytes)
          }
          try? FileManager.default.removeItem(atPath: place.database + "-wal")
          try? FileManager.default.removeItem(atPath: place.database + "-shm")
          try damaged.write(to: URL(fileURLWithPath: place.database))
          least = min(least, try Self.check(place))
          // The files of values that went with their records.
          if place.valueFiles().count < Self.keys / 20 {
            try FileManager.default.removeItem(atPath: place.path)
            try Self.fill(place)
            try original.write(to: URL(fileURLWithPath: place.database))
          }
        }
        #expect(least < Self.keys)
      }
    }

    @Test("a database that is cut, empty, a text, or another program's is put aside, and a new one takes its place")
    func foreign() throws {
      try withPlace { place in
        let file = URL(fileURLWithPath: place.database)
        try Self.fill(place)
        let original = try Data(contentsOf: file)
        for (content, least) in [(original.prefix(20_000), 0), (Data("a text".utf8), 0), (Data(), 0)] {
          try content.write(to: file)
          if !content.isEmpty {
            // It is told, though nothing that this store has written is lost.
            let store = try place.open(.withFiles)
            #expect(store.statistics.failureCount == 1 && store.statistics.lastError?.kind == .invalidFile)
            try store.close()
          }
          #expect(try Self.check(place) == least)
        }
        for change in [
          "PRAGMA application_id=7", "PRAGMA user_version=\(Schema.version ^ 4)", "PRAGMA user_version=0",
          "UPDATE kind SET type='Strhng'||substr(type, 7) WHERE what='keys'",
        ] {
          try Self.fill(place)
          try place.run(change)
          #expect(try Self.check(place) == 0, "\(change)")
          #expect(try place.number("PRAGMA application_id") == Schema.application)
        }
      }
    }

    @Test("a database of a newer version is refused, and left as it is", arguments: [2, 99, 1000, Int64(Int32.max)])
    func newer(version: Int64) throws {
      try withPlace { place in
        try Self.fill(place)
        try #expect(place.number("PRAGMA user_version") == 1)
        try place.run("PRAGMA user_version=\(version)")
        let before = try Data(contentsOf: URL(fileURLWithPath: place.database))
        let error = try #require(throws: PurgeableError.self) { try place.open() }
        #expect(error.kind == .invalidFile && error.explanation.contains("newer"))
        try #expect(Data(contentsOf: URL(fileURLWithPath: place.database)) == before)
        try place.run("PRAGMA user_version=\(Schema.version)")
        #expect(try Self.check(place) == Self.keys)
      }
    }

    @Test("a value in a file that is cut, gone or another's is missing, and its record goes")
    func files() throws {
      try withPlace { place in
        try Self.fill(place)
        let files = place.valueFiles().sorted()
        #expect(files.count == 10)
        try FileManager.default.removeItem(atPath: files[0])
        let content = try Data(contentsOf: URL(fileURLWithPath: files[1]))
        try content.dropLast().write(to: URL(fileURLWithPath: files[1]))
        try content.write(to: URL(fileURLWithPath: files[2]))
        #expect(try Self.check(place) == Self.keys - 3)
        #expect(try place.number("SELECT count(*) FROM record") == Int64(Self.keys - 3 + 1))
        #expect(try place.number("SELECT records FROM total") == Int64(Self.keys - 3 + 1))
      }
    }

    @Test("a record under another key, or two keys with one hash: each finds its own or nothing")
    func mixed() throws {
      try withPlace { place in
        try Self.fill(place)
        try place.run("UPDATE record SET hash=(SELECT hash FROM record WHERE key=CAST('1' AS BLOB)) WHERE key=CAST('2' AS BLOB)")
        try place.run(
          "UPDATE record SET value=(SELECT value FROM record WHERE key=CAST('3' AS BLOB)) WHERE key=CAST('4' AS BLOB)")
        try place.run("UPDATE record SET key=CAST('none' AS BLOB) WHERE key=CAST('5' AS BLOB)")
        // The second is not found by its own hash.
        #expect(try Self.check(place) == Self.keys - 3)
      }
    }

    @Test("a total that is nonsense is counted anew")
    func totals() throws {
      try withPlace { place in
        try Self.fill(place)
        try place.run("UPDATE total SET records=-5")
        try place.withStore { store in
          store.setValue([1], forKey: "new")
          try store.flush()
          #expect(store.statistics.recordCount == Self.keys + 1)
        }
      }
    }

    // MARK: What a flush says

    @Test("values that are given up because too much waits are told by the next flush, and only by that")
    func tooMuchWaits() throws {
      try withPlace { place in
        let store = try place.open()
        store.setValue([1], forKey: "old")
        try store.flush()
        let lock = unsafe Glibc.open("\(place.path)/lock", O_RDWR | O_CLOEXEC)
        #expect(flock(lock, LOCK_EX) == 0)
        for key in 0..<40 { store.setValue([UInt8](repeating: 1, count: 1 << 20), forKey: "\(key)") }
        #expect(store.statistics.failureCount > 0 && store.statistics.lastError?.kind == .busy)
        close(lock)
        let error = #expect(throws: PurgeableError.self) { try store.flush() }
        #expect(error?.kind == .busy && error?.explanation.contains("given up") == true)
        try store.flush()
        try store.close()
      }
    }

    @Test("where the disk has not kept what it was given, no later flush says that all is well", .filters)
    func lostSync() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open() else { fatalError("a store") }
        defer { place.folder.remove() }
        func error(_ body: () throws(PurgeableError) -> Void) -> PurgeableError? {
          do throws(PurgeableError) { try body() } catch { return error }
          return nil
        }
        store.setValue([1], forKey: "a")
        demand(error { () throws(PurgeableError) in try store.flush() } == nil, "a flush")
        demand(cases_refuse(cases_call_fsync, EIO), "a filter")
        store.setValue([2], forKey: "b")
        for _ in 0..<3 {
          let error = error { () throws(PurgeableError) in try store.flush() }
          demand(error?.kind == .systemCallFailed(call: "fsync") && error?.errorNumber == EIO, "\(error as Any)")
        }
        store.cache.removeAll()
        demand(store.value(forKey: "a") == [1] && store.value(forKey: "b") == [2], "reads and writes go on")
        demand(error { () throws(PurgeableError) in try store.close() } != nil, "the end")
      }
    }

    @Test("nor where SQLite was told so, as it wrote the log back, and the database has been opened again since", .filters)
    func syncLostInSQLite() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open() else { fatalError("a store") }
        defer { place.folder.remove() }
        func flushes() -> Bool { (try? store.flush()) != nil }
        store.setValue([1], forKey: "a")
        demand(cases_refuse(cases_call_fdatasync, EIO), "a filter")
        demand(flushes(), "what the library asks for is another call")
        // Something else is in the lock's place: the log is written back, and the database opened again.
        let lock = "\(place.path)/lock"
        demand(unsafe unlink(lock) == 0 && mkdir(lock, 0o700) == 0, "a lock")
        store.setValue([2], forKey: "b")
        // With a SQLite that makes the other call, nothing is shown.
        if flushes() { return }
        for _ in 0..<3 { demand(!flushes(), "all is well again") }
        store.cache.removeAll()
        demand(store.value(forKey: "a") == [1] && store.value(forKey: "b") == [2], "reads and writes go on")
      }
    }

    @Test("what an interrupted opening has left in part is made whole by the next")
    func halfOpened() throws {
      try withPlace { place in
        try place.withStore { store in store.setValue([1], forKey: "a") }
        let files = [place.path + "/CACHEDIR.TAG", place.path + "/data/reserve"]
        let contents = try files.map { try Data(contentsOf: URL(fileURLWithPath: $0)) }
        for file in files { #expect(unsafe truncate(file, 0) == 0) }
        try place.withStore { store in #expect(store.value(forKey: "a") == [1]) }
        #expect(try files.map { try Data(contentsOf: URL(fileURLWithPath: $0)) } == contents)
      }
    }

    // MARK: Others

    @Test("while another program has the database locked, reads go on, and writes wait for it and lose nothing")
    func locked() throws {
      try withPlace { place in
        try Self.fill(place)
        var options = PurgeableStoreOptions.withFiles
        options.writeInterval = .zero
        let store = try place.open(options)
        let other = try Connection(place.database, makes: false, busyMilliseconds: 1000)
        try other.run("BEGIN IMMEDIATE")
        store.setValue([1], forKey: "a")
        store.remove(forKey: "2")
        // The writer's thread takes them, and waits for the lock.
        for _ in 0..<50 {
          store.cache.removeAll()
          #expect(
            store.value(forKey: "1") == mixedContent(1) && store.value(forKey: "a") == [1] && store.value(forKey: "2") == nil)
          usleep(2000)
        }
        #expect(store.statistics.pendingCount == 2)
        let error = try #require(throws: PurgeableError.self) { try store.flush() }
        #expect(error.kind == .busy)
        try other.run("COMMIT")
        try store.flush()
        #expect(store.statistics.pendingCount == 0)
        store.cache.removeAll()
        #expect(store.value(forKey: "a") == [1])
        try store.close()
      }
    }

    @Test("statements find what they want by an index, and sort nothing")
    func plans() throws {
      try withPlace { place in
        try Self.fill(place)
        let connection = try Connection(place.database, makes: false, busyMilliseconds: 1000)
        for text in [
          Schema.find, Schema.has, Schema.identify, Schema.removeRecord, Schema.removeLife, Schema.touch, Schema.oldest,
          Schema.expired, Schema.nextToExpire, Schema.knowsFile,
        ] {
          let plan = try connection.prepare("EXPLAIN QUERY PLAN \(text)")
          while try plan.next() {
            let step = plan.text(3) ?? ""
            #expect(step.hasPrefix("SEARCH") || step.contains("USING COVERING INDEX"), "\(step) in \(text)")
            #expect(!step.contains("TEMP B-TREE"), "\(step) in \(text)")
          }
        }
      }
    }

    @Test("the keyed hash is SipHash-1-3")
    func hash() {
      // Of the bytes 0, 1, ... by Swift's Hasher, which is SipHash-1-3, with SWIFT_DETERMINISTIC_HASHING=1.
      let bytes = (0..<64).map { UInt8($0) }
      func hash(_ count: Int) -> UInt64 {
        unsafe bytes.withUnsafeBytes { unsafe purgeable__siphash(0, 0, $0.baseAddress, count) }
      }
      #expect(
        hash(0) == 0xD1FB_A762_150C_532C && hash(7) == 0x2F09_8AB0_C751_325A && hash(8) == 0xEAD4_11E6_7EBE_2EEA
          && hash(63) == 0x385D_3E39_E5F3_7359)
    }

    // MARK: Processes

    @Test("killed at any moment: what was reported as flushed is there, or what came later, whole; the database opens again")
    func killed() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace() else { fatalError("a folder") }
        var random = SplitMix64(seed: TestRun.seed)
        func stores(from first: Int, to pipe: Int32) throws {
          let store = try place.open(.withFiles)
          for version in first..<first + 1000 {
            for key in 0..<40 { store.setValue(mixedContent(key, version), forKey: "\(key)") }
            if version % 7 == 0 { try store.trim(toBytes: 20_000) }
            try store.flush()
            var said = Int32(version)
            _ = unsafe write(pipe, &said, 4)
          }
        }
        var last = 1
        for _ in 0..<(TestRun.isFull ? 200 : 20) {
          var ends: (Int32, Int32) = (0, 0)
          let isPiped = unsafe withUnsafeMutableBytes(of: &ends) {
            unsafe Glibc.pipe($0.baseAddress!.assumingMemoryBound(to: Int32.self)) == 0
          }
          demand(isPiped, "a pipe")
          let child = fork()
          if child == 0 {
            alarm(240)
            _exit((try? stores(from: last, to: ends.1)) == nil ? 1 : 0)
          }
          close(ends.1)
          var said: Int32 = 0
          let hasBegun = unsafe read(ends.0, &said, 4) == 4
          demand(hasBegun, "the child stores")
          usleep(UInt32(random.index(below: 30_000)))
          kill(child, SIGKILL)
          var reported = Int(said)
          while unsafe read(ends.0, &said, 4) == 4 { reported = Int(said) }
          _ = ChildEnd.of(child)
          close(ends.0)
          guard let store = try? place.open(.withFiles) else { fatalError("it opens again") }
          // Some are trimmed in each seventh round.
          let versions = (0..<40).compactMap { key -> Int? in
            guard let found = store.value(forKey: "\(key)") else { return nil }
            for version in [reported, reported + 1] where found == mixedContent(key, version) { return version }
            fatalError("\(key): a value that was not stored last, after \(reported)")
          }
          if reported % 7 != 0, (reported + 1) % 7 != 0 { demand(versions.count == 40, "\(versions.count) of 40") }
          demand(store.statistics.failureCount == 0, "nothing is damaged")
          try? store.close()
          last = reported + 2
        }
        place.folder.remove()
      }
    }

    @Test("a forked child has memory alone, opens nothing that its parent has open, and leaves the parent's database as it is")
    func forked() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open() else { fatalError("a store") }
        store.setValue([1], forKey: "a")
        guard (try? store.flush()) != nil else { fatalError("a flush") }
        store.setValue([2], forKey: "b")
        let child = fork()
        if child == 0 {
          alarm(240)
          var isWell =
            store.value(forKey: "a") == nil && store.value(forKey: "a") { [3] } == [3] && store.value(forKey: "a") == [3]
          store.setValue([4], forKey: "c")
          isWell = isWell && store.value(forKey: "c") == [4] && store.statistics.recordCount == 0
          do throws(PurgeableError) {
            try store.flush()
            isWell = false
          } catch { isWell = isWell && error.kind == .notSupported }
          do {
            _ = try place.open()
            isWell = false
          } catch { isWell = isWell && (error as? PurgeableError)?.kind == .notSupported }
          try? store.close()
          _exit(isWell ? 0 : 1)
        }
        demand(ChildEnd.of(child) == .exited(0), "the child is well")
        store.cache.removeAll()
        demand(
          store.value(forKey: "a") == [1] && store.value(forKey: "b") == [2] && store.value(forKey: "c") == nil, "the parent's")
        demand((try? store.close()) != nil, "an end")
        place.folder.remove()
      }
    }

    @Test("what waits is not given up for want of a descriptor; and however much waits, what was written stays")
    func manyChanges() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open() else { fatalError("a store") }
        defer { place.folder.remove() }
        for key in 0..<100 { store.setValue([UInt8(key)], forKey: "\(key)") }
        demand((try? store.flush()) != nil, "a flush")
        withoutDescriptors {
          for key in 0..<70_000 { store.setValue([1], forKey: "new \(key)") }
          for key in 0..<70_000 { store.remove(forKey: "none \(key)") }
          demand((try? store.flush()) == nil, "no descriptor")
        }
        demand((try? store.flush()) != nil && store.statistics.recordCount == 70_100, "\(store.statistics)")
        store.cache.removeAll()
        for key in 0..<100 { demand(store.value(forKey: "\(key)") == [UInt8(key)], "\(key)") }
        demand(store.value(forKey: "new 69999") == [1], "what waited")
        demand((try? store.close()) != nil, "the end")
      }
    }
  }

#endif
