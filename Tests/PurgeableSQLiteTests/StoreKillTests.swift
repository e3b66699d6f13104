// SPDX-License-Identifier: MIT
// Kills at chosen moments: in the middle of any of SQLite's writes, between a value's file and its row. A disk that is full from
// any of these writes on, and a damaged log.

#if SQLite
  import CSQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Synchronization
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  /// Counts what SQLite writes from here on, and ends this process in the middle of one write, or has the disk full from it on.
  /// For child processes.
  private enum WriteFault {
    static let count = Atomic<Int>(0)
    private static let first = Atomic<Int>(.max)
    private static let kills = Atomic<Bool>(true)
    private static let isOver = Atomic<Bool>(false)

    static func begin(at number: Int, kills isKill: Bool = true) {
      first.store(number, ordering: .relaxed)
      kills.store(isKill, ordering: .relaxed)
      guard let vfs = unsafe sqlite3_vfs_find(nil), let set = unsafe vfs.pointee.xSetSystemCall else { fatalError("no VFS") }
      let write: @convention(c) (Int32, UnsafeRawPointer?, Int, Int) -> Int = { file, bytes, count, offset in
        guard WriteFault.hasRoom({ unsafe pwrite(file, bytes, count / 2, offset) }) else { return -1 }
        return unsafe pwrite(file, bytes, count, offset)
      }
      let truncate: @convention(c) (Int32, Int) -> Int32 = { file, length in
        if WriteFault.kills.load(ordering: .relaxed) { _ = WriteFault.hasRoom { 0 } }
        return ftruncate(file, length)
      }
      // Safe: SQLite's documentation has these calls replaced by functions of exactly these types.
      for name in ["pwrite", "pwrite64"] { _ = unsafe set(vfs, name, unsafeBitCast(write, to: sqlite3_syscall_ptr.self)) }
      _ = unsafe set(vfs, "ftruncate", unsafeBitCast(truncate, to: sqlite3_syscall_ptr.self))
    }

    /// There is room again.
    static func end() { isOver.store(true, ordering: .relaxed) }

    private static func hasRoom(_ part: () -> Int) -> Bool {
      let number = count.add(1, ordering: .relaxed).newValue
      guard number >= first.load(ordering: .relaxed), !isOver.load(ordering: .relaxed) else { return true }
      if kills.load(ordering: .relaxed) {
        _ = part()
        kill(getpid(), SIGKILL)
      }
      errno = ENOSPC
      return false
    }
  }

  @Suite("a database, and kills at chosen moments")
  struct StoreKillTests {
    private static let keys = 300

    private static func fill(_ place: StorePlace) throws {
      try place.withStore(.withFiles) { store in
        for key in 0..<keys { store.setValue(mixedContent(key), forKey: "\(key)") }
      }
    }

    /// How a child ends that does this work, 0 where it does all of it.
    private static func endOfChild(_ work: () throws -> Void) -> ChildEnd? {
      let child = fork()
      if child == 0 {
        alarm(240)
        _exit((try? work()) == nil ? 1 : 0)
      }
      return ChildEnd.of(child)
    }

    private static func expectIntegrity(of place: StorePlace, _ trial: Int) throws {
      let faults = try place.number("SELECT count(*) FROM pragma_integrity_check WHERE integrity_check<>'ok'")
      demand(faults == 0, "trial \(trial): \(faults ?? -1) faults")
    }

    @Test("in any write of replacing, using, evicting, giving pages back and writing the log back: it opens again, all is right")
    func inWrites() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), (try? StoreKillTests.fill(place)) != nil else { fatalError("a store") }
        let (files, copy, counted) = (FileManager.default, place.folder.path + "/copy", place.folder.path + "/counted")
        try files.copyItem(atPath: place.path, toPath: copy)
        func work(killingAt number: Int) throws {
          let store = try place.open(.withFiles)
          WriteFault.begin(at: number)
          for key in stride(from: 0, to: StoreKillTests.keys, by: 3) {
            store.setValue(mixedContent(key, 1), forKey: "\(key)")
          }
          try store.flush()
          // Uses.
          place.clock.pass(.seconds(86_400))
          for key in stride(from: 1, to: StoreKillTests.keys, by: 3) {
            demand(store.value(forKey: "\(key)") == mixedContent(key), "\(key)")
          }
          try store.flush()
          try store.trim(toBytes: 60_000)
          try place.run("PRAGMA incremental_vacuum(200); PRAGMA wal_checkpoint(TRUNCATE)")
          for key in 1000..<1100 { store.setValue(mixedContent(key, 0), forKey: "\(key)") }
          try store.close()
          try "\(WriteFault.count.load(ordering: .relaxed))".write(toFile: counted, atomically: true, encoding: .utf8)
        }
        func end(killingAt number: Int) -> ChildEnd? { StoreKillTests.endOfChild { try work(killingAt: number) } }
        demand(end(killingAt: .max) == .exited(0), "all of the work")
        let count = Int(try String(contentsOfFile: counted, encoding: .utf8)) ?? 0
        demand(count > 50, "\(count) writes")
        let trials = TestRun.isFull ? 200 : 20
        for trial in 0..<trials {
          var number = 1 + trial * count / trials
          while true {
            try files.removeItem(atPath: place.path)
            try files.copyItem(atPath: copy, toPath: place.path)
            let ended = end(killingAt: number)
            if ended == .killed(SIGKILL) { break }
            // Batches of the writing thread differ from run to run, and so does how many writes they take: this had fewer.
            demand(ended == .exited(0) && number > 1, "trial \(trial), write \(number) of \(count): \(String(describing: ended))")
            number = number * 9 / 10
          }
          let store = try place.open(.withFiles)
          let records = store.statistics.recordCount
          var found = 0
          for key in Array(0..<StoreKillTests.keys) + Array(1000..<1100) {
            guard let value = store.value(forKey: "\(key)") else { continue }
            found += 1
            demand(
              value == mixedContent(key, 0) || key % 3 == 0 && value == mixedContent(key, 1),
              "trial \(trial): \(key)")
          }
          demand(found == records && store.statistics.failureCount == 0, "trial \(trial): \(found) of \(records)")
          try store.close()
          try StoreKillTests.expectIntegrity(of: place, trial)
        }
        place.folder.remove()
      }
    }

    @Test("a disk that is full from any write on: no older value is found, and with room again what is stored is kept")
    func full() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), (try? StoreKillTests.fill(place)) != nil else { fatalError("a store") }
        let (files, copy) = (FileManager.default, place.folder.path + "/copy")
        try files.copyItem(atPath: place.path, toPath: copy)
        func work(fullFrom number: Int) throws {
          let store = try place.open(.withFiles)
          WriteFault.begin(at: number, kills: false)
          for key in stride(from: 0, to: StoreKillTests.keys, by: 3) {
            store.setValue(mixedContent(key, 1), forKey: "\(key)")
            if key % 30 == 0 { try? store.flush() }
          }
          try? store.flush()
          store.cache.removeAll()
          for key in stride(from: 0, to: StoreKillTests.keys, by: 3) {
            let value = store.value(forKey: "\(key)")
            demand(value == nil || value == mixedContent(key, 1), "full from \(number): \(key)")
          }
          WriteFault.end()
          // Tells of what failed before.
          try? store.flush()
          for key in 1000..<1010 { store.setValue(mixedContent(key, 1), forKey: "\(key)") }
          try store.close()
        }
        let trials = TestRun.isFull ? 100 : 12
        for trial in 0..<trials {
          try files.removeItem(atPath: place.path)
          try files.copyItem(atPath: copy, toPath: place.path)
          let end = StoreKillTests.endOfChild { try work(fullFrom: 1 + trial * 100 / trials) }
          demand(end == .exited(0), "trial \(trial): \(String(describing: end))")
          let store = try place.open(.withFiles)
          for key in 0..<StoreKillTests.keys {
            guard let value = store.value(forKey: "\(key)") else { continue }
            demand(value == mixedContent(key, key % 3 == 0 ? 1 : 0), "trial \(trial): \(key)")
          }
          for key in 1000..<1010 { demand(store.value(forKey: "\(key)") == mixedContent(key, 1), "trial \(trial): \(key)") }
          try store.close()
          try StoreKillTests.expectIntegrity(of: place, trial)
        }
        place.folder.remove()
      }
    }

    @Test("a log that is cut, zeroed, changed or gone: values are those of some commit or, in files, missing; the store goes on")
    func log() throws {
      try withPlace { place in
        try Self.fill(place)
        let store = try place.open(.withFiles)
        for key in stride(from: 0, to: Self.keys, by: 2) {
          store.setValue(mixedContent(key, 1), forKey: "\(key)")
          // Each a commit.
          if key % 20 == 18 { try store.flush() }
        }
        // As a kill leaves it now.
        let (data, copy) = (place.path + "/data", place.folder.path + "/copy")
        try FileManager.default.copyItem(atPath: data, toPath: copy)
        try store.close()
        let log = try Data(contentsOf: URL(fileURLWithPath: copy + "/database-wal"))
        #expect(log.count > 100_000)
        var random = SplitMix64(seed: TestRun.seed)
        var newer = 0
        for trial in 0..<(TestRun.isFull ? 400 : 40) {
          try FileManager.default.removeItem(atPath: data)
          try FileManager.default.copyItem(atPath: copy, toPath: data)
          try? FileManager.default.removeItem(atPath: data + "/database-shm")
          var damaged = log
          let at = random.index(below: log.count)
          switch trial % 4 {
          case 0: damaged = log.prefix(at)
          case 1: damaged.replaceSubrange(at..<min(log.count, at + 10_000), with: Data(count: min(log.count - at, 10_000)))
          case 2: damaged[at] ^= UInt8(1 << random.index(below: 8))
          default: damaged = Data()
          }
          let path = data + "/database-wal"
          if trial % 8 == 7 {
            try FileManager.default.removeItem(atPath: path)
          } else {
            try damaged.write(to: URL(fileURLWithPath: path))
          }
          try place.withStore(.withFiles) { store in
            for key in 0..<Self.keys {
              let found = store.value(forKey: "\(key)")
              if key % 2 == 0 {
                if found == mixedContent(key, 1) { newer += 1 }
                let isMissing = found == nil && key % 20 == 0
                #expect(isMissing || found == mixedContent(key, 0) || found == mixedContent(key, 1), "trial \(trial), \(key)")
              } else {
                #expect(found == mixedContent(key, 0), "trial \(trial), \(key)")
              }
            }
            store.setValue([1], forKey: "new")
            try store.flush()
            store.cache.removeAll()
            #expect(store.value(forKey: "new") == [1])
          }
        }
        #expect(newer > 0)
      }
    }

    @Test(
      "between a row and the end of its file, or a file and its row: nothing is missing; what no row names goes after an hour")
    func betweenFileAndRow() async throws {
      let place = try StorePlace()
      defer { place.folder.remove() }
      func value(_ version: Int) -> [UInt8] { content(1, version: version, count: 20_000) }
      /// What kills would have left.
      func prepare() throws -> (old: String, young: String) {
        let files = FileManager.default
        let aside = place.folder.path + "/aside"
        let old = try place.withStore(.withFiles) { store in
          store.setValue(value(0), forKey: "a")
          try store.flush()
          let old = try #require(place.valueFiles().first)
          try files.linkItem(atPath: old, toPath: aside)
          store.setValue(value(1), forKey: "a")
          return old
        }
        #expect(!files.fileExists(atPath: old) && place.valueFiles().count == 1)
        // Before the end of the old one; and before the row of the young one.
        try files.createDirectory(atPath: (old as NSString).deletingLastPathComponent, withIntermediateDirectories: true)
        try files.moveItem(atPath: aside, toPath: old)
        try files.setAttributes([.modificationDate: Date(timeIntervalSinceNow: -7200)], ofItemAtPath: old)
        let young = (old as NSString).deletingLastPathComponent + "/0123456789abcdef"
        try Data([1]).write(to: URL(fileURLWithPath: young))
        return (old, young)
      }
      func read(_ store: BytesStore) -> [UInt8]? { store.value(forKey: "a") }
      let (old, young) = try prepare()
      let store = try place.open(.withFiles)
      #expect(read(store) == value(1))
      #expect(await TestRun.comes { !FileManager.default.fileExists(atPath: old) })
      #expect(FileManager.default.fileExists(atPath: young) && place.valueFiles().count == 2)
      store.cache.removeAll()
      #expect(read(store) == value(1) && store.statistics.failureCount == 0)
      try store.close()
    }
  }
#endif
