// SPDX-License-Identifier: MIT
// What others do to a store's files: all of them can be removed, and anything may be in their place.

#if SQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a store whose files others remove")
  struct StoreHarmTests {
    @Test("the folder removed while the store is open: it is made anew, and what is stored then is there")
    func removed() throws {
      try withPlace { place in
        let store = try place.open(.withFiles)
        store.setValue([1], forKey: "a")
        try store.flush()
        try FileManager.default.removeItem(atPath: place.path)
        store.setValue([2], forKey: "b")
        store.setValue(mixedContent(20), forKey: "20")
        try store.flush()
        store.cache.removeAll()
        #expect(
          store.value(forKey: "b") == [2] && store.value(forKey: "20") == mixedContent(20) && store.value(forKey: "a") == nil)
        try store.close()
        try place.withStore(.withFiles) { store in #expect(store.value(forKey: "b") == [2]) }
      }
    }

    @Test("a database that somebody puts aside before a flush fails that flush, once")
    func putAsideBeforeFlush() throws {
      try withPlace { place in
        let store = try place.open()
        store.setValue([1], forKey: "a")
        #expect(patiently { store.statistics.writeCount == 1 })
        let folder = try StoreFolder.open("store", in: place.folder.path, operation: "test")
        try folder.locked { () throws(StoreFailure) in try folder.putAside() }
        let error = #expect(throws: PurgeableError.self) { try store.flush() }
        #expect(error?.kind == .invalidFile)
        store.setValue([2], forKey: "b")
        try store.flush()
        store.cache.removeAll()
        #expect(store.value(forKey: "a") == nil && store.value(forKey: "b") == [2])
        // Nothing that was not flushed goes with the next one.
        try folder.locked { () throws(StoreFailure) in try folder.putAside() }
        try store.flush()
        try store.close()
      }
    }

    /// What somebody may do to a file of the store.
    enum Harm: CaseIterable, Sendable { case removed, directory, pipe, deadLink, movedAndLinked }

    @Test(
      "whatever is removed or put in a file's place, while the store is open or before: it opens, and keeps what is stored then",
      arguments: [
        "data", "data/database", "data/database-wal", "data/database-shm", "data/values", "lock", "CACHEDIR.TAG", "data/reserve",
      ], Harm.allCases)
    func harmed(name: String, harm: Harm) throws {
      for isOpen in [true, false] {
        try withPlace { place in
          func store(_ version: Int, in store: BytesStore) throws {
            for key in [1, 20] { store.setValue(mixedContent(key, version), forKey: "\(key)") }
            try store.flush()
            store.cache.removeAll()
            for key in [1, 20] { #expect(store.value(forKey: "\(key)") == mixedContent(key, version), "\(isOpen) \(version)") }
          }
          let opened = try place.open(.withFiles)
          try store(1, in: opened)
          if !isOpen { try opened.close() }
          let (path, manager) = ("\(place.path)/\(name)", FileManager.default)
          if harm == .movedAndLinked, manager.fileExists(atPath: path) {
            try manager.moveItem(atPath: path, toPath: place.folder.path + "/moved")
          } else if manager.fileExists(atPath: path) {
            try manager.removeItem(atPath: path)
          }
          switch harm {
          case .removed: break
          case .directory: try manager.createDirectory(atPath: path + "/within", withIntermediateDirectories: true)
          case .pipe: #expect(unsafe mkfifo(path, 0o600) == 0)
          case .deadLink: try manager.createSymbolicLink(atPath: path, withDestinationPath: place.folder.path + "/nowhere")
          case .movedAndLinked:
            try manager.createSymbolicLink(atPath: path, withDestinationPath: place.folder.path + "/moved")
          }
          if isOpen {
            try store(2, in: opened)
            try opened.close()
          }
          let again = try place.open(.withFiles)
          if isOpen { for key in [1, 20] { #expect(again.value(forKey: "\(key)") == mixedContent(key, 2)) } }
          try store(3, in: again)
          try again.close()
        }
      }
    }

    @Test("the log removed while the store is open: what was flushed before, and what is flushed then, is in the database")
    func withoutLog() throws {
      try withPlace { place in
        let store = try place.open(.withFiles)
        for round in 0..<4 {
          store.setValue([UInt8(round)], forKey: "\(round)")
          try store.flush()
          // Also for a flush of nothing.
          try FileManager.default.removeItem(atPath: place.database + (round % 2 == 0 ? "-wal" : "-shm"))
          if round > 1 { store.setValue([9], forKey: "another") }
          try store.flush()
          #expect(try place.number("SELECT count(*) FROM record") == Int64(round + 1 + (round > 1 ? 1 : 0)))
        }
        store.cache.removeAll()
        for round in 0..<4 { #expect(store.value(forKey: "\(round)") == [UInt8(round)]) }
        #expect(store.statistics.failureCount == 0)
        try store.close()
      }
    }

    // MARK: More than can be written

    private func holdLock(of place: StorePlace) -> Int32 {
      let lock = unsafe Glibc.open("\(place.path)/lock", O_RDWR | O_CLOEXEC)
      #expect(flock(lock, LOCK_EX) == 0)
      return lock
    }

    @Test("where very many removals wait, whoever removes waits too, a moment each: what was written before stays")
    func crowd() throws {
      try withPlace { place in
        let store = try place.open()
        for key in 0..<100 { store.setValue([UInt8(key)], forKey: "\(key)") }
        try store.flush()
        let lock = holdLock(of: place)
        // The thread takes the first, and waits for the lock.
        store.remove(forKey: "first")
        #expect(patiently { store.statistics.pendingCount == 1 })
        usleep(1_500_000)
        func isCrowded() -> Bool { store.database.isCrowded.load(ordering: .relaxed) }
        for key in 0..<200_000 where !isCrowded() { store.remove(forKey: "none \(key)") }
        #expect(isCrowded())
        let start = MonotonicTime.now
        for key in 0..<10 { store.remove(forKey: "more \(key)") }
        #expect(MonotonicTime.now - start >= 10 * 15_000_000)
        close(lock)
        try store.flush()
        #expect(!isCrowded())
        store.cache.removeAll()
        for key in 0..<100 { #expect(store.value(forKey: "\(key)") == [UInt8(key)]) }
        try store.close()
      }
    }

    @Test("records of an older format stay where too much waits for them to be written anew")
    func conversions() throws {
      try withPlace { place in
        let values = (0..<40).map { [UInt8](repeating: UInt8($0), count: 1 << 20) }
        let old = try place.open(of: [UInt8].self, versionedFormat(1))
        for (key, value) in values.enumerated() {
          old.setValue(value, forKey: "\(key)")
          if key % 10 == 9 { try old.flush() }
        }
        try old.close()
        let store = try place.open(of: [UInt8].self, versionedFormat(2))
        let lock = holdLock(of: place)
        for (key, value) in values.enumerated() { #expect(store.value(forKey: "\(key)") == value) }
        close(lock)
        try store.flush()
        store.cache.removeAll()
        for (key, value) in values.enumerated() { #expect(store.value(forKey: "\(key)") == value) }
        try store.close()
      }
    }

    // MARK: Tables made by hand

    @Test("triggers do not run; without an index or with a view for a table the database is put aside", arguments: 0..<4)
    func foreignParts(way: Int) throws {
      try withPlace { place in
        try place.withStore { store in
          store.setValue([1], forKey: "a")
          try store.flush()
        }
        try place.run(
          [
            "CREATE TRIGGER eats AFTER INSERT ON record BEGIN DELETE FROM record WHERE id=new.id; END",
            "DROP INDEX record_hash", "DROP INDEX life_used",
            "ALTER TABLE total RENAME TO other; CREATE VIEW total AS SELECT * FROM other",
          ][way])
        try place.withStore { store in
          #expect(store.value(forKey: "a") == (way == 0 ? [1] : nil))
          #expect((store.statistics.lastError != nil) == (way != 0))
          store.setValue([2], forKey: "b")
          try store.flush()
          store.cache.removeAll()
          #expect(store.value(forKey: "b") == [2])
        }
      }
    }
  }
#endif
