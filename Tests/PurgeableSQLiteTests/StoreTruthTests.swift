// SPDX-License-Identifier: MIT
// No other key's value, no older one, and none that was removed: where keys, ends and rows are easily taken for one another.

import Testing

#if SQLite
  import Foundation
  import Glibc
  import PurgeableTestSupport
  import Synchronization
  import ToolSupport

  @testable import PurgeableSQLite

  @Suite("a database that tells the truth")
  struct StoreTruthTests {
    // MARK: Keys

    private static func text(_ scalars: [UInt32]) -> String {
      var text = String.UnicodeScalarView()
      for scalar in scalars { text.append(Unicode.Scalar(scalar)!) }
      return String(text)
    }

    @Test("strings that are equal are one key, and others are not: letters beyond the first plane, Hangul, marks in any order")
    func equalKeys() throws {
      let marks: [[UInt32]] = [
        [], [0x301], [0x323, 0x301], [0x301, 0x323], [0x3099], [0x11A8], [0x1161], [0x1161, 0x11A8], [0x110BA],
        [0x307], [0x113C9], [0x31C, 0x1AE1], [0x1AE1, 0x31C],
      ]
      var bases: [UInt32] = [
        0x41, 0xC1, 0xE9, 0x1EA5, 0x1100, 0xAC00, 0xAC01, 0x304B, 0x304C, 0x10041, 0x100C1, 0x2304B, 0x1D15E, 0x105C9,
        0x105D2, 0x11382, 0x11383, 0x16121, 0x16D68,
      ]
      if TestRun.isFull { bases += (0x80..<0x30000).filter { Unicode.Scalar($0) != nil } }
      var known: [String: [UInt8]] = [:]
      var byBytes: [[UInt8]: String] = [:]
      for base in bases {
        for mark in marks {
          let key = Self.text([base] + mark)
          let bytes = try #require(BytesStore.keyBytes(key))
          #expect(known.updateValue(bytes, forKey: key) ?? bytes == bytes, "\(Array(key.unicodeScalars)): equal, and two records")
          #expect(byBytes.updateValue(key, forKey: bytes) ?? key == key, "\(Array(key.unicodeScalars)): one record of two")
        }
      }
      try withPlace { place in
        let store = try place.open()
        for (one, other, areEqual) in [
          ([0x10041, 0x301], [0xC1], false), ([0x304C], [0x2304B, 0x3099], false),
          ([0xAC00, 0x11A8], [0x1100, 0x1161, 0x11A8], true), ([0x41, 0x301], [0xC1], true),
          ([0x105D2, 0x307], [0x105C9], true),
        ] as [([UInt32], [UInt32], Bool)] {
          let (one, other) = (Self.text(one), Self.text(other))
          #expect((one == other) == areEqual)
          store.setValue([1], forKey: one)
          store.setValue([2], forKey: other)
          try store.flush()
          store.cache.removeAll()
          #expect(store.value(forKey: one) == (areEqual ? [2] : [1]) && store.value(forKey: other) == [2])
          store.remove(forKey: other)
          try store.flush()
          store.cache.removeAll()
          #expect(store.value(forKey: one) == (areEqual ? nil : [1]) && store.value(forKey: other) == nil)
        }
        try store.close()
      }
    }

    // MARK: The end

    @Test("after a close that could not write, nothing is found that was removed or replaced since")
    func endedBusy() throws {
      try withPlace { place in
        let store = try place.open()
        for key in ["removed", "replaced", "all"] { store.setValue([1], forKey: key) }
        // Another process is stopped while it writes.
        let lock = unsafe Glibc.open("\(place.path)/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        #expect(flock(lock, LOCK_EX) == 0)
        #expect(throws: PurgeableError.self) { try store.close() }
        store.remove(forKey: "removed")
        #expect(store.value(forKey: "removed") == nil && !store.containsValue(forKey: "removed"))
        store.setValue([2], forKey: "replaced")
        #expect(store.value(forKey: "replaced") == [2])
        store.cache.removeAll()
        for key in ["removed", "replaced", "all"] {
          #expect(store.value(forKey: key) == nil && !store.containsValue(forKey: key), "\(key)")
        }
        close(lock)
      }
    }

    @Test("while a store is closed, nothing comes back that was removed, and no older value")
    func ending() throws {
      let rounds = TestRun.isFull ? 60 : 6
      try withPlace { place in
        for _ in 0..<rounds {
          let store = try place.open()
          for key in 0..<2000 { store.setValue(content(key, count: 100), forKey: "\(key)") }
          let isClosed = Atomic<Bool>(false)
          let wrong = Atomic<Int>(0)
          DispatchQueue.concurrentPerform(iterations: 3) { thread in
            if thread == 0 {
              usleep(500)
              try? store.close()
              return isClosed.store(true, ordering: .releasing)
            }
            var key = thread
            while !isClosed.load(ordering: .acquiring) {
              key = (key + 2) % 2000
              let name = "\(key)"
              if thread == 1 {
                store.remove(forKey: name)
                if store.value(forKey: name) != nil { wrong.add(1, ordering: .relaxed) }
              } else {
                store.setValue([7], forKey: name)
                store.cache.remove(forKey: name)
                if let found = store.value(forKey: name), found != [7] { wrong.add(1, ordering: .relaxed) }
              }
            }
          }
          #expect(wrong.load(ordering: .relaxed) == 0)
        }
      }
    }

    // MARK: Rows

    @Test("a row with the number, the key and the value of a damaged one is another one where its file is")
    func sameValueAgain() throws {
      try withPlace { place in
        var options = PurgeableStoreOptions()
        options.fileThresholdBytes = 16 << 10
        let value = content(1, count: 20_000)
        func store() throws {
          try place.withStore(options) { $0.setValue(value, forKey: "k") }
        }
        func row() throws -> ReadRow {
          ReadRow(
            id: try place.number("SELECT id FROM record") ?? 0, sum: try place.number("SELECT sum FROM record") ?? 0,
            file: try place.number("SELECT file FROM record"))
        }
        func remove(_ damage: ReadRow) throws {
          let folder = StoreFolder(existing: place.path)
          let writer = try folder.locked { () throws(StoreFailure) in try StoreWriter(folder, fileThreshold: 16 << 10) }
          try writer.remove([damage])
        }
        try store()
        let first = try row()
        try store()
        let second = try row()
        #expect(first.id == second.id && first.sum == second.sum && first.file != second.file)
        try remove(first)
        #expect(try place.number("SELECT count(*) FROM record") == 1)
        try place.withStore(options) { #expect($0.value(forKey: "k") == value && $0.statistics.failureCount == 0) }
        try remove(second)
        #expect(try place.number("SELECT count(*) FROM record") == 0)
      }
    }

    @Test("two rows of one key are damage: neither is returned")
    func twoRows() throws {
      try withPlace { place in
        try place.withStore { store in store.setValue([1], forKey: "k") }
        try place.run(
          """
          INSERT INTO record(hash, key, format, made, sum, value) SELECT hash, key, format, made, sum, value FROM record;
          INSERT INTO life SELECT id + 1, used, size, expires, deadline, idle FROM life
          """)
        let store = try place.open()
        #expect(store.value(forKey: "k") == nil && store.statistics.failureCount >= 1)
        store.setValue([2], forKey: "k")
        try? store.flush()
        store.cache.removeAll()
        #expect(store.value(forKey: "k") == [2])
        try? store.close()
      }
    }

    // MARK: Failures

    @Test("what a flush has to throw is not thrown by another call")
    func failuresOfOthers() throws {
      try withPlace { place in
        let store = try place.open()
        let lock = unsafe Glibc.open("\(place.path)/lock", O_RDWR | O_CREAT | O_CLOEXEC, 0o600)
        #expect(flock(lock, LOCK_EX) == 0)
        let value = [UInt8](repeating: 7, count: 1 << 20)
        for key in 0..<40 { store.setValue(value, forKey: "\(key)") }
        close(lock)
        #expect(try store.removeExpired() == 0)
        try store.trim(toBytes: 1 << 40)
        try store.removeAll()
        #expect(throws: PurgeableError.self) { try store.flush() }
        try store.flush()
        try store.close()
      }
    }

    @Test("a name with a slash in it is none, whatever marks follow")
    func names() throws {
      try withPlace { place in
        for name in ["../\u{301}b", "a/\u{301}b", "a/b", "..", ""] {
          let error = #expect(throws: PurgeableError.self) {
            _ = try BytesStore(name, directory: place.folder.path, cache: PurgeableCache())
          }
          #expect(error?.kind == .invalidArgument("name"), "\(name)")
        }
        let store = try BytesStore("s", directory: place.folder.path + "/\u{301}x/y", cache: PurgeableCache())
        try store.close()
        #expect(FileManager.default.fileExists(atPath: place.folder.path + "/\u{301}x/y/s/data/database"))
      }
    }
  }
#endif
