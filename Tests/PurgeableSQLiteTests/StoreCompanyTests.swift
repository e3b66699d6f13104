// SPDX-License-Identifier: MIT
// A database that others use too: a second store, a second process of ours, one that is killed, a reader that does not end; and
// SQLite without memory.

#if SQLite
  import CPurgeableCases
  import CSQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database in company")
  struct StoreCompanyTests {
    @Test("two stores at one database see each other's records, and count them right")
    func two() throws {
      try withPlace { place in
        let (first, second) = (try place.open(), try place.open())
        for key in 0..<500 { (key % 2 == 0 ? first : second).setValue(content(key), forKey: "\(key)") }
        try first.flush()
        try second.flush()
        for key in 0..<500 {
          #expect(first.value(forKey: "\(key)") == content(key))
          #expect(second.value(forKey: "\(key)") == content(key))
        }
        first.remove(forKey: "1")
        try first.close()
        second.cache.removeAll()
        #expect(second.value(forKey: "1") == nil)
        try second.close()
        #expect(try place.number("SELECT count(*) FROM record") == 499 && place.number("SELECT records FROM total") == 499)
      }
    }

    @Test("a trim goes by what the database has, whoever stored it", arguments: [0, 10])
    func trimOfOthers(ownCount: Int) throws {
      try withPlace { place in
        let (first, second) = (try place.open(), try place.open())
        for key in 0..<ownCount { first.setValue(content(key), forKey: "own \(key)") }
        try first.flush()
        for key in 0..<3000 { second.setValue(content(key, count: 10), forKey: "\(key)") }
        try second.flush()
        try first.trim(toBytes: 0)
        #expect(try place.number("SELECT count(*) FROM record") == 0)
        try first.close()
        try second.close()
      }
    }

    @Test(
      "a reader that does not end: the log stays below 64 MiB, writes go on, and no older value is found",
      .timeLimit(.minutes(10))
    )
    func stuckReader() throws {
      try withPlace { place in
        func value(_ key: Int, _ round: Int) -> [UInt8] {
          [UInt8](repeating: UInt8(truncatingIfNeeded: round), count: 60_000) + [UInt8(key)]
        }
        try place.withStore { store in
          store.setValue([1], forKey: "old")
          try store.flush()
          let reader = try Connection(place.database, makes: false, busyMilliseconds: 1000)
          try reader.run("BEGIN")
          #expect(try reader.number("SELECT count(*) FROM record") == 1)
          var mostBytes = 0
          var losses: [PurgeableError] = []
          for round in 0..<40 {
            for key in 0..<50 { store.setValue(value(key, round), forKey: "\(key)") }
            do throws(PurgeableError) { try store.flush() } catch { losses.append(error) }
            mostBytes = max(mostBytes, place.logByteCount)
          }
          #expect((32 << 20..<64 << 20).contains(mostBytes))
          // What the reader reads is another database by now. It has lost nothing.
          #expect(try reader.number("SELECT count(*) FROM record") == 1)
          try reader.run("COMMIT")
          store.cache.removeAll()
          for key in 0..<50 { #expect(store.value(forKey: "\(key)") == value(key, 39)) }
          #expect(store.value(forKey: "old") == nil)
          // Who has been told that it was written is told.
          #expect(losses.map(\.kind) == [.invalidFile] && store.statistics.failureCount == 1)
          #expect(store.statistics.lastError?.explanation.contains("put aside") == true)
        }
      }
    }

    @Test("two processes write, read, remove and evict: no value is wrong, and the totals are right", .timeLimit(.minutes(10)))
    func twoProcesses() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace() else { fatalError("a folder") }
        func work(_ process: Int) throws {
          var options = PurgeableStoreOptions(byteLimit: 500_000, countLimit: 300)
          options.fileThresholdBytes = 16 << 10
          options.writeInterval = .milliseconds(5)
          let store = try place.open(options)
          var random = SplitMix64(seed: TestRun.seed &+ UInt64(process))
          // Of keys that only this process stores.
          var versions: [Int: Int] = [:]
          for version in 1...(TestRun.isFull ? 1200 : 60) {
            for _ in 0..<20 {
              let key = random.index(below: 400)
              let isOwn = key % 4 == process
              if key % 4 > 1 || isOwn {
                store.setValue(marked(key, version, count: key % 10 == 0 ? 20_000 : 200), forKey: "\(key)")
                if isOwn { versions[key] = version }
              }
            }
            if version % 11 == 0 {
              let key = 4 * random.index(below: 100) + process
              store.remove(forKey: "\(key)")
              versions[key] = nil
            }
            if version % 40 == 0 { try store.trim(toBytes: 100_000) }
            if version % 7 == 0 { try store.flush() }
            store.cache.removeAll()
            for _ in 0..<20 {
              let key = random.index(below: 400)
              guard let found = store.value(forKey: "\(key)") else { continue }
              let version = mark(of: found, key)
              demand(version != nil, "\(key): a value that nobody stored")
              if key % 4 == process { demand(version == versions[key], "\(key): not what was stored last") }
            }
          }
          demand(store.statistics.failureCount == 0, "\(store.statistics.lastError as Any)")
          try store.close()
        }
        let children = (0..<2).map { process -> pid_t in
          let child = fork()
          if child == 0 {
            alarm(240)
            _exit((try? work(process)) == nil ? 1 : 0)
          }
          return child
        }
        for child in children { demand(ChildEnd.of(child) == .exited(0), "a process that is well") }
        guard let store = try? place.open() else { fatalError("it opens again") }
        let statistics = store.statistics
        demand(
          (try? place.number("SELECT count(*) FROM record")) == Int64(statistics.recordCount)
            && (try? place.number("SELECT count(*) FROM life")) == Int64(statistics.recordCount)
            && (try? place.number("SELECT sum(size) FROM life")) == Int64(statistics.byteCount), "the totals")
        demand((1...300).contains(statistics.recordCount), "the limit")
        demand(
          (try? place.number("SELECT count(*) FROM record WHERE file IS NOT NULL")) == Int64(place.valueFiles().count), "files")
        let count = (0..<400).count { store.value(forKey: "\($0)").map { $0.isEmpty } == false }
        demand(count == statistics.recordCount, "each record is found")
        demand(store.statistics.failureCount == 0, "each record is whole")
        try? store.close()
        place.folder.remove()
      }
    }

    /// The library's handler would take the list first, and then the program's wait for the thread that waits for it.
    @Test("a fork takes the list of databases behind what the program's own handlers take")
    func programsMutex() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let first = try? place.open() else { fatalError("a store") }
        let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
        unsafe pthread_mutex_init(mutex, nil)
        unsafe cases_await_before_forks(mutex)
        let isLocked = DispatchSemaphore(value: 0)
        let address = UInt(bitPattern: mutex)
        let user = onThread {
          let mutex = unsafe UnsafeMutablePointer<pthread_mutex_t>(bitPattern: address)!
          unsafe pthread_mutex_lock(mutex)
          isLocked.signal()
          demand(patiently { cases_fork_waits() }, "a fork waits for the mutex")
          guard let second = try? place.open(), (try? second.close()) != nil else { fatalError("a second store") }
          unsafe pthread_mutex_unlock(mutex)
        }
        demand(isLocked.comes(), "the mutex is taken")
        let forker = onThread {
          let child = fork()
          if child == 0 { _exit(0) }
          demand(ChildEnd.of(child) == .exited(0), "the child")
        }
        demand(user.comes(), "a store is opened and closed under the mutex")
        demand(forker.comes(), "the process forks")
        try? first.close()
        place.folder.remove()
      }
    }

    @Test("a forked child opens no database where its parent has a connection, whatever for; without one it may")
    func childOfConnection() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let other = try? StorePlace(), (try? place.withStore { _ in }) != nil else {
          fatalError("a store")
        }
        // As while a store is being opened, which other stores do not know of yet.
        for isHeld in [true, false] {
          let connection = isHeld ? try? Connection(place.database, makes: false, busyMilliseconds: 1000) : nil
          demand((connection != nil) == isHeld, "a connection")
          let child = fork()
          if child == 0 {
            alarm(60)
            do {
              try other.open().close()
              _exit(isHeld ? 1 : 0)
            } catch {
              _exit(isHeld && (error as? PurgeableError)?.kind == .notSupported ? 0 : 2)
            }
          }
          demand(ChildEnd.of(child) == .exited(0), "the child, of a parent with a connection: \(isHeld)")
          withExtendedLifetime(connection) {}
        }
        place.folder.remove()
        other.folder.remove()
      }
    }

    @Test("a process that is killed while it has the database locked, in the middle of a change, leaves nothing of it")
    func killedWhileLocked() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace() else { fatalError("a folder") }
        var ends: [Int32] = [0, 0, 0, 0]
        let arePiped = unsafe ends.withUnsafeMutableBufferPointer {
          unsafe pipe($0.baseAddress!) == 0 && pipe($0.baseAddress! + 2) == 0
        }
        demand(arePiped, "pipes")
        let (go, begun) = ((read: ends[0], write: ends[1]), (read: ends[2], write: ends[3]))
        var byte: UInt8 = 0
        // Before this process has anything of SQLite.
        let child = fork()
        if child == 0 {
          alarm(240)
          guard unsafe read(go.read, &byte, 1) == 1,
            let folder = try? StoreFolder.open("store", in: place.folder.path, operation: "test")
          else { _exit(1) }
          try? folder.locked { () throws(StoreFailure) in
            let connection = try Connection(folder.database, makes: false, busyMilliseconds: 1000)
            try connection.run("BEGIN IMMEDIATE; DELETE FROM record WHERE id%2=0; UPDATE total SET records=7")
            _ = unsafe write(begun.write, &byte, 1)
            while true { pause() }
          }
          _exit(1)
        }
        close(begun.write)
        guard let store = try? place.open() else { fatalError("a store") }
        for key in 0..<100 { store.setValue(content(key), forKey: "\(key)") }
        guard (try? store.flush()) != nil else { fatalError("a flush") }
        let hasBegun = unsafe write(go.write, &byte, 1) == 1 && read(begun.read, &byte, 1) == 1
        demand(hasBegun, "the other process has it locked")
        store.setValue(content(1, version: 1), forKey: "1")
        store.cache.removeAll()
        for key in 0..<100 {
          demand(store.value(forKey: "\(key)") == content(key, version: key == 1 ? 1 : 0), "\(key), while it is locked")
        }
        kill(child, SIGKILL)
        demand(ChildEnd.of(child) == .killed(SIGKILL), "the other process")
        demand((try? store.flush()) != nil, "writes go on")
        store.cache.removeAll()
        for key in 0..<100 {
          demand(store.value(forKey: "\(key)") == content(key, version: key == 1 ? 1 : 0), "\(key), afterwards")
        }
        demand(store.statistics.recordCount == 100 && store.statistics.failureCount == 0, "nothing of the change")
        try? store.close()
        place.folder.remove()
      }
    }

    @Test("SQLite without memory: a miss or an error; with memory again all is well, and nothing was put aside")
    func wantOfMemory() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open() else { fatalError("a store") }
        store.setValue([1], forKey: "kept")
        for key in 0..<100 { store.setValue(content(key), forKey: "\(key)") }
        guard (try? store.flush()) != nil else { fatalError("a flush") }
        var failures = 0
        for (version, spare) in [0, 500, 2000, 8000, 20_000, 50_000, 100_000, 200_000, 500_000, 1_000_000].enumerated() {
          sqlite3_hard_heap_limit64(sqlite3_memory_used() + Int64(spare))
          for key in 0..<100 { store.setValue(content(key, version: version + 1), forKey: "\(key)") }
          if (try? store.flush()) == nil { failures += 1 }
          store.cache.removeAll()
          for key in 0..<100 {
            guard let found = store.value(forKey: "\(key)") else { continue }
            demand(found == content(key, version: version + 1), "\(key): an older value")
          }
          // Another one, from its beginning.
          let other = try? StorePlace()
          if let another = try? other?.open() {
            another.setValue([2], forKey: "a")
            try? another.flush()
            another.cache.removeAll()
            let found = another.value(forKey: "a")
            demand(found == nil || found == [2], "another store")
            try? another.close()
          } else {
            failures += 1
          }
          sqlite3_hard_heap_limit64(0)
          other?.folder.remove()
          store.setValue([UInt8(version)], forKey: "again")
          demand((try? store.flush()) != nil, "with memory again: \(store.statistics.lastError as Any)")
          store.cache.removeAll()
          demand(
            store.value(forKey: "again") == [UInt8(version)] && store.value(forKey: "kept") == [1], "with memory again")
        }
        demand(failures > 2, "no memory shows")
        demand(store.statistics.lastError?.kind == .outOfMemory, "\(store.statistics.lastError as Any)")
        let names = (try? FileManager.default.contentsOfDirectory(atPath: place.path)) ?? []
        demand(!names.contains { $0.hasPrefix("damaged.") }, "want of memory is no damage")
        try? store.close()
        place.folder.remove()
      }
    }
  }

  /// A value that says what it is.
  private func marked(_ key: Int, _ version: Int, count: Int) -> [UInt8] {
    let mark = unsafe withUnsafeBytes(of: (UInt32(key), UInt32(version))) { unsafe [UInt8]($0) }
    return mark + [UInt8](repeating: UInt8(truncatingIfNeeded: key ^ version), count: count)
  }

  /// Which version of the key a value is; nil where it is none.
  private func mark(of value: [UInt8], _ key: Int) -> Int? {
    guard value.count > 8 else { return nil }
    let version = (4..<8).reduce(0) { $0 | Int(value[$1]) << (8 * ($1 - 4)) }
    return value == marked(key, version, count: value.count - 8) ? version : nil
  }
#endif
