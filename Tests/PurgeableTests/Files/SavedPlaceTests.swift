// SPDX-License-Identifier: MIT
// The place that a cache is saved to: whatever happens there, the old file or the new one, and no other.

import Foundation
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("the place of a saved cache")
struct SavedPlaceTests {
  @Test("a cancelled save leaves the old file and no other, at every step; a cancelled restore what it has stored")
  func cancelled() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let cache = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<300 { cache[key] = described(UInt32(key), version: 1, count: 10_000) }
      try Data([1, 2, 3]).write(to: URL(fileURLWithPath: path))
      var step = 0
      while true {
        var left = step
        do throws(PurgeableError) {
          try cache.save(to: path) { part in
            #expect(part >= 0 && part <= 1)
            left -= 1
            return left >= 0
          }
          break
        } catch {
          #expect(error.kind == .cancelled)
          #expect((try? Data(contentsOf: URL(fileURLWithPath: path))) == Data([1, 2, 3]))
          #expect((try? names(in: folder)) == ["cache"])
        }
        step += 1
      }
      #expect(step > 3)
      let restored = try PurgeableCache<Int, [UInt8]>()
      let error = try #require(throws: PurgeableError.self) { try restored.restore(from: path) { _ in false } }
      #expect(error.kind == .cancelled)
      #expect(restored.count > 0 && restored.count < 300)
      // The hottest are there.
      #expect(restored.containsValue(forKey: 299) && !restored.containsValue(forKey: 0))
    }
  }

  @Test("paths that name no file, folders that are not there, and files of other types are refused by name")
  func refused() throws {
    try withFolder { folder in
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache[1] = [1]
      for path in ["", "/", folder.path + "/", folder.path + "/..", "a\0b"] {
        let error = try #require(throws: PurgeableError.self) { try cache.save(to: path) }
        #expect(error.kind == .invalidArgument("path"), "\(path)")
      }
      let missing = try #require(throws: PurgeableError.self) { try cache.save(to: folder.path + "/no/cache") }
      #expect(missing.kind == .systemCallFailed(call: "open") && missing.errorNumber == ENOENT)
      try cache.save(to: folder.path + "/cache")
      let keys = try #require(throws: PurgeableError.self) {
        try PurgeableCache<String, [UInt8]>().restore(from: folder.path + "/cache")
      }
      #expect(keys.kind == .invalidFile && keys.explanation.contains("keys of type Int, not String"))
      let values = try #require(throws: PurgeableError.self) {
        try PurgeableCache<Int, String>().restore(from: folder.path + "/cache")
      }
      #expect(values.kind == .invalidFile && values.explanation.contains("values of type"))
      #expect(try cache.restore(from: folder.path + "/none") == FileReport())
    }
  }

  @Test("from within a closure of a save, another one is refused as busy; from another thread it waits")
  func busy() throws {
    try withFolder { folder in
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache[1] = [1]
      var kinds: [PurgeableError.Kind] = []
      try cache.save(to: folder.path + "/one") { _ in
        do throws(PurgeableError) { try cache.save(to: folder.path + "/two") } catch { kinds.append(error.kind) }
        return true
      }
      #expect(!kinds.isEmpty && kinds.allSatisfy { $0 == .busy })
      let threads = (0..<4).map { number in
        TestThread { for _ in 0..<10 { _ = try? cache.save(to: folder.path + "/\(number % 2)", isSynchronized: false) } }
      }
      for thread in threads { thread.join() }
      #expect(try names(in: folder) == ["0", "1", "one"])
    }
  }

  @Test("temporary files that killed saves left are removed, and those of saves at work are not")
  func abandoned() throws {
    try withFolder { folder in
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache[1] = [1]
      try folder.write(".cache.1.abc.tmp", "left behind")
      try folder.write(".other.1.abc.tmp", "another's")
      try cache.save(to: folder.path + "/cache") { _ in
        // While it is written.
        if let other = try? PurgeableCache<Int, [UInt8]>() { _ = try? other.save(to: folder.path + "/cache") }
        return true
      }
      #expect(try names(in: folder) == [".other.1.abc.tmp", "cache"])
      #expect(try PurgeableCache<Int, [UInt8]>().restore(from: folder.path + "/cache").entryCount == 1)
    }
  }

  @Test("names as long as the system takes, of letters of several bytes, and with a mark behind the slash")
  func longNames() throws {
    try withFolder { folder in
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache[1] = [1]
      let long = String(repeating: "n", count: 255)
      let letters = String(repeating: "\u{304B}", count: 85)
      for name in [long, letters, "\u{301}x", String(repeating: "n", count: 230)] {
        // Left behind by a save that was killed.
        let start =
          name == long ? String(repeating: "n", count: 220) : name == letters ? String(repeating: "\u{304B}", count: 73) : name
        if name.utf8.count != 230 { try folder.write(".\(start).1.abc.tmp", "left behind") }
        try cache.save(to: folder.path + "/" + name)
        #expect(try PurgeableCache<Int, [UInt8]>().restore(from: folder.path + "/" + name).entryCount == 1)
        #expect(try names(in: folder).map { Array($0.utf8) } == [Array(name.utf8)])
        #expect(unsafe unlink(folder.path + "/" + name) == 0)
      }
      let tooLong = #expect(throws: PurgeableError.self) { try cache.save(to: folder.path + "/" + long + "n") }
      #expect(tooLong?.errorNumber == ENAMETOOLONG)
      #expect(try names(in: folder).isEmpty)
    }
  }

  @Test("a kill at any moment of a save: what was reported as saved is there, or a later save, whole", .forks)
  func killed() async {
    await #expect(processExitsWith: .success) {
      guard let folder = try? FakeRoot() else { return require(false, "a folder") }
      let path = folder.path + "/cache"
      var random = SplitMix64(seed: chosenSeed)
      /// Saves one version after the other, and says so after each.
      func saves(from first: UInt32, to pipe: Int32?) -> Bool {
        guard let cache = try? PurgeableCache<UInt32, [UInt8]>() else { return false }
        for version in first..<first + (pipe == nil ? 1 : 1000) {
          for key in 0..<UInt32(300) { cache[key] = described(key, version: version, count: 2000) }
          guard (try? cache.save(to: path, isSynchronized: false)) != nil else { return false }
          var said = version
          if let pipe { _ = unsafe write(pipe, &said, 4) }
        }
        return true
      }
      require(saves(from: 1, to: nil), "the first save")
      var last: UInt32 = 1
      for _ in 0..<(TestRun.isFull ? 200 : 8) {
        var ends: (Int32, Int32) = (0, 0)
        let isPiped = unsafe withUnsafeMutableBytes(of: &ends) {
          unsafe Glibc.pipe($0.baseAddress!.assumingMemoryBound(to: Int32.self)) == 0
        }
        require(isPiped, "a pipe")
        let child = fork()
        if child == 0 {
          endAfter(seconds: 120)
          _exit(saves(from: last + 1, to: ends.1) ? 0 : 1)
        }
        close(ends.1)
        var said: UInt32 = 0
        require(unsafe read(ends.0, &said, 4) == 4, "the child saves")
        usleep(UInt32(random.index(below: 20_000)))
        kill(child, SIGKILL)
        var reported = said
        while unsafe read(ends.0, &said, 4) == 4 { reported = said }
        _ = ChildEnd.of(child)
        close(ends.0)
        guard let restored = try? PurgeableCache<UInt32, [UInt8]>(), (try? restored.restore(from: path))?.entryCount == 300
        else { return require(false, "a whole file") }
        let versions = Set((0..<UInt32(300)).map { versionDescribed(in: restored[$0] ?? [], key: $0) })
        require(versions == [reported] || versions == [reported + 1], "\(versions) after \(reported)")
        last = reported + 1
      }
      // What the kills left goes with the next save.
      require(saves(from: last + 1, to: nil), "the last save")
      require((try? names(in: folder)) == ["cache"], "nothing is left behind")
      folder.remove()
    }
  }

  @Test("neither a save nor a restore leaves the file in the page cache; also one that ends early leaves nothing")
  func pageCache() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let cache = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<2000 { cache[key] = described(UInt32(key), version: 1, count: 20_000) }
      let byteCount = try cache.save(to: path).byteCount
      let afterSave = try cachedPages(path)
      try cancelWherePagesStay(folder.path + "/plain")
      #expect(byteCount > 40_000_000 && afterSave < 64)
      var pages: [Int] = []
      let restored = try PurgeableCache<Int, [UInt8]>().restore(from: path) { _ in
        pages.append((try? cachedPages(path)) ?? .max)
        return true
      }
      #expect(restored.entryCount == 2000)
      #expect(pages.count > 30 && pages.max()! < 64)
      #expect(try cachedPages(path) < 64)
      // One that ends before the end of the file.
      #expect(throws: PurgeableError.self) { try PurgeableCache<Int, [UInt8]>().restore(from: path) { $0 < 0.3 } }
      #expect(try cachedPages(path) < 64)
    }
  }

  @Test("caches that are saved to one path at the same time do not remove each other's temporary files")
  func onePath() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let refused = Atomic<Int>(0)
      let threads = (0..<3).map { number in
        TestThread {
          guard let cache = try? PurgeableCache<Int, [UInt8]>() else { return }
          for key in 0..<20 { cache[key] = described(UInt32(key), version: UInt32(number), count: 100) }
          for _ in 0..<60 where (try? cache.save(to: path, isSynchronized: false)) == nil { refused.add(1, ordering: .relaxed) }
        }
      }
      for thread in threads { thread.join() }
      #expect(refused.load(ordering: .relaxed) == 0)
      let restored = try PurgeableCache<Int, [UInt8]>()
      #expect(try restored.restore(from: path).entryCount == 20)
      #expect(Set((0..<20).map { versionDescribed(in: restored[$0] ?? [], key: UInt32($0)) }).count == 1)
      #expect(try names(in: folder) == ["cache"])
    }
  }
}
