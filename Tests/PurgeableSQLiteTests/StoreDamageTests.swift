// SPDX-License-Identifier: MIT
// What changes in the files of a store behind its back: a bit of what all records hang on, files that others have open.

#if SQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database behind a cache: bits and names that change")
  struct StoreDamageTests {
    private static let count = 200

    private static func fill(_ store: BytesStore, version: Int = 0) throws {
      for key in 0..<count { store.setValue(content(key, version: version, count: 300), forKey: "\(key)") }
      try store.flush()
      store.cache.removeAll()
    }

    private static func allAre(_ version: Int, in store: BytesStore) -> Bool {
      store.cache.removeAll()
      return (0..<count).allSatisfy { store.value(forKey: "\($0)") == content($0, version: version, count: 300) }
    }

    @Test(
      "a bit of the totals or of the hash's key changes: no record is lost, none found twice, and no old value returned",
      arguments: ["records", "bytes", "low", "high"])
    func totals(column: String) throws {
      try withPlace { place in
        let options = PurgeableStoreOptions(byteLimit: 1 << 20, countLimit: 1000)
        try place.withStore(options) { try Self.fill($0) }
        for bit in stride(from: 0, to: 63, by: 9) {
          let flip = "UPDATE total SET \(column)=(\(column)|\(1 << bit))-(\(column)&\(1 << bit))"
          // Before the opening, and after.
          try place.run(flip)
          try place.withStore(options) { store in
            #expect(Self.allAre(bit, in: store) || bit == 0 && Self.allAre(0, in: store), "\(column), bit \(bit)")
            try place.run(flip)
            try Self.fill(store, version: bit + 9)
            #expect(Self.allAre(bit + 9, in: store), "\(column), bit \(bit), open")
            #expect(try place.number("SELECT count(*) FROM record") == Int64(Self.count), "\(column), bit \(bit)")
          }
        }
      }
    }

    @Test("the copy of the hash's key that has a sum changes, or is removed: it is written again")
    func copies() throws {
      try withPlace { place in
        try place.withStore { try Self.fill($0) }
        for change in ["DELETE FROM kind WHERE what='hash'", "UPDATE kind SET type='1'||type WHERE what='hash'"] {
          try place.run(change)
          try place.withStore { #expect(Self.allAre(0, in: $0)) }
          try place.run("UPDATE total SET low=low+1, high=0")
          try place.withStore { #expect(Self.allAre(0, in: $0)) }
        }
      }
    }

    @Test("a time that follows from the last use changes: what is past its deadline is not found")
    func deadline() throws {
      try withPlace { place in
        try place.withStore { store in
          store.setValue([1], forKey: "a", expiry: Expiry(sinceCreation: .seconds(50), sinceLastUse: .seconds(100)))
          try store.flush()
          store.cache.removeAll()
          try place.run("UPDATE life SET expires=expires+1000000000000, deadline=NULL")
          #expect(store.value(forKey: "a") == [1])
          store.cache.removeAll()
          place.clock.pass(.seconds(51))
          #expect(store.value(forKey: "a") == nil)
        }
      }
    }

    @Test(
      "files beside the database are removed, and another process opens it: no wrong value, no damage, and what is lost is told",
      arguments: [["-shm"], ["-wal", "-shm"]])
    func removedBesideAnother(names: [String]) async throws {
      try await withPlace { place in
        let store = try place.open()
        try Self.fill(store)
        #expect(Self.allAre(0, in: store))
        for name in names { try FileManager.default.removeItem(atPath: place.database + name) }
        let directory = place.folder.path
        await #expect(processExitsWith: .success) { [directory = directory as String] in
          func work() throws {
            let other = try BytesStore("store", directory: directory, cache: PurgeableCache<String, [UInt8]>())
            for key in 100..<400 { other.setValue(content(key, version: 5, count: 3000), forKey: "\(key)") }
            try other.flush()
            other.cache.removeAll()
            for key in 100..<400 { demand(other.value(forKey: "\(key)") == content(key, version: 5, count: 3000), "\(key)") }
            try other.close()
          }
          try work()
        }
        store.cache.removeAll()
        func found() -> [[UInt8]?] { (0..<400).map { store.value(forKey: "\($0)") } }
        // The log that kept its name has all; of the other one only the new one's is left.
        let keepsAll = names == ["-shm"]
        let all = (0..<400).map { $0 < 100 ? content($0, count: 300) : content($0, version: 5, count: 3000) }
        let left = (0..<400).map { $0 < 100 && !keepsAll ? nil : all[$0] }
        #expect(zip(found(), all).allSatisfy { $0 == nil || $0 == $1 })
        var failure: PurgeableError?
        do { try await store.flush() } catch { failure = error as? PurgeableError }
        #expect(keepsAll ? failure == nil : failure?.explanation.contains("another process") == true, "\(failure as Any)")
        store.cache.removeAll()
        #expect(found() == left)
        store.setValue([9], forKey: "new")
        try store.close()
        #expect(try FileManager.default.contentsOfDirectory(atPath: place.path).allSatisfy { !$0.hasPrefix("damaged.") })
        #expect(try place.number("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check<>'ok'") == 0)
        try place.withStore { again in
          #expect(again.value(forKey: "new") == [9])
          #expect((0..<400).map { again.value(forKey: "\($0)") } == left)
        }
      }
    }

    @Test("a store opens beside a transaction of another program")
    func besideTransaction() throws {
      try withPlace { place in
        try place.withStore { try Self.fill($0) }
        let other = try Connection(place.database, makes: false, busyMilliseconds: 0)
        try other.run("BEGIN IMMEDIATE")
        let store = try place.open()
        #expect(store.value(forKey: "1") == content(1, count: 300))
        try other.run("ROLLBACK")
        try store.close()
      }
    }

    @Test("a second store asks whose the folder is, and the locks of the first stay")
    func locks() throws {
      try withPlace { place in
        let store = try place.open()
        try Self.fill(store)
        #expect(Self.allAre(0, in: store))
        let number = try #require(FileNumber(of: place.database)).inode
        func locks() throws -> [Substring] {
          try String(contentsOfFile: "/proc/locks", encoding: .utf8).split(separator: "\n")
            .filter { $0.contains("POSIX") && $0.contains(":\(number) ") }
        }
        let before = try locks().count
        if before == 0 { try Test.cancel("/proc/locks tells of no locks here") }
        try FileManager.default.removeItem(atPath: "\(place.path)/CACHEDIR.TAG")
        let second = try place.open()
        #expect(try locks().count >= before)
        try second.close()
        #expect(try locks().count >= before)
        try store.close()
      }
    }

    @Test("in a folder that others may read the database is its owner's alone")
    func rights() throws {
      try withPlace { place in
        try FileManager.default.createDirectory(atPath: "\(place.path)/data", withIntermediateDirectories: true)
        for folder in [place.path, "\(place.path)/data"] { #expect(unsafe chmod(folder, 0o777) == 0) }
        try place.withStore(.withFiles) { store in
          store.setValue([UInt8](repeating: 1, count: 20_000), forKey: "long")
          try store.flush()
          for file in ["", "-wal", "-shm"].map({ place.database + $0 }) + place.valueFiles() {
            let rights = try FileManager.default.attributesOfItem(atPath: file)[.posixPermissions] as? Int
            #expect(rights == 0o600, "\(file): \(rights ?? 0)")
          }
        }
      }
    }
  }
#endif
