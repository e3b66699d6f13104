// SPDX-License-Identifier: MIT
// A store without the right to write, at a database that another program has for itself, and beside an older program.

#if SQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a store that may not do all that it wants")
  struct StoreAccessTests {
    @Test(
      "without the right to write: an error that says where, or memory alone; nothing changes, and with the right all is there")
    func noRight() async {
      await #expect(processExitsWith: .success) {
        alarm(240)
        guard let place = try? StorePlace() else { fatalError("a folder") }
        // Root may do everything.
        let nobody: uid_t = 65_534
        if geteuid() == 0 {
          let isOther = unsafe chown(place.folder.path, nobody, nobody) == 0 && setgid(nobody) == 0 && setuid(nobody) == 0
          demand(isOther, "another user")
        }
        func permit(_ path: String, _ mode: mode_t) { demand(unsafe chmod(path, mode) == 0, "chmod \(path)") }
        func refusal() -> PurgeableError? {
          do {
            try place.withStore(.withFiles) { _ in }
            return nil
          } catch { return error as? PurgeableError }
        }
        permit(place.folder.path, 0o500)
        var error = refusal()
        demand(error?.errorNumber == EACCES && "\(error!)".contains(place.path), "\(String(describing: error))")
        demand((try? FileManager.default.contentsOfDirectory(atPath: place.folder.path)) == [], "nothing is made")
        permit(place.folder.path, 0o700)
        let data = place.path + "/data"
        func store(_ keys: Range<Int>, _ store: BytesStore) {
          for key in keys { store.setValue(mixedContent(key), forKey: "\(key)") }
        }
        func has(_ keys: Range<Int>, _ store: BytesStore) -> Bool {
          store.cache.removeAll()
          return keys.allSatisfy { store.value(forKey: "\($0)") == mixedContent($0) }
        }
        guard let opened = try? place.open(.withFiles) else { fatalError("a store") }
        store(0..<40, opened)
        demand((try? opened.flush()) != nil, "a flush")
        // While it is open: no file of a value can be made.
        permit(data, 0o500)
        permit(data + "/values", 0o500)
        store(40..<61, opened)
        let isFlushed: ()? = try? opened.flush()
        demand(isFlushed != nil || opened.statistics.failureCount > 0, "a failure is told")
        opened.cache.removeAll()
        for key in 0..<61 {
          let found = opened.value(forKey: "\(key)")
          demand(found == nil || found == mixedContent(key), "\(key)")
        }
        permit(data, 0o700)
        permit(data + "/values", 0o700)
        store(40..<61, opened)
        demand((try? opened.flush()) != nil && has(0..<61, opened), "with the right again")
        demand((try? opened.close()) != nil, "the end")
        // Before it is opened.
        permit(data, 0o500)
        error = refusal()
        demand(error != nil, "no log can be made")
        permit(data, 0o000)
        error = refusal()
        demand(error != nil && "\(error!)".contains(place.path), "\(String(describing: error))")
        permit(data, 0o700)
        permit(place.path, 0o500)
        _ = refusal()
        permit(place.path, 0o700)
        // In a directory that others may not list: its own names cannot be brought to the disk.
        permit(place.folder.path, 0o300)
        guard let hidden = try? place.open(.withFiles) else { fatalError("a store in a directory without names") }
        hidden.setValue(mixedContent(0), forKey: "0")
        demand((try? hidden.flush()) != nil && (try? hidden.close()) != nil, "a flush there")
        permit(place.folder.path, 0o700)
        guard let again = try? place.open(.withFiles) else { fatalError("a store again") }
        demand(has(0..<61, again) && again.statistics.failureCount == 0, "all is there")
        try? again.close()
        place.folder.remove()
      }
    }

    @Test("a database that another program has for itself alone is not opened, and stays as it is")
    func heldAlone() throws {
      try withPlace { place in
        try place.withStore { store in for key in 0..<20 { store.setValue(content(key), forKey: "\(key)") } }
        do {
          let other = try Connection(place.database, makes: false, busyMilliseconds: 1000)
          try other.run("PRAGMA locking_mode=EXCLUSIVE; BEGIN IMMEDIATE; UPDATE total SET records=records; COMMIT")
          let error = try #require(throws: PurgeableError.self) { try place.open() }
          #expect(error.kind == .busy, "\(error)")
          try other.run("SELECT count(*) FROM record")
        }
        try place.withStore { store in
          for key in 0..<20 { #expect(store.value(forKey: "\(key)") == content(key)) }
          #expect(store.statistics.failureCount == 0)
        }
      }
    }

    @Test("an older program and a newer one at one database: each finds a right value or none, and no key has two records")
    func olderAndNewer() throws {
      try withPlace { place in
        let stores = try [1, 2].map { try place.open(of: [UInt8].self, versionedFormat($0)) }
        var random = SplitMix64(seed: TestRun.seed)
        let keys = 30
        var latest = [Int](repeating: 0, count: keys)
        for version in 1...(TestRun.isFull ? 2000 : 200) {
          let (key, store) = (random.index(below: keys), stores[random.index(below: 2)])
          store.setValue(content(key, version: version), forKey: "\(key)")
          latest[key] = version
          try store.flush()
          let asked = random.index(below: keys)
          for store in stores {
            store.cache.removeAll()
            if let found = store.value(forKey: "\(asked)") { #expect(found == content(asked, version: latest[asked])) }
          }
          // What the newer one has read is converted in its next batch.
          try stores[1].flush()
        }
        for key in 0..<keys where latest[key] > 0 {
          #expect(stores[1].value(forKey: "\(key)") == content(key, version: latest[key]), "the newer one reads all")
        }
        try stores[1].flush()
        #expect(try place.number("SELECT count(*) FROM record") == place.number("SELECT count(DISTINCT key) FROM record"))
        #expect(try place.number("SELECT count(*) FROM record WHERE format=1") == 0, "all were converted")
        for store in stores { try store.close() }
      }
    }

    @Test("what is read in one store and written anew is not written over what another one has stored or removed meanwhile")
    func changedMeanwhile() throws {
      for (isConversion, isReplaced) in [(true, true), (true, false), (false, true), (false, false)] {
        try withPlace { place in
          var options = PurgeableStoreOptions()
          options.writeInterval = .seconds(3600)
          let first = try place.open(of: [UInt8].self, versionedFormat(1))
          let second = try place.open(options, of: [UInt8].self, versionedFormat(isConversion ? 2 : 1))
          // Its thread has nothing else to do.
          try second.flush()
          first.setValue([1], forKey: "k", expiry: .sinceCreation(.seconds(1000)))
          try first.flush()
          if !isConversion { place.clock.pass(.seconds(-60)) }
          #expect(second.value(forKey: "k") == [1] && second.statistics.pendingCount == 1)
          if isReplaced { first.setValue([2], forKey: "k") } else { first.remove(forKey: "k") }
          try first.flush()
          try second.flush()
          first.cache.removeAll()
          #expect(first.value(forKey: "k") == (isReplaced ? [2] : nil), "conversion: \(isConversion)")
          for store in [first, second] { try store.close() }
        }
      }
    }
  }
#endif
