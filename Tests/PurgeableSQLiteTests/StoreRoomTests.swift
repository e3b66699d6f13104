// SPDX-License-Identifier: MIT
// A database on a full disk: what the store itself fills, what others fill, and limits of the size of files.

#if SQLite
  import Glibc
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database on a full disk")
  struct StoreRoomTests {
    /// Runs `body` with a place on a disk of so many megabytes.
    private func withSmallDisk(_ megabytes: Int, _ body: (StorePlace) throws -> Void) throws {
      try withPlace { place in
        let path = place.folder.path
        let mounted = try ChildProcess.run("/usr/bin/env", ["mount", "-t", "tmpfs", "-o", "size=\(megabytes)m", "none", path])
        if mounted.status != 0 { try Test.cancel("no small disk can be mounted here: \(mounted.errors)") }
        defer { _ = try? ChildProcess.run("/usr/bin/env", ["umount", "-l", path]) }
        try body(place)
      }
    }

    private func filling(_ place: StorePlace) -> String { place.folder.path + "/filling" }

    /// Somebody else takes what is left of the disk, and gives it back.
    private func fill(_ place: StorePlace) {
      let file = unsafe open(filling(place), O_WRONLY | O_CREAT | O_APPEND, 0o600)
      defer { close(file) }
      let block = [UInt8](repeating: 1, count: 1 << 16)
      for size in [1 << 16, 4096] { while unsafe write(file, block, size) > 0 {} }
    }

    private func empty(_ place: StorePlace) { _ = unsafe unlink(filling(place)) }

    @Test(
      "a store that fills the disk loses the oldest records to what comes, and nothing else",
      .enabled(if: geteuid() == 0, "only root can mount a small disk"),
      arguments: [(12, 2000), (24, 2000), (24, 20_000), (48, 300_000)])
    func littleRoom(megabytes: Int, byteCount: Int) throws {
      try withSmallDisk(megabytes) { place in
        let store = try place.open()
        let count = 2_000_000 / byteCount
        for round in 0..<megabytes {
          func key(_ number: Int) -> String { "\(round) \(number)" }
          for number in 0..<count { store.setValue(content(number, version: round, count: byteCount), forKey: key(number)) }
          try store.flush()
          store.cache.removeAll()
          for number in stride(from: 0, to: count, by: 7) {
            #expect(store.value(forKey: key(number)) == content(number, version: round, count: byteCount))
          }
        }
        let numbers = store.statistics
        #expect(numbers.failureCount == 0 && numbers.recordCount * byteCount > megabytes << 20 / 4, "\(numbers)")
        try store.close()
      }
    }

    @Test(
      "on a disk that somebody else fills while it rests, records leave for what is stored, however large the database is",
      .enabled(if: TestRun.isFull && geteuid() == 0, "in a full run, and only root can mount a small disk"))
    func filledByOthers() throws {
      try withSmallDisk(120) { place in
        let store = try place.open()
        let count = 200_000
        for key in 0..<count {
          store.setValue(content(key, count: 60), forKey: "\(key)")
          if key % 20_000 == 19_999 { try store.flush() }
        }
        store.cache.removeAll()
        // At rest it has no log, which would need room in the database.
        #expect(patiently { place.logByteCount == 0 })
        fill(place)
        for key in 0..<2000 { store.setValue(content(key, version: 1, count: 2000), forKey: "new \(key)") }
        try store.flush()
        store.cache.removeAll()
        for key in stride(from: 0, to: 2000, by: 7) {
          #expect(store.value(forKey: "new \(key)") == content(key, version: 1, count: 2000))
        }
        let kept = store.statistics.recordCount
        #expect(kept > count / 3 && kept < count, "\(kept) are left")
        #expect((0..<count).allSatisfy { key in store.value(forKey: "\(key)").map { $0 == content(key, count: 60) } ?? true })
        try store.close()
      }
    }

    @Test(
      "a disk that others fill takes no record of a store whose log is long; to make room is possible, too",
      .enabled(if: geteuid() == 0, "only root can mount a small disk"))
    func filledWithLog() throws {
      try withSmallDisk(48) { place in
        let store = try place.open()
        for key in 0..<4000 { store.setValue(content(key, count: 2000), forKey: "\(key)") }
        try store.flush()
        #expect(place.logByteCount > 8 << 20)
        fill(place)
        for key in 4000..<4500 { store.setValue(content(key, count: 2000), forKey: "\(key)") }
        try store.flush()
        #expect(store.statistics.recordCount == 4500 && store.statistics.failureCount == 0, "\(store.statistics)")
        fill(place)
        try store.trim(toBytes: 4 << 20)
        #expect((1000...2000).contains(store.statistics.recordCount), "\(store.statistics)")
        try store.close()
        fill(place)
        #expect(try StoreInspection(place.path).trim(toBytes: 2 << 20) > 500)
        empty(place)
        try place.withStore { store in
          for key in 0..<4500 { #expect(store.value(forKey: "\(key)").map { $0 == content(key, count: 2000) } ?? (key < 4400)) }
        }
      }
    }

    @Test(
      "a value that a full disk has no room for is given up and told, and no record goes for it",
      .enabled(if: geteuid() == 0, "only root can mount a small disk"), arguments: [1 << 20, 64 << 20])
    func tooLarge(fileThreshold: Int) throws {
      try withSmallDisk(32) { place in
        var options = PurgeableStoreOptions()
        options.fileThresholdBytes = fileThreshold
        let store = try place.open(options)
        for key in 0..<5000 { store.setValue(content(key, count: 2000), forKey: "\(key)") }
        try store.flush()
        store.setValue(content(1, count: 40 << 20), forKey: "large")
        let error = #expect(throws: PurgeableError.self) { try store.flush() }
        #expect(error?.errorNumber == ENOSPC)
        #expect(store.statistics.failureCount == 1 && store.statistics.recordCount == 5000)
        // With its end, others have room.
        store.setValue(content(2, count: 2000), forKey: "later")
        try store.flush()
        store.cache.removeAll()
        #expect(store.value(forKey: "large") == nil && store.value(forKey: "later") == content(2, count: 2000))
        #expect((0..<5000).allSatisfy { store.value(forKey: "\($0)") == content($0, count: 2000) })
        try store.close()
      }
    }

    @Test("no room: a flush throws, no older value is found, and with room again all is well")
    func full() async {
      await #expect(processExitsWith: .success) {
        signal(SIGXFSZ, SIG_IGN)
        guard let place = try? StorePlace(), let store = try? place.open(.withFiles) else { fatalError("a store") }
        for key in 0..<200 { store.setValue(mixedContent(key), forKey: "\(key)") }
        guard (try? store.flush()) != nil else { fatalError("a flush") }
        func limit(_ byteCount: rlim_t) {
          var limit = rlimit(rlim_cur: byteCount, rlim_max: .max)
          let isSet = unsafe setrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit) == 0
          demand(isSet, "a limit")
        }
        var failures = 0
        for room in [0, 4096, 100_000, 200_000] {
          limit(rlim_t(room))
          for key in 0..<200 { store.setValue(mixedContent(key, room + 1), forKey: "\(key)") }
          if (try? store.flush()) == nil { failures += 1 }
          store.cache.removeAll()
          for key in 0..<200 {
            guard let found = store.value(forKey: "\(key)") else { continue }
            demand(found == mixedContent(key, room + 1), "\(key): an older value")
          }
          limit(.max)
          store.setValue([UInt8(truncatingIfNeeded: room)], forKey: "again")
          demand((try? store.flush()) != nil, "with room again: \(store.statistics.lastError as Any)")
          store.cache.removeAll()
          demand(store.value(forKey: "again") == [UInt8(truncatingIfNeeded: room)], "with room again")
          for key in 0..<200 {
            guard let found = store.value(forKey: "\(key)") else { continue }
            demand(found == mixedContent(key, room + 1), "\(key): an older value, later")
          }
        }
        demand(failures > 0, "no room shows")
        demand((try? store.close()) != nil, "an end")
        place.folder.remove()
      }
    }

    @Test("a limit of the size of files is a disk that is full: room is made, and what is stored last is there")
    func littleFiles() async {
      await #expect(processExitsWith: .success) {
        signal(SIGXFSZ, SIG_IGN)
        var limit = rlimit(rlim_cur: 6 << 20, rlim_max: .max)
        guard unsafe setrlimit(__rlimit_resource_t(RLIMIT_FSIZE.rawValue), &limit) == 0, let place = try? StorePlace(),
          let store = try? place.open()
        else { fatalError("a store") }
        defer { place.folder.remove() }
        var failures = 0
        for round in 0..<40 {
          for key in 0..<500 { store.setValue(content(key, version: round, count: 1000), forKey: "\(500 * round + key)") }
          if (try? store.flush()) == nil { failures += 1 }
          store.cache.removeAll()
          demand(
            store.value(forKey: "\(500 * round + 499)") == content(499, version: round, count: 1000),
            "round \(round): \(store.statistics)")
        }
        demand(failures < 4 && store.statistics.recordCount > 1500, "\(failures) failures, \(store.statistics)")
        demand((try? store.close()) != nil, "the end")
      }
    }

    @Test(
      "records that are read on a full disk stay, though there is no room to write them anew",
      .enabled(if: geteuid() == 0, "only root can mount a small disk"))
    func rewriting() throws {
      try withSmallDisk(12) { place in
        let keys = 500
        let first = try place.open(of: [UInt8].self, versionedFormat(1))
        for key in 0..<keys { first.setValue(content(key), forKey: "\(key)") }
        try first.close()
        let store = try place.open(of: [UInt8].self, versionedFormat(2))
        fill(place)
        for key in 0..<keys { #expect(store.value(forKey: "\(key)") == content(key)) }
        try store.flush()
        #expect(store.statistics.recordCount == keys && store.statistics.failureCount == 0, "\(store.statistics)")
        // Nor is there for what is used in memory, a minute later.
        place.clock.pass(.seconds(60))
        for key in 0..<keys { #expect(store.value(forKey: "\(key)") == content(key)) }
        try store.close()
        #expect(try place.number("SELECT count(*) FROM record WHERE format=1") == Int64(keys))
        empty(place)
        let again = try place.open(of: [UInt8].self, versionedFormat(2))
        for key in 0..<keys { #expect(again.value(forKey: "\(key)") == content(key)) }
        try again.close()
        #expect(try place.number("SELECT count(*) FROM record WHERE format=2") == Int64(keys))
      }
    }

    @Test(
      "a disk of its own, mounted where what lies above has nothing to bring to the disk, is flushed",
      .enabled(if: geteuid() == 0, "only root can mount a disk"))
    func mounted() throws {
      try withPlace { place in
        let above = place.folder.path
        defer { for path in ["\(above)/fs", above] { _ = try? ChildProcess.run("/usr/bin/env", ["umount", "-l", path]) } }
        for (kind, path) in [("proc", above), ("tmpfs", "\(above)/fs")] {
          let mounted = try ChildProcess.run("/usr/bin/env", ["mount", "-t", kind, "none", path])
          if mounted.status != 0 { try Test.cancel("\(kind) cannot be mounted here: \(mounted.errors)") }
        }
        let store = try BytesStore("fs", directory: above, cache: PurgeableCache())
        store.setValue([1], forKey: "a")
        try store.flush()
        store.cache.removeAll()
        #expect(store.value(forKey: "a") == [1])
        try store.close()
      }
    }
  }
#endif
