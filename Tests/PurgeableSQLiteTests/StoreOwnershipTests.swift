// SPDX-License-Identifier: MIT
// Whose a database, its folder, a cache and a clock are.

#if SQLite
  import Foundation
  import PurgeableTestSupport
  import Testing

  @testable import Purgeable
  @testable import PurgeableSQLite

  @Suite("a database behind a cache: its folder, types, the cache in front, its clock")
  struct StoreOwnershipTests {
    private func open<Key, Value>(_ place: StorePlace, _ cache: PurgeableCache<Key, Value>) throws -> PurgeableStore<Key, Value> {
      try PurgeableStore("store", directory: place.folder.path, cache: cache)
    }

    @Test("the folder is its owner's alone, and says that it is a cache")
    func folder() throws {
      try withPlace { place in
        try place.withStore { store in store.setValue([1], forKey: "a") }
        let tag = try String(contentsOfFile: place.path + "/CACHEDIR.TAG", encoding: .utf8)
        #expect(tag.hasPrefix("Signature: 8a477f597d28d172789f06886806bc55\n"))
        var status = stat()
        #expect(unsafe stat(place.path, &status) == 0 && status.st_mode & 0o777 == 0o700)
        // Read back without the log: closed, it is written back.
        #expect(!FileManager.default.fileExists(atPath: place.database + "-wal"))
      }
    }

    @Test("a folder with files that are no store's is refused, and left as it is; one that is empty, or without its tag, is not")
    func foreignFolder() throws {
      let manager = FileManager.default
      func makeForeign(_ place: StorePlace, _ file: String) throws -> [String] {
        let path = "\(place.path)/\(file)"
        try manager.createDirectory(atPath: (path as NSString).deletingLastPathComponent, withIntermediateDirectories: true)
        // As long as a database's header.
        try String(repeating: "mine", count: 50).write(toFile: path, atomically: true, encoding: .utf8)
        return try manager.subpathsOfDirectory(atPath: place.path).sorted()
      }
      for file in [
        "data/notes.txt", "pictures/a.png", "damaged.1/a", "lock/a", "data", "data/database", "data/database_backup/a",
      ] {
        try withPlace { place in
          let names = try makeForeign(place, file)
          let error = try #require(throws: PurgeableError.self) { try place.open().close() }
          #expect(error.kind == .invalidArgument("name") && error.explanation.contains(place.path), "\(file): \(error)")
          #expect(try manager.subpathsOfDirectory(atPath: place.path).sorted() == names)
        }
        // One that comes in the place of a store's that is open.
        try withPlace { place in
          let store = try place.open()
          // The thread has looked at its folder.
          try store.flush()
          try manager.moveItem(atPath: place.path, toPath: place.path + ".old")
          let names = try makeForeign(place, file)
          #expect(store.value(forKey: "a") == nil)
          store.setValue([1], forKey: "a")
          #expect(throws: PurgeableError.self, "\(file)") { try store.flush() }
          #expect(try manager.subpathsOfDirectory(atPath: place.path).sorted() == names, "\(file)")
          _ = try? store.close()
          #expect(try manager.subpathsOfDirectory(atPath: place.path).sorted() == names, "\(file)")
        }
      }
      try withPlace { place in
        // As where a disk is mounted.
        try manager.createDirectory(atPath: place.path + "/lost+found", withIntermediateDirectories: true)
        try place.withStore { store in store.setValue([1], forKey: "a") }
        try manager.removeItem(atPath: place.path + "/CACHEDIR.TAG")
        // What is on its way to be deleted is known by the database beside it.
        try manager.createDirectory(atPath: place.path + "/damaged.1", withIntermediateDirectories: true)
        try place.withStore { store in #expect(store.value(forKey: "a") == [1]) }
        // With its tag, whatever else somebody has put there.
        try "mine".write(toFile: place.path + "/notes.txt", atomically: true, encoding: .utf8)
        try place.withStore { store in #expect(store.value(forKey: "a") == [1]) }
      }
    }

    @Test("with no directory given it is where XDG_CACHE_HOME says, else in HOME's .cache; without either it says so")
    func cacheDirectory() async {
      await #expect(processExitsWith: .success) {
        let root = try FakeRoot()
        defer { root.remove() }
        func failure() -> PurgeableError? {
          do throws(PurgeableError) { try BytesStore("pages", cache: PurgeableCache()).close() } catch { return error }
          return nil
        }
        func isThere(_ path: String) -> Bool { FileManager.default.fileExists(atPath: "\(root.path)/\(path)/pages/CACHEDIR.TAG") }
        unsafe setenv("HOME", root.path + "/home", 1)
        unsafe setenv("XDG_CACHE_HOME", root.path + "/caches", 1)
        demand(failure() == nil && isThere("caches") && !isThere("home/.cache"), "where XDG_CACHE_HOME says")
        // The specification has relative paths ignored.
        for name in ["caches", ""] {
          try FileManager.default.removeItem(atPath: root.path + "/caches")
          try FileManager.default.createDirectory(atPath: root.path + "/caches", withIntermediateDirectories: true)
          unsafe setenv("XDG_CACHE_HOME", name, 1)
          demand(failure() == nil && isThere("home/.cache"), "in HOME")
          try FileManager.default.removeItem(atPath: root.path + "/home")
        }
        unsafe unsetenv("XDG_CACHE_HOME")
        demand(failure() == nil && isThere("home/.cache") && !isThere("caches"), "in HOME")
        unsafe unsetenv("HOME")
        let error = failure()
        demand(error?.kind == .invalidArgument("directory") && error?.explanation.contains("HOME") == true, "\(error as Any)")
      }
    }

    @Test("a database of keys or of values of another type is refused, and left as it is")
    func types() throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      let first = try open(place, PurgeableCache<String, Int>())
      first.setValue(42, forKey: "n")
      try first.close()
      func refusal(_ open: () throws -> Void) -> String {
        let error = #expect(throws: PurgeableError.self, performing: open)
        #expect(error?.kind == .invalidFile)
        return error?.description ?? ""
      }
      let values = refusal { _ = try open(place, PurgeableCache<String, Double>()) }
      #expect(values.contains("values of type Int, not Double: give the store another name, or remove its folder"))
      #expect(refusal { _ = try open(place, PurgeableCache<Int, Int>()) }.contains("keys of type String, not Int"))
      // Values of another format are for its closures to tell.
      let format = StoredFormat<Double>(version: 1) {
        [UInt8("\($0)".utf8.first!)]
      } decode: { _, version in
        version == 0 ? 7 : nil
      }
      let converted = try PurgeableStore(
        "store", directory: place.folder.path, cache: PurgeableCache<String, Double>(), format: format)
      #expect(converted.value(forKey: "n") == 7)
      converted.cache.removeAll()
      try converted.close()
      let last = try open(place, PurgeableCache<String, Int>())
      last.setValue(43, forKey: "m")
      try last.close()
      #expect(try place.number("SELECT count(*) FROM kind WHERE what<>'hash'") == 2)
    }

    @Test("where a database of other types takes the place of one that is open, nothing is read from it")
    func exchanged() throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      let first = try open(place, PurgeableCache<String, Int>())
      first.setValue(1, forKey: "n")
      try first.flush()
      try FileManager.default.removeItem(atPath: place.path)
      let second = try open(place, PurgeableCache<String, Double>())
      second.setValue(0.5, forKey: "n")
      try second.flush()
      first.cache.removeAll()
      #expect(first.value(forKey: "n") == nil)
      first.setValue(2, forKey: "n")
      let error = #expect(throws: PurgeableError.self) { try first.flush() }
      #expect(error?.description.contains("values of type Double, not Int") == true)
      second.cache.removeAll()
      #expect(second.value(forKey: "n") == 0.5)
      try second.close()
    }

    @Test("a cache is one store's, until it is closed or gone")
    func cache() throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      let cache = try PurgeableCache<String, [UInt8]>()
      #expect(throws: PurgeableError.self) {
        try PurgeableStore("", directory: place.folder.path, cache: cache)
      }
      let first = try open(place, cache)
      let error = #expect(throws: PurgeableError.self) {
        try PurgeableStore("other", directory: place.folder.path, cache: cache)
      }
      #expect(error?.kind == .invalidArgument("cache"))
      first.setValue([1], forKey: "a")
      try first.close()
      do {
        let second = try open(place, cache)
        cache.removeAll()
        #expect(second.value(forKey: "a") == [1])
      }
      try open(place, cache).close()
    }

    /// A store whose times are measured by a clock that the test sets.
    private func withTimedStore(_ body: (PurgeableStore<String, [UInt8]>, ManualClock) throws -> Void) throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      var options = CacheOptions()
      let clock = ManualClock()
      options.clock = clock
      let store = try open(place, PurgeableCache<String, [UInt8]>(options))
      try body(store, clock)
      try store.close()
    }

    @Test("records expire by the clock of the cache's options")
    func clock() throws {
      try withTimedStore { store, clock in
        store.setValue([1], forKey: "a", expiry: .sinceCreation(.seconds(60)))
        store.setValue([2], forKey: "b", expiry: .sinceCreation(.seconds(90)))
        try store.flush()
        clock.advance(by: .seconds(61))
        #expect(store.value(forKey: "a") == nil && store.value(forKey: "b") == [2])
        store.cache.removeAll()
        #expect(store.value(forKey: "a") == nil && store.value(forKey: "b") == [2])
        #expect(try store.removeExpired() <= 1)
        #expect(store.statistics.recordCount == 1)
      }
    }

    @Test("removeExpired counts what goes with it, also what its thread removes by itself then")
    func expired() throws {
      try withTimedStore { store, clock in
        for key in 0..<10 { store.setValue([1], forKey: "\(key)", expiry: .sinceCreation(.seconds(60))) }
        store.setValue([2], forKey: "stays")
        try store.flush()
        clock.advance(by: .seconds(61))
        let counts = [try store.removeExpired(), try store.removeExpired()]
        #expect(counts == [10, 0] && store.statistics.recordCount == 1)
      }
    }

    @Test("only calls of the program's closures count as loads")
    func loads() async throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      let store = try place.open()
      func count() -> Int { store.cache.statistics.loadCount }
      func block() throws {
        #expect(store.value(forKey: "a") == nil && count() == 0)
        #expect(store.value(forKey: "a") { [1] } == [1] && count() == 1)
        try store.flush()
        store.cache.removeAll()
        #expect(store.value(forKey: "a") { [2] } == [1] && count() == 1)
        store.cache.removeAll()
      }
      try block()
      let read = await store.value(forKey: "a") { [2] }
      #expect(read == [1] && count() == 1)
      let absent = await store.value(forKey: "b", reloading: { _ in .absent() })
      #expect(absent == nil && count() == 2)
    }

    @Test("loads that may find nothing: what is remembered, what goes from the database")
    func nothing() async throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      let store = try place.open()
      let calls = CallCount()
      @Sendable func find(_ value: [UInt8]?) -> [UInt8]? {
        calls.add()
        return value
      }
      func block() throws {
        #expect(store.value(forKey: "a", keepingNilFor: .seconds(5)) { find(nil) } == nil && calls.value == 1)
        #expect(store.value(forKey: "a", keepingNilFor: .seconds(5)) { find([1]) } == nil && calls.value == 1, "remembered")
        place.clock.pass(.seconds(6))
        #expect(store.value(forKey: "a", version: "1", keepingNilFor: .seconds(5)) { find([1]) } == [1] && calls.value == 2)
        try store.flush()
        store.cache.removeAll()
        #expect(store.value(forKey: "a", version: "1") { find(nil) } == [1] && calls.value == 2, "from the database")
        store.cache.removeAll()
        #expect(store.value(forKey: "a", version: "2") { find(nil) } == nil && calls.value == 3)
        #expect(store.value(forKey: "a") == [1], "the older one stays, as in memory")
        store.cache.removeAll()
        #expect(store.value(forKey: "a", version: "2", keepingNilFor: .seconds(5)) { find(nil) } == nil && calls.value == 4)
        #expect(
          store.value(forKey: "a", keepingNilFor: .seconds(5)) { find(nil) } == [1] && calls.value == 4, "of another version")
        store.setValue([7], forKey: "b")
        try store.flush()
        #expect(try place.number("SELECT count(*) FROM record") == 2)
      }
      try block()
      let found = await store.value(forKey: "c", refreshAfter: .seconds(10)) { find([3]) }
      #expect(found == [3])
      place.clock.pass(.seconds(20))
      let old = await store.value(forKey: "c", refreshAfter: .seconds(10), keepingNilFor: .seconds(60)) { find(nil) }
      #expect(old == [3], "returned, and looked for anew meanwhile")
      #expect(await TestRun.comes { store.cache.peekValue(forKey: "c") == nil })
      let count = calls.value
      let gone = await store.value(forKey: "c", keepingNilFor: .seconds(60)) { find([4]) }
      #expect(gone == nil && calls.value == count, "remembered")
      try await store.flush()
      #expect(try place.number("SELECT count(*) FROM record") == 2)
    }

    private struct Gapped: PurgeableKey, BitwiseCopyable {
      var level: Int8
      var number: Int32
    }
    private struct Dense: PurgeableKey, BitwiseCopyable { var level: Int32, number: Int32 }

    @Test("keys of which equal ones may have different bytes are refused, and make nothing")
    func gapped() throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      func open<Key: PurgeableKey>(_: Key.Type) throws -> PurgeableStore<Key, [UInt8]> {
        try PurgeableStore("keys", directory: place.folder.path, cache: try PurgeableCache<Key, [UInt8]>())
      }
      let error = try #require(throws: PurgeableError.self) { try open(Gapped.self) }
      #expect(error.kind == .invalidArgument("cache") && error.explanation.contains("Gapped"))
      #expect(try FileManager.default.contentsOfDirectory(atPath: place.folder.path).isEmpty)
      let store = try open(Dense.self)
      store.setValue([1], forKey: Dense(level: 1, number: 2))
      try store.flush()
      store.cache.removeAll()
      #expect(store.value(forKey: Dense(level: 1, number: 2)) == [1])
      try store.close()
    }

    @Test(
      "a database whose tables have gone is found out by a reader: what its log has stays, and else it is made anew",
      arguments: [false, true])
    func cut(isWrittenBack: Bool) throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      let store = try place.open()
      for key in 0..<1000 { store.setValue([UInt8](repeating: 1, count: 3000), forKey: "\(key)") }
      try store.flush()
      store.cache.removeAll()
      if isWrittenBack { #expect(try place.number("PRAGMA wal_checkpoint(TRUNCATE)") == 0) }
      let file = try FileHandle(forWritingTo: URL(fileURLWithPath: place.database))
      try file.truncate(atOffset: 0)
      try file.write(contentsOf: Data("x".utf8))
      try file.close()
      for key in 0..<1000 { #expect([nil, [UInt8](repeating: 1, count: 3000)].contains(store.value(forKey: "\(key)"))) }
      if isWrittenBack { #expect(throws: PurgeableError.self) { try store.flush() } } else { try store.flush() }
      store.setValue([1], forKey: "a")
      try store.close()
      try place.withStore { store in
        #expect(store.value(forKey: "a") == [1])
        for key in 0..<1000 { #expect((store.value(forKey: "\(key)") == nil) == isWrittenBack) }
      }
    }
  }
#endif
