// SPDX-License-Identifier: MIT
// Saves for which there is no room, and calls that the kernel refuses.

import CPurgeableCases
import Foundation
import Glibc
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("saves that fail")
struct SaveFaultTests {
  private static let keys: UInt32 = 2000

  private static func fill(_ cache: PurgeableCache<UInt32, [UInt8]>, version: UInt32) {
    for key in 0..<keys { cache[key] = value(of: key, version: version) }
  }

  private static func value(of key: UInt32, version: UInt32) -> [UInt8] {
    described(key, version: version, count: 1000 + Int(key % 500))
  }

  /// Whether a file has all that was filled in first.
  private static func holdsFirst(_ path: String) -> Bool {
    guard let restored = try? PurgeableCache<UInt32, [UInt8]>(), (try? restored.restore(from: path))?.entryCount == Int(keys)
    else { return false }
    return (0..<keys).allSatisfy { restored[$0] == value(of: $0, version: 1) }
  }

  /// A folder with the file of a first save, and the cache, which has changed since. Runs `body` in a child.
  private static func inChild(_ body: (PurgeableCache<UInt32, [UInt8]>, _ path: String) -> Bool) -> Bool {
    guard let folder = try? FakeRoot(), let cache = try? PurgeableCache<UInt32, [UInt8]>() else { return false }
    defer { folder.remove() }
    let path = folder.path + "/cache"
    fill(cache, version: 1)
    guard (try? cache.save(to: path, isSynchronized: false)) != nil else { return false }
    // The child's cache is empty.
    let isWell = childSays(seconds: 120) {
      fill(cache, version: 2)
      return body(cache, path)
    }
    // Whatever the child said, the first file is there, whole, and nothing else.
    return isWell && (try? names(in: folder)) == ["cache"] && holdsFirst(path)
  }

  private static func error(of cache: PurgeableCache<UInt32, [UInt8]>, _ path: String, isSynchronized: Bool = true)
    -> PurgeableError?
  {
    do throws(PurgeableError) {
      try cache.save(to: path, isSynchronized: isSynchronized)
      return nil
    } catch {
      return error
    }
  }

  @Test("no room at any place of the file: the save throws, the old file stays, and no other is left", .forks)
  func noRoom() async {
    await #expect(processExitsWith: .success) {
      let isWell = SaveFaultTests.inChild { cache, path in
        signal(SIGXFSZ, SIG_IGN)
        // Some 2.7 MB; also at places in the midst of a page, where a part of a buffer is written.
        for room in stride(from: 0, to: 2_600_000, by: TestRun.isFull ? 100_001 : 500_001) + [
          4095, 4096, 4097, 1 << 20, (1 << 20) + 1, 2 << 20,
        ] {
          let resource = __rlimit_resource_t(RLIMIT_FSIZE.rawValue)
          var limit = rlimit(rlim_cur: rlim_t(room), rlim_max: rlim_t.max)
          guard unsafe setrlimit(resource, &limit) == 0 else { return false }
          guard let error = SaveFaultTests.error(of: cache, path), error.kind == .systemCallFailed(call: "write"),
            error.errorNumber == EFBIG, cache.lastSaveError == error
          else { return require(false, "\(room) bytes") == () }
        }
        return true
      }
      require(isWell, "the file that was there is there")
    }
  }

  @Test(
    "whichever call the kernel refuses, the save throws, the old file stays, and no other is left", .forks, .filters,
    arguments: [
      (cases_call_write.rawValue, "write", ENOSPC), (cases_call_fsync.rawValue, "fsync", EIO),
      (cases_call_rename.rawValue, "rename", EACCES),
    ])
  func refused(_ call: UInt32, _ name: String, _ number: Int32) async {
    await #expect(processExitsWith: .success) { [call, name, number] in
      let isWell = SaveFaultTests.inChild { cache, path in
        require(cases_refuse(cases_call_t(rawValue: call), number), "a filter")
        let error = SaveFaultTests.error(of: cache, path)
        require(error?.kind == .systemCallFailed(call: name) && error?.errorNumber == number, "\(name): \(error as Any)")
        return cache.lastSaveError == error
      }
      require(isWell, "the file that was there is there")
    }
  }

  @Test(
    "after a failure the next save goes through; without a wait for the disk none is made", .forks, .filters)
  func afterwards() async {
    await #expect(processExitsWith: .success) {
      guard let folder = try? FakeRoot(), let cache = try? PurgeableCache<UInt32, [UInt8]>() else {
        return require(false, "a cache")
      }
      let path = folder.path + "/cache"
      SaveFaultTests.fill(cache, version: 1)
      require(SaveFaultTests.error(of: cache, folder.path + "/none/cache")?.errorNumber == ENOENT, "no folder")
      require(cases_refuse(cases_call_fsync, EIO), "a filter")
      require(SaveFaultTests.error(of: cache, path)?.errorNumber == EIO, "the disk is waited for")
      require(SaveFaultTests.error(of: cache, path, isSynchronized: false) == nil && cache.lastSaveError == nil, "no wait")
      require((try? PurgeableCache<UInt32, [UInt8]>().restore(from: path))?.entryCount == Int(SaveFaultTests.keys), "all of it")
      folder.remove()
    }
  }

  @Test("where no thread can be made, a save writes its blocks by itself, and a restore reads them")
  func noThread() async {
    await #expect(processExitsWith: .success) {
      guard let folder = try? FakeRoot(), let cache = try? PurgeableCache<UInt32, [UInt8]>() else {
        return require(false, "a cache")
      }
      let path = folder.path + "/cache"
      SaveFaultTests.fill(cache, version: 1)
      refuseThreads()
      require(SaveFaultTests.error(of: cache, path) == nil, "saved")
      require(SaveFaultTests.holdsFirst(path), "all of it")
      folder.remove()
    }
  }

  @Test("without a descriptor, saves and restores throw, and go through afterwards; nothing is taken for a missing file", .forks)
  func descriptors() async {
    await #expect(processExitsWith: .success) {
      guard let folder = try? FakeRoot(), let cache = try? PurgeableCache<UInt32, [UInt8]>() else {
        return require(false, "a cache")
      }
      let path = folder.path + "/cache"
      SaveFaultTests.fill(cache, version: 1)
      require(SaveFaultTests.error(of: cache, path) == nil, "a file")
      var taken: [Int32] = []
      for left in 0..<3 {
        while case let file = unsafe open("/dev/null", O_RDONLY), file >= 0 { taken.append(file) }
        for _ in 0..<left { close(taken.removeLast()) }
        // A save needs two at a time, a restore one.
        let saved = SaveFaultTests.error(of: cache, path)
        require(left >= 2 ? saved == nil : saved?.errorNumber == EMFILE, "\(left) left: \(saved as Any)")
        guard let restored = try? PurgeableCache<UInt32, [UInt8]>() else { return require(false, "a cache") }
        do throws(PurgeableError) {
          let count = try restored.restore(from: path).entryCount
          require(left > 0 && count == Int(SaveFaultTests.keys), "\(left) left: \(count) entries")
        } catch { require(left == 0 && error.errorNumber == EMFILE, "\(left) left: \(error)") }
      }
      for file in taken { close(file) }
      require((try? names(in: folder)) == ["cache"], "nothing is left behind")
      folder.remove()
    }
  }

  @Test("a file that is cut while it is restored, and a folder that goes while it is saved to, are errors")
  func changedMeanwhile() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<400 as Range<UInt32> { saved[key] = described(key, version: 1, count: 20_000) }
      try saved.save(to: path)
      let restored = try PurgeableCache<UInt32, [UInt8]>()
      let error = #expect(throws: PurgeableError.self) {
        try restored.restore(from: path) { _ in
          unsafe truncate(path, 3 << 20)
          return true
        }
      }
      #expect(error?.kind == .invalidFile && !restored.isEmpty && restored.count < 400)
      for key in restored.keys { #expect(restored.peekValue(forKey: key) == described(key, version: 1, count: 20_000)) }
      try FileManager.default.createDirectory(atPath: folder.path + "/going", withIntermediateDirectories: false)
      let gone = #expect(throws: PurgeableError.self) {
        try saved.save(to: folder.path + "/going/cache") { _ in
          try? FileManager.default.removeItem(atPath: folder.path + "/going")
          return true
        }
      }
      #expect(gone?.kind == .systemCallFailed(call: "rename"))
      #expect(try names(in: folder) == ["cache"])
    }
  }

  @Test("a save leaves alone what is not a file, and says so before it writes")
  func noFile() throws {
    try withFolder { folder in
      let (pipe, inner) = (folder.path + "/pipe", folder.path + "/inner")
      #expect(unsafe mkfifo(pipe, 0o600) == 0)
      try FileManager.default.createDirectory(atPath: inner, withIntermediateDirectories: false)
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache[1] = [1]
      for path in [pipe, inner] {
        let error = #expect(throws: PurgeableError.self) { try cache.save(to: path) }
        #expect(error?.kind == .invalidArgument("path") && error?.description.contains(path) == true)
      }
      var status = stat()
      #expect(unsafe lstat(pipe, &status) == 0 && status.st_mode & S_IFMT == S_IFIFO)
      #expect(try names(in: folder).sorted() == ["inner", "pipe"])
    }
  }

  @Test("a symbolic link is replaced by the file, and what it led to stays")
  func symbolicLink() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      try folder.write("target", "what it led to")
      try FileManager.default.createSymbolicLink(atPath: path, withDestinationPath: folder.path + "/target")
      let cache = try PurgeableCache<Int, [UInt8]>()
      cache[1] = [1]
      try cache.save(to: path)
      #expect(try String(contentsOfFile: folder.path + "/target", encoding: .utf8) == "what it led to")
      #expect(try PurgeableCache<Int, [UInt8]>().restore(from: path).entryCount == 1)
      #expect(try FileManager.default.attributesOfItem(atPath: path)[.type] as? FileAttributeType == .typeRegular)
    }
  }

  @Test("a save in the midst of a restore waits for it, and loses nothing of the file")
  func saveDuringRestore() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<UInt32, [UInt8]>()
      for key in 0..<400 as Range<UInt32> { saved[key] = described(key, version: 1, count: 20_000) }
      try saved.save(to: path)
      let restored = try PurgeableCache<UInt32, [UInt8]>()
      var saver: TestThread?
      try restored.restore(from: path) { _ in
        if saver == nil {
          saver = TestThread { _ = try? restored.save(to: path) }
          usleep(20_000)
        }
        return true
      }
      saver?.join()
      let again = try PurgeableCache<UInt32, [UInt8]>()
      #expect(try again.restore(from: path).entryCount == 400)
    }
  }

  @Test("a child that a closure of a save forks leaves the parent's save alone", .forks)
  func forkWithin() async {
    await #expect(processExitsWith: .success) {
      guard let folder = try? FakeRoot(), let cache = try? PurgeableCache<UInt32, [UInt8]>() else {
        return require(false, "a cache")
      }
      let path = folder.path + "/cache"
      let parent = getpid()
      for key in 0..<400 as Range<UInt32> { cache[key] = described(key, version: 1, count: 20_000) }
      var children: [pid_t] = []
      do throws(PurgeableError) {
        try cache.save(to: path) { _ in
          guard getpid() == parent else { return true }
          let child = fork()
          if child == 0 { endAfter(seconds: 60) } else { children.append(child) }
          usleep(5000)
          return true
        }
        require(getpid() == parent, "the child's save went through")
      } catch {
        // The child comes here, with nothing done to the parent's file.
        if getpid() != parent { _exit(error.kind == .cancelled ? 0 : 1) }
        require(false, "\(error)")
      }
      require(children.count > 2 && children.allSatisfy { endsWell($0, seconds: 60) }, "the children's saves are cancelled")
      require((try? names(in: folder)) == ["cache"], "nothing is left behind")
      require((try? PurgeableCache<UInt32, [UInt8]>().restore(from: path))?.entryCount == 400, "the parent's file is whole")
      folder.remove()
    }
  }

  @Test("a child that a closure of a restore forks waits for no thread of its parent's", .forks)
  func forkWithinRestore() async {
    await #expect(processExitsWith: .success) {
      guard let folder = try? FakeRoot(), let cache = try? PurgeableCache<UInt32, [UInt8]>(),
        let restored = try? PurgeableCache<UInt32, [UInt8]>()
      else { return require(false, "a cache") }
      let path = folder.path + "/cache"
      let parent = getpid()
      for key in 0..<400 as Range<UInt32> { cache[key] = described(key, version: 1, count: 20_000) }
      require((try? cache.save(to: path)) != nil, "a file")
      var children: [pid_t] = []
      let report = try? restored.restore(from: path) { _ in
        guard getpid() == parent else { return true }
        let child = fork()
        if child == 0 { endAfter(seconds: 60) } else { children.append(child) }
        return true
      }
      if getpid() != parent { _exit(0) }
      require(children.count > 5 && children.allSatisfy { endsWell($0, seconds: 60) }, "the children come to an end")
      require(report?.entryCount == 400, "the parent's restore")
      folder.remove()
    }
  }

  @Test("in a child that is forked while another thread restores, shards open as ever", .forks)
  func forkBesideRestore() async {
    await #expect(processExitsWith: .success) {
      guard let cache = try? PurgeableCache<Int, [UInt8]>() else { return require(false, "a cache") }
      cache[1] = [1]
      cache.engine.shards.restoring {
        let child = fork()
        if child == 0 {
          endAfter(seconds: 60)
          cache.openEarly(count: 100)
          for key in 0..<500 { cache[key] = [2] }
          _exit(cache.isOpen ? 0 : 1)
        }
        require(endsWell(child, seconds: 60), "the child opens its shards")
        return 0
      }
    }
  }

  @Test("temporary files of other names stay")
  func othersFiles() throws {
    try withFolder { folder in
      let cache = try PurgeableCache<Int, [UInt8]>()
      let others = [".cache.backup.tmp", ".cache.1.a.b.tmp", ".cache.1.A!.tmp", ".cache.x.abc.tmp", ".cache..tmp", ".cache.tmp"]
      for name in others + [".cache.77.abc09.tmp"] { try folder.write(name, "another's") }
      cache[1] = [1]
      try cache.save(to: folder.path + "/cache")
      #expect(try Set(names(in: folder)) == Set(others + ["cache"]))
    }
  }
}
