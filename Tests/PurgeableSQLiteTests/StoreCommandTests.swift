// SPDX-License-Identifier: MIT
// `purgeablectl store`, on real databases, also while a program has them open.

#if SQLite
  import Foundation
  import PurgeableTestSupport
  import Testing
  import ToolSupport

  @testable import PurgeableSQLite
  @testable import purgeablectl

  @Suite("purgeablectl store")
  struct StoreCommandTests {
    private static func report(_ place: StorePlace, _ words: [String] = []) throws -> StoreReport {
      let arguments = try Arguments([place.path] + words, options: Command.store.options, operandCount: 1)
      return try StoreReport(StoreOptions(arguments))
    }

    private static func summary(_ place: StorePlace, _ words: [String] = []) throws -> StoreInspection.Summary {
      try #require(try report(place, words).summary)
    }

    private static func run(_ words: [String]) throws -> ChildProcess {
      try ChildProcess.runBuilt("purgeablectl", ["store"] + words)
    }

    private static func data(_ path: String) throws -> Data { try Data(contentsOf: URL(fileURLWithPath: path)) }

    /// 200 records of a kibibyte, ten in files, thirty that end in a minute.
    private static func fill(_ store: BytesStore) throws {
      for key in 0..<200 { store.setValue(content(key), forKey: "\(key)", cost: key, version: key == 7 ? "v" : nil) }
      for key in 200..<210 { store.setValue(content(key, count: 200_000), forKey: "\(key)") }
      for key in 300..<330 { store.setValue(content(key), forKey: "\(key)", expiry: .sinceCreation(.seconds(60))) }
      try store.flush()
    }

    @Test("it shows what is in a store, also while it is open, by the folder and by the database")
    func shows() throws {
      try withPlace { place in
        try place.withStore { store in
          try Self.fill(store)
          let report = try Self.report(place, ["--check", "--list", "3"])
          let summary = try #require(report.summary)
          #expect(summary.recordCount == 240 && summary.fileCount == 10 && summary.expiredCount == 0 && summary.asideCount == 0)
          #expect(summary.byteCount == store.statistics.byteCount && summary.fileByteCount == 10 * 200_103)
          #expect(summary.usedCounts == [240, 0, 0, 0, 0])
          #expect(summary.databaseByteCount + summary.logByteCount > 230_000)
          let check = try #require(report.check)
          #expect(check.recordCount == 240 && check.faultCount == 0 && check.byteCount == summary.byteCount - 240 * 100)
          let records = try #require(report.records)
          #expect(records.count == 3 && records.allSatisfy { $0.valueByteCount == 1000 && $0.expires != nil })
          let object = try JSONSerialization.jsonObject(with: Data(report.json.text.utf8)) as? [String: Any]
          let list = try #require(object?["list"] as? [[String: Any]])
          #expect(object?["records"] as? Int == 240 && list.compactMap { $0["key"] as? String }.count == 3)
          for path in [place.path, place.path + "/", place.database] {
            let child = try Self.run([path, "--check"])
            #expect(child.status == 0 && child.output.contains("nothing wrong"), "\(child.output)\(child.errors)")
          }
          #expect(store.statistics.failureCount == 0)
        }
      }
    }

    @Test("the records that were used last come first, with their cost, version and file")
    func lists() throws {
      try withPlace { place in
        try place.withStore { try Self.fill($0) }
        place.clock.pass(.seconds(90))
        try place.withStore { store in
          for key in [207, 7] { #expect(store.value(forKey: "\(key)") != nil) }
        }
        let records = try #require(try Self.report(place, ["--list", "100000"]).records)
        #expect(records.count == 210)
        #expect(Set(records.prefix(2).map { String(decoding: $0.key, as: UTF8.self) }) == ["7", "207"])
        let seven = try #require(records.first { $0.key == Array("7".utf8) })
        #expect(seven.cost == 7 && seven.version == "v" && !seven.isFile && seven.expires == nil)
        #expect(try #require(records.first { $0.key == Array("207".utf8) }).isFile)
      }
    }

    @Test("keys of integers are told as numbers")
    func integers() throws {
      try withPlace { place in
        let store = try PurgeableStore("store", directory: place.folder.path, cache: PurgeableCache<Int, [UInt8]>())
        store.setValue([1], forKey: -3699)
        try store.close()
        try place.run("UPDATE record SET cost=1")
        let child = try Self.run([place.path, "--list", "3", "--check"])
        #expect(child.output.contains("\n-3699 ") && child.output.contains("  -3699: its checksum"), "\(child.output)")
        let json = try Self.run([place.path, "--list", "3", "--json"])
        #expect(json.output.contains("\"key\": -3699"), "\(json.output)")
      }
    }

    @Test("a check names each record that is not what was written, and the exit status is 1; the others are still there")
    func checks() throws {
      try withPlace { place in
        try place.withStore { try Self.fill($0) }
        try place.run("UPDATE record SET value=zeroblob(1000) WHERE key=CAST('11' AS BLOB)")
        try place.run("UPDATE record SET cost=cost+1 WHERE key=CAST('12' AS BLOB)")
        try place.run("UPDATE record SET hash=hash+1 WHERE key=CAST('13' AS BLOB)")
        try place.run("DELETE FROM life WHERE id=(SELECT id FROM record WHERE key=CAST('14' AS BLOB))")
        let files = place.valueFiles()
        try FileManager.default.removeItem(atPath: files[0])
        try Data(count: 200_000).write(to: URL(fileURLWithPath: files[1]))
        let check = try #require(try Self.report(place, ["--check"]).check)
        let keys = Set(check.faults.compactMap { $0.key.map { String(decoding: $0, as: UTF8.self) } })
        #expect(keys.isSuperset(of: ["11", "12", "13", "14"]) && keys.count == 6)
        // The sixth is of counts: 240 records have 239 lives.
        #expect(check.faultCount == 7 && check.recordCount == 240)
        let child = try Self.run([place.path, "--check"])
        #expect(child.status == 1 && child.output.contains("12: its checksum"), "\(child.output)\(child.errors)")
        try place.withStore { store in
          for key in 0..<210 {
            let value = store.value(forKey: "\(key)")
            // What has no life is what it was, and stays until it is stored anew.
            let isGone = keys.contains("\(key)") && key != 14
            #expect(value == (isGone ? nil : content(key, count: key < 200 ? 1000 : 200_000)), "\(key)")
          }
        }
      }
    }

    @Test("pages that are damaged are found, and nothing is changed by looking")
    func pages() throws {
      try withPlace { place in
        try place.withStore { try Self.fill($0) }
        let url = URL(fileURLWithPath: place.database)
        var bytes = try Data(contentsOf: url)
        for page in 4..<8 { bytes.replaceSubrange(page * 8192..<page * 8192 + 64, with: Data(repeating: 0xA5, count: 64)) }
        try bytes.write(to: url)
        let child = try Self.run([place.path, "--check"])
        #expect(child.status == 1, "\(child.output)\(child.errors)")
        #expect(try Self.data(place.database) == bytes)
      }
    }

    @Test("what damage does not let anybody count is said to be unknown, and not nothing")
    func uncounted() throws {
      try withPlace { place in
        try place.withStore { try Self.fill($0) }
        let root = try #require(try place.number("SELECT rootpage FROM sqlite_schema WHERE name='life'"))
        var bytes = try Self.data(place.database)
        let start = (Int(root) - 1) * Schema.pageByteCount
        bytes.replaceSubrange(start..<start + 64, with: Data(repeating: 0xA5, count: 64))
        try bytes.write(to: URL(fileURLWithPath: place.database))
        let child = try Self.run([place.path, "--check", "--list", "3"])
        #expect(child.status == 1 && child.output.contains("cannot be counted"), "\(child.output)\(child.errors)")
        // What SQLite says is text.
        #expect(child.output.contains("Page \(root)") && !child.output.contains("0x"), "\(child.output)")
        let report = try Self.report(place, ["--check"])
        #expect(report.summary == nil && report.check?.faultCount ?? 0 > 0 && report.json.text.contains("\"records\": null"))
      }
    }

    @Test("a check beside a program that stores and removes finds nothing wrong", .timeLimit(.minutes(10)))
    func besideWriter() throws {
      try withPlace { place in
        try place.withStore(PurgeableStoreOptions()) { store in
          let (stops, ends) = (CallCount(), CallCount())
          Thread.detachNewThread {
            var round = 0
            while stops.value == 0 {
              for key in 0..<20 {
                store.setValue(content(key, version: round, count: 150_000), forKey: "\(key)")
                if key % 3 == 0 { store.remove(forKey: "\((key + round) % 20)") }
              }
              try? store.flush()
              round += 1
            }
            ends.add()
          }
          for _ in 0..<20 {
            let check = try #require(try Self.report(place, ["--check"]).check)
            #expect(check.faultCount == 0, "\(check.faults)")
          }
          stops.add()
          while ends.value == 0 { usleep(1000) }
        }
      }
    }

    @Test("an index that names what is not there ends no program's work, and is found", .timeLimit(.minutes(10)))
    func wrongIndex() throws {
      try withPlace { place in
        try place.withStore { store in
          for key in 0..<1200 { store.setValue(content(key, count: 50), forKey: "\(key)", expiry: .sinceCreation(.seconds(60))) }
        }
        let root = try #require(try place.number("SELECT rootpage FROM sqlite_schema WHERE name='life_expires'"))
        let index =
          "INSERT INTO sqlite_schema VALUES('index','life_expires','life',\(root),"
          + "'CREATE INDEX life_expires ON life(expires) WHERE expires IS NOT NULL')"
        try place.run("PRAGMA writable_schema=ON; DELETE FROM sqlite_schema WHERE name='life_expires'")
        try place.run("DELETE FROM life WHERE id%2=0")
        try place.run("PRAGMA writable_schema=ON; \(index)")
        #expect(try Self.run([place.path, "--check"]).status == 1)
        place.clock.pass(.seconds(100))
        try place.withStore { store in
          store.setValue([1], forKey: "new")
          try? store.flush()
          #expect(store.value(forKey: "1") == nil && store.value(forKey: "new") == [1])
        }
      }
    }

    @Test("a trim removes what has expired, then the least recently used; the files shrink; a program that has it open goes on")
    func trims() throws {
      try withPlace { place in
        try place.withStore { store in
          try Self.fill(store)
          for key in 1000..<3000 { store.setValue(content(key), forKey: "\(key)") }
          place.clock.pass(.seconds(3600))
          for key in 100..<110 { store.setValue(content(key, version: 1), forKey: "\(key)") }
          try store.flush()
          let before = try Self.summary(place)
          let report = try Self.report(place, ["--trim", "20K"])
          let after = try #require(report.summary)
          #expect(report.trimmedCount == before.recordCount - after.recordCount)
          #expect((10...19).contains(after.recordCount) && after.byteCount <= 20 << 10)
          #expect(after.databaseByteCount < 1 << 20 && before.databaseByteCount + before.logByteCount > 2 << 20)
          #expect(after.logByteCount == 0 && after.fileCount == 0 && place.valueFiles().isEmpty)
          for key in 100..<110 { #expect(store.value(forKey: "\(key)") == content(key, version: 1)) }
          store.setValue([1], forKey: "new")
          try store.flush()
          #expect(store.statistics.recordCount == after.recordCount + 1 && store.statistics.failureCount == 0)
        }
        #expect(try Self.summary(place, ["--trim", "0"]).recordCount == 0)
        try place.withStore { store in #expect(store.value(forKey: "100") == nil) }
      }
    }

    @Test("what has expired goes first, whatever its last use")
    func expired() throws {
      try withPlace { place in
        // A store of yesterday.
        place.clock.pass(.seconds(-86_400))
        try place.withStore { try Self.fill($0) }
        #expect(try Self.summary(place).expiredCount == 30)
        #expect(try Self.summary(place).usedCounts == [0, 0, 240, 0, 0])
        #expect(try Self.report(place, ["--trim", "1G"]).trimmedCount == 30)
        #expect(try Self.summary(place).recordCount == 210)
      }
    }

    @Test("what is no store, or another version's, is named, and left as it is")
    func strangers() throws {
      try withPlace { place in
        for (path, words) in [
          (place.folder.path + "/none", "nothing at this path"), (place.folder.path, "name the folder of a store"),
        ] {
          let child = try Self.run([path, "--trim", "0"])
          #expect(child.status == 1 && child.errors.contains(words), "\(child.errors)")
        }
        #expect(!FileManager.default.fileExists(atPath: place.folder.path + "/none"))
        try place.withStore { try Self.fill($0) }
        try place.run("PRAGMA journal_mode=DELETE")
        for (statement, words) in [
          ("PRAGMA user_version=10", "a newer version (10)"), ("PRAGMA application_id=5", "another program"),
        ] {
          try place.run(statement)
          let before = try Self.data(place.database)
          let child = try Self.run([place.path, "--check", "--trim", "0"])
          #expect(child.status == 1 && child.errors.contains(words), "\(child.errors)")
          #expect(try Self.data(place.database) == before)
        }
        for (text, words) in [("a text", "not a database"), ("", "no table in it")] {
          try Data(text.utf8).write(to: URL(fileURLWithPath: place.database))
          let child = try Self.run([place.path, "--trim", "0"])
          #expect(child.status == 1 && child.errors.contains(words), "\(child.errors)")
          #expect(try Self.data(place.database) == Data(text.utf8))
        }
      }
    }

    @Test("JSON has keys whole, as text or, where they are none, by their bytes; a list of nothing is one")
    func wholeKeys() throws {
      func list(_ place: StorePlace) throws -> [[String: Any]] {
        let object = try JSONSerialization.jsonObject(with: Data(Self.report(place, ["--list", "9"]).json.text.utf8))
        return try #require((object as? [String: Any])?["list"] as? [[String: Any]])
      }
      try withPlace { place in
        try place.withStore { store in
          try store.flush()
          #expect(try list(place).isEmpty)
          store.setValue([1], forKey: String(repeating: "k", count: 90) + "\u{1B}")
          try store.flush()
          #expect(try list(place).map { $0["key"] as? String } == [String(repeating: "k", count: 90) + "\u{1B}"])
        }
        try place.run("UPDATE record SET key=x'FF0A'")
        #expect(try list(place).map { $0["keyHex"] as? String } == ["ff0a"])
      }
    }

    @Test("keys are shown as text where they are text, and cannot change a terminal")
    func keys() {
      #expect(StoreReport.text(Array("dog ü.jpg".utf8)) == "dog ü.jpg")
      #expect(StoreReport.text([0x1B, 0x5B, 0x41]) == "0x1b5b41")
      #expect(StoreReport.text([0xFF, 1]) == "0xff01")
      #expect(StoreReport.text(Array(String(repeating: "k", count: 90).utf8)).count == 60)
      #expect(StoreReport.text([UInt8](repeating: 0, count: 90)).count <= 62)
      for (key, type, text) in [
        ([0xFE], "Int8", "-2"), ([0xFE, 0xFF], "Int16", "-2"), ([0xFE, 0xFF, 0xFF, 0xFF], "Int32", "-2"),
        ([0, 0, 0, 0, 0, 0, 0, 0x80], "Int", "\(Int.min)"), ([1, 2, 0, 0, 0, 0, 0, 0], "Int64", "513"), ([0xFE], "UInt8", "254"),
        ([0, 0, 0, 0, 0, 0, 0, 0x80], "UInt64", "9223372036854775808"), ([1, 2], "Int", nil), ([1], "String", nil),
        ([1], nil, nil),
      ] as [([UInt8], String?, String?)] {
        #expect(StoreReport.number(key, type)?.text == text)
      }
    }
  }
#endif
