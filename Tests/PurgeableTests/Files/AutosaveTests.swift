// SPDX-License-Identifier: MIT
// Saves at intervals, of caches of bytes and of objects alike.

import Dispatch
import Foundation
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// What the tests need of a cache of either kind.
private protocol Savable: AnyObject, Sendable {
  subscript(key: Int) -> [UInt8]? { get set }
  func save(to path: String, format: StoredFormat<[UInt8]>) throws(PurgeableError)
  func restore(from path: String) throws(PurgeableError) -> FileReport
  func setAutosave(
    to path: String, every interval: Duration, format: StoredFormat<[UInt8]>, handler: (@Sendable (SaveEvent) -> Void)?
  ) throws(PurgeableError)
  func removeAutosave()
  func pin(_ key: Int)
  var lastSaveError: PurgeableError? { get }
}

extension PurgeableCache: Savable where Key == Int, Value == [UInt8] {
  fileprivate func save(to path: String, format: StoredFormat<[UInt8]>) throws(PurgeableError) {
    try save(to: path, format: format, isSynchronized: false) { _ in true }
  }
  fileprivate func restore(from path: String) throws(PurgeableError) -> FileReport { try restore(from: path) { _ in true } }
  fileprivate func pin(_ key: Int) { #expect(throws: Never.self) { try setPriority(.pinned, forKey: key) } }
}

extension ObjectCache: Savable where Key == Int, Value == [UInt8] {
  fileprivate func save(to path: String, format: StoredFormat<[UInt8]>) throws(PurgeableError) {
    try save(to: path, format: format, isSynchronized: false) { _ in true }
  }
  fileprivate func restore(from path: String) throws(PurgeableError) -> FileReport {
    try restore(from: path, format: .purgeableBytes) { _ in true }
  }
  fileprivate func pin(_ key: Int) { setPriority(.pinned, forKey: key) }
}

/// Events as they were told.
private final class ToldSaves: Sendable {
  private let events = Mutex<[SaveEvent]>([])
  private let told = DispatchSemaphore(value: 0)

  func note(_ event: SaveEvent) {
    events.withLock { $0.append(event) }
    told.signal()
  }

  var all: [SaveEvent] { events.withLock { $0 } }

  /// Waits for the next event. nil, and an issue, where none comes.
  private func nextEvent() -> SaveEvent? {
    guard told.comes() else {
      Issue.record("no event of an autosave comes")
      return nil
    }
    return events.withLock { $0.removeFirst() }
  }

  /// Waits for the next event, and returns how many entries were saved; nil for any other event.
  func next() -> Int? {
    if case .didSave(let report)? = nextEvent() { report.entryCount } else { nil }
  }

  /// Waits for a save to begin, and to fail, and returns why.
  func nextFailure() -> PurgeableError? {
    guard nextEvent() == .willSave, case .failed(let error)? = nextEvent() else { return nil }
    return error
  }

  /// Waits for a save to end, of so many entries where that is said.
  func nextSave(of count: Int? = nil) -> Int? {
    while let event = nextEvent() {
      if case .didSave(let report) = event, count == nil || report.entryCount == count { return report.entryCount }
    }
    return nil
  }
}

@Suite("saves at intervals")
struct AutosaveTests {
  private static let often = Duration.milliseconds(5)

  private static func each() throws -> [any Savable] {
    [try PurgeableCache<Int, [UInt8]>(), try ObjectCache<Int, [UInt8]>()]
  }

  private func fileNumber(_ path: String) throws -> Int? {
    try? FileManager.default.attributesOfItem(atPath: path)[.systemFileNumber] as? Int
  }

  @Test("each interval in which something changed is saved, and no other; each kind of change counts; hits do not")
  func changes() throws {
    for cache in try Self.each() {
      try withFolder { folder in
        let path = folder.path + "/cache"
        let told = ToldSaves()
        try cache.setAutosave(to: path, every: Self.often, format: .purgeableBytes) { told.note($0) }
        usleep(100_000)
        #expect(try told.all.isEmpty && names(in: folder) == [], "nothing was ever stored")
        // One change at a time: which of several a save has seen is not told.
        let changes: [(count: Int, change: () -> Void)] = [
          (1, { cache[1] = [1] }), (2, { cache[2] = [2] }), (2, { cache[1] = [] }), (1, { cache[2] = nil }),
          (1, { cache.pin(1) }),
        ]
        for (count, change) in changes {
          let before = try fileNumber(path)
          change()
          #expect(told.next() == nil, "it will be saved")
          #expect(told.next() == count)
          let saved = try fileNumber(path)
          _ = (cache[1], cache[2])
          usleep(50_000)
          #expect(try before != saved && fileNumber(path) == saved, "once, and not without a change")
        }
        cache.removeAutosave()
        let restored = try PurgeableCache<Int, [UInt8]>()
        #expect(try restored.restore(from: path).entryCount == 1 && restored[1] == [])
        let before = try fileNumber(path)
        cache[3] = nil
        usleep(50_000)
        #expect(try fileNumber(path) == before && cache.lastSaveError == nil)
      }
    }
  }

  @Test("what a save has left, or a restore of all of a file, is not saved again, until it changes or the format does")
  func unchanged() throws {
    let formats = [
      StoredFormat<[UInt8]>.purgeableBytes,
      StoredFormat(version: 2) {
        $0
      } decode: { bytes, _ in
        [UInt8](purgeableBytes: bytes)
      },
    ]
    for (saved, restored) in zip(try Self.each(), try Self.each()) {
      try withFolder { folder in
        let path = folder.path + "/cache"
        saved[1] = [1]
        saved[2] = [2]
        try saved.save(to: path, format: formats[0])
        #expect(try restored.restore(from: path).entryCount == 2)
        for cache in [saved, restored] {
          let told = ToldSaves()
          let before = try fileNumber(path)
          try cache.setAutosave(to: path, every: Self.often, format: formats[0]) { told.note($0) }
          usleep(100_000)
          #expect(try told.all.isEmpty && fileNumber(path) == before)
          // Another file says nothing of this one.
          try cache.save(to: folder.path + "/other", format: formats[0])
          usleep(50_000)
          #expect(told.all.isEmpty)
          cache[1] = [3]
          #expect(told.next() == nil && told.next() == 2)
          try cache.setAutosave(to: path, every: Self.often, format: formats[1]) { told.note($0) }
          #expect(told.next() == nil && told.next() == 2)
          cache.removeAutosave()
          try cache.save(to: path, format: formats[0])
        }
        // A part of a file is none.
        restored[3] = [3]
        let (part, told) = (try PurgeableCache<Int, [UInt8]>(countLimit: 1), ToldSaves())
        #expect(try part.restore(from: path).entryCount == 1)
        try part.setAutosave(to: path, every: Self.often, format: formats[0]) { told.note($0) }
        #expect(told.next() == nil && told.next() == 1)
      }
    }
  }

  @Test("a save that fails is told and noted, and the next interval tries again")
  func failures() throws {
    for cache in try Self.each() {
      try withFolder { folder in
        let told = ToldSaves()
        let path = folder.path + "/later/cache"
        cache[1] = [1]
        try cache.setAutosave(to: path, every: Self.often, format: .purgeableBytes) { told.note($0) }
        for _ in 0..<2 {
          let failure = told.nextFailure()
          #expect(failure != nil && cache.lastSaveError?.kind == failure?.kind)
          #expect(cache.lastSaveError?.kind == .systemCallFailed(call: "open"))
        }
        try FileManager.default.createDirectory(atPath: folder.path + "/later", withIntermediateDirectories: false)
        #expect(told.nextSave() == 1 && cache.lastSaveError == nil)
        cache.removeAutosave()
        // The program's own saves are noted as well.
        #expect(throws: PurgeableError.self) { try cache.save(to: folder.path + "/none/cache", format: .purgeableBytes) }
        #expect(cache.lastSaveError?.kind == .systemCallFailed(call: "open"))
        try cache.save(to: path, format: .purgeableBytes)
        #expect(cache.lastSaveError == nil)
      }
    }
  }

  @Test("to take an autosave away waits for the save at work and for its handler")
  func removal() throws {
    for cache in try Self.each() {
      try withFolder { folder in
        let (begun, goesOn) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
        let format = StoredFormat<[UInt8]>(version: 1) { value in
          begun.signal()
          goesOn.comes()
          return value
        } decode: { bytes, _ in
          [UInt8](purgeableBytes: bytes)
        }
        let order = Mutex<[String]>([])
        cache[1] = [1]
        try cache.setAutosave(to: folder.path + "/cache", every: Self.often, format: format) { event in
          if case .didSave = event { order.withLock { $0.append("saved") } }
        }
        #expect(begun.comes())
        let remover = TestThread {
          cache.removeAutosave()
          order.withLock { $0.append("removed") }
        }
        usleep(20_000)
        goesOn.signal()
        remover.join()
        #expect(order.withLock { $0 } == ["saved", "removed"])
      }
    }
  }

  @Test("what an autosave's handler holds may take the autosave away when it ends")
  func heldByHandler() throws {
    final class Owner: Sendable {
      let cache: any Savable
      init(_ cache: any Savable) { self.cache = cache }
      deinit { cache.removeAutosave() }
    }
    for cache in try Self.each() {
      try withFolder { folder in
        @Sendable func set() throws {
          let owner = Owner(cache)
          try cache.setAutosave(to: folder.path + "/cache", every: .seconds(3600), format: .purgeableBytes) { _ in _ = owner }
        }
        try set()
        let hasChanged = DispatchSemaphore(value: 0)
        Thread.detachNewThread {
          // Each owner ends in the call after its own.
          cache.removeAutosave()
          for _ in 0..<2 { #expect(throws: Never.self) { try set() } }
          cache.removeAutosave()
          hasChanged.signal()
        }
        #expect(hasChanged.comes())
      }
    }
  }

  @Test("a handler may set and take away autosaves; saves within it are refused as busy")
  func within() throws {
    for cache in try Self.each() {
      try withFolder { folder in
        let told = ToldSaves()
        let kind = Mutex<PurgeableError.Kind?>(nil)
        cache[1] = [1]
        try cache.setAutosave(to: folder.path + "/one", every: Self.often, format: .purgeableBytes) { [weak cache] event in
          guard case .didSave = event, let cache else { return }
          do throws(PurgeableError) { try cache.save(to: folder.path + "/three", format: .purgeableBytes) } catch {
            kind.withLock { $0 = error.kind }
          }
          do throws(PurgeableError) {
            try cache.setAutosave(to: folder.path + "/two", every: Self.often, format: .purgeableBytes) { told.note($0) }
          } catch { Issue.record(error) }
          cache[2] = [2]
        }
        #expect(told.nextSave() == 2 && kind.withLock { $0 } == .busy)
        #expect(try names(in: folder) == ["one", "two"])
        cache[3] = [3]
        #expect(told.nextSave() == 3)
        let first = try PurgeableCache<Int, [UInt8]>()
        #expect(try first.restore(from: folder.path + "/one").entryCount == 1, "the first autosave has ended")
        cache.removeAutosave()
      }
    }
  }

  @Test("an autosave does not keep the cache alive, and ends with it")
  func ends() throws {
    for kind in 0..<2 {
      try withFolder { folder in
        var cache: (any Savable)? = try Self.each()[kind]
        let told = ToldSaves()
        cache?[1] = [1]
        try cache?.setAutosave(to: folder.path + "/cache", every: Self.often, format: .purgeableBytes) { told.note($0) }
        #expect(told.nextSave() == 1)
        weak let left = cache
        cache?[2] = [2]
        cache = nil
        // The save that is at work holds it.
        for _ in 0..<12_000 where left != nil { usleep(10_000) }
        #expect(left == nil)
      }
    }
  }

  @Test("intervals of 0 or less and paths that name no file are refused by name, and the earlier autosave stays")
  func refused() throws {
    for cache in try Self.each() {
      try withFolder { folder in
        let told = ToldSaves()
        try cache.setAutosave(to: folder.path + "/cache", every: Self.often, format: .purgeableBytes) { told.note($0) }
        for (path, interval, name) in [
          ("/cache", Duration.zero, "interval"), ("/cache", .seconds(-1), "interval"), ("/", .seconds(1), "path"),
          ("/..", .seconds(1), "path"), ("/a\0b", .seconds(1), "path"),
        ] {
          let error = #expect(throws: PurgeableError.self) {
            try cache.setAutosave(to: folder.path + path, every: interval, format: .purgeableBytes, handler: nil)
          }
          #expect(error?.kind == .invalidArgument(name))
        }
        cache[1] = [1]
        #expect(told.nextSave() == 1)
        cache.removeAutosave()
      }
    }
  }

  @Test("restores and saves of the program wait for one at work, and find the cache whole")
  func beside() throws {
    for cache in try Self.each() {
      try withFolder { folder in
        let path = folder.path + "/cache"
        let (keys, turns) = TestRun.isFull ? (300, 40) : (200, 5)
        for key in 0..<keys { cache[key] = described(UInt32(key), version: 1, count: 900) }
        try cache.setAutosave(to: path, every: .milliseconds(1), format: .purgeableBytes, handler: nil)
        onThreads(3) { thread in
          for turn in 0..<turns {
            cache[turn] = described(UInt32(turn), version: 1, count: 900)
            if thread == 0 { try? cache.save(to: path, format: .purgeableBytes) }
            guard thread == 1, let restored = try? PurgeableCache<Int, [UInt8]>() else { continue }
            _ = try? restored.restore(from: path)
            // What is replaced while it is saved may be left out; nothing else is.
            let isThere = (40..<keys).map { restored[$0] == described(UInt32($0), version: 1, count: 900) }
            #expect(restored.isEmpty || isThere.allSatisfy { $0 })
          }
        }
        cache.removeAutosave()
        #expect(try cache.lastSaveError == nil && names(in: folder) == ["cache"])
      }
    }
  }

  @Test("a forked child saves nothing by itself, until it sets an autosave", .forks)
  func forks() async {
    await #expect(processExitsWith: .success) {
      for kind in 0..<2 {
        guard let folder = try? FakeRoot(), let cache = try? AutosaveTests.each()[kind] else { return require(false, "a cache") }
        let path = folder.path + "/cache"
        let told = ToldSaves()
        let parent = getpid()
        cache[1] = [1]
        let isSet: ()? = try? cache.setAutosave(to: path, every: AutosaveTests.often, format: .purgeableBytes) {
          require(getpid() == parent, "a save of the parent's autosave in the child")
          told.note($0)
        }
        require(isSet != nil && told.nextSave() == 1, "the parent saves")
        let isWell = childSays(seconds: 120) {
          cache[2] = [2]
          cache[3] = [3]
          usleep(50_000)
          let own = ToldSaves()
          let isSet: ()? = try? cache.setAutosave(to: path + ".child", every: AutosaveTests.often, format: .purgeableBytes) {
            own.note($0)
          }
          return isSet != nil && (own.nextSave() ?? 0) >= 2
        }
        require(isWell, "the child saves")
        cache[4] = [4]
        require(told.nextSave(of: 2) == 2, "the parent saves again")
        cache.removeAutosave()
        folder.remove()
      }
    }
  }

  @Test("of autosaves that threads set at the same time, one saves")
  func setByThreads() throws {
    for cache in try Self.each() {
      try withFolder { folder in
        let told = ToldSaves()
        for round in 1...30 {
          onThreads(4) { _ in
            do throws(PurgeableError) {
              try cache.setAutosave(to: folder.path + "/cache", every: .milliseconds(1), format: .purgeableBytes) {
                told.note($0)
              }
            } catch { Issue.record(error) }
          }
          cache[round] = [1]
          #expect(told.nextSave(of: round) == round)
        }
        onThreads(4) { thread in
          for _ in 0..<20 {
            if thread % 2 == 0 {
              cache.removeAutosave()
            } else {
              try? cache.setAutosave(to: folder.path + "/cache", every: .seconds(1), format: .purgeableBytes, handler: nil)
            }
          }
        }
        cache.removeAutosave()
      }
    }
  }

  @Test("a child that the handler forks saves nothing over the parent's file", .forks)
  func forkInHandler() async {
    await #expect(processExitsWith: .success) {
      for kind in 0..<2 {
        guard let folder = try? FakeRoot(), let cache = try? AutosaveTests.each()[kind] else { return require(false, "a cache") }
        let path = folder.path + "/cache"
        let told = ToldSaves()
        let child = Atomic<pid_t>(0)
        cache[1] = [1]
        let isSet: ()? = try? cache.setAutosave(to: path, every: AutosaveTests.often, format: .purgeableBytes) { event in
          if event == .willSave, child.load(ordering: .relaxed) == 0 {
            let process = fork()
            if process == 0 {
              endAfter(seconds: 60)
              child.store(-1, ordering: .relaxed)
              // The thread goes on with what it did, and then has no more to do.
              return
            }
            child.store(process, ordering: .relaxed)
            usleep(100_000)
          }
          require(child.load(ordering: .relaxed) != -1, "the child is told of \(event)")
          told.note(event)
        }
        require(isSet != nil && told.nextSave() == 1, "the parent saves")
        cache.removeAutosave()
        kill(child.load(ordering: .relaxed), SIGKILL)
        _ = ChildEnd.of(child.load(ordering: .relaxed))
        guard let restored = try? PurgeableCache<Int, [UInt8]>() else { return require(false, "a cache") }
        require((try? restored.restore(from: path).entryCount) == 1, "the file is the parent's")
        require((try? names(in: folder)) == ["cache"], "nothing is left behind")
        folder.remove()
      }
    }
  }
}
