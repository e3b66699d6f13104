// SPDX-License-Identifier: MIT
// Objects that were not used for a time.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("ObjectCache, idleness")
struct ObjectIdleTests {
  @Test("what was not used for the idle time leaves, by the cache's clock; what was used or is pinned stays")
  func idle() async throws {
    let clock = ManualClock()
    var options = CacheOptions()
    (options.clock, options.idleTime) = (clock, .seconds(8))
    let told = Departures<Int, Int>()
    let cache = try ObjectCache<Int, Int>(options) { told.note($0) }
    #expect(cache.idleTime == .seconds(8))
    for key in 0..<100 { cache[key] = key }
    #expect(cache.setPriority(.pinned, forKey: 1))
    // The library's thread may pass rounds, too.
    func advance(_ seconds: Int) {
      for _ in 0..<seconds / 2 {
        clock.advance(by: .seconds(2))
        cache.store.dropIdle()
      }
    }
    cache.store.dropIdle()
    advance(6)
    #expect(cache.count == 100)
    #expect(cache[0] == 0 && cache.peekValue(forKey: 2) == 2)
    advance(6)
    #expect(await TestRun.comes { cache.count == 2 && told.all.count == 98 })
    #expect(Set(cache.keys) == [0, 1])
    #expect(told.all.allSatisfy { $0.reason == .idle && $0.value == $0.key } && cache.statistics.departures[.idle] == 98)
    advance(8)
    #expect(await TestRun.comes { cache.keys == [1] })
    try cache.setIdleTime(nil)
    cache[2] = 2
    advance(100)
    #expect(cache.count == 2 && cache.idleTime == nil)
  }

  @Test("the library does it by itself")
  func byItself() async throws {
    var options = CacheOptions()
    options.idleTime = .milliseconds(20)
    let cache = try ObjectCache<Int, Int>(options)
    for key in 0..<100 { cache[key] = key }
    #expect(await TestRun.comes { cache.isEmpty })
  }

  @Test("what came from a file is idle only after another idle time")
  func restored() throws {
    try withFolder { folder in
      let clock = ManualClock()
      var options = CacheOptions()
      (options.clock, options.idleTime) = (clock, .seconds(8))
      let cache = try ObjectCache<Int, Int>(options)
      for key in 0..<10 { cache[key] = key }
      try cache.save(to: folder.path + "/cache", format: .purgeableBytes)
      cache.removeAll()
      for _ in 0..<10 {
        clock.advance(by: .seconds(2))
        cache.store.dropIdle()
      }
      try cache.restore(from: folder.path + "/cache", format: .purgeableBytes)
      for _ in 0..<4 { cache.store.dropIdle() }
      #expect(cache.count == 10)
    }
  }

  @Test("what comes from a file is not idle by marks of before or during the restore, and lets nothing else stay longer")
  func restoring() throws {
    try withFolder { folder in
      let clock = ManualClock()
      var options = CacheOptions()
      (options.clock, options.idleTime) = (clock, .seconds(8))
      let path = folder.path + "/cache"
      let saved = try ObjectCache<Int, String>()
      for key in 0..<10 { saved[key] = "\(key)" }
      let cache = try ObjectCache<Int, String>(options)
      cache[100] = "its own"
      @Sendable func round() {
        cache.store.dropIdle()
        clock.advance(by: .seconds(2))
      }
      // A value takes two seconds to decode: marks are due in the midst of the restore.
      let format = StoredFormat<String>(version: 1) {
        Array($0.utf8)
      } decode: { bytes, _ in
        round()
        return String(purgeableBytes: bytes)
      }
      try saved.save(to: path, format: format)
      for _ in 0..<3 { round() }
      let report = try cache.restore(from: path, format: format)
      #expect(report.entryCount == 10)
      #expect(Set(cache.keys) == Set(0..<10), "\(cache.keys)")
      for _ in 0..<4 { round() }
      #expect(cache.count == 10)
      for _ in 0..<4 { round() }
      #expect(cache.isEmpty)
    }
  }

  @Test("marks are a quarter of the idle time apart, and due when they are as old as it")
  func marks() {
    var marks = IdleMarks<UInt64>(none: 0)
    func round(now: UInt64, _ place: UInt64) -> UInt64? {
      var bound: UInt64?
      while let due = marks.takeDue(8, now: now) { bound = due }
      if marks.wantsMark(8, now: now) { marks.append(place, now: now) }
      return bound
    }
    var bounds: [UInt64?] = []
    for now in 0..<20 as Range<UInt64> { bounds.append(round(now: 100 + now, now)) }
    let due: [UInt64?] = [0, nil, 2, nil, 4, nil, 6, nil, 8, nil, 10, nil]
    #expect(bounds == [UInt64?](repeating: nil, count: 8) + due)
    // A clock that goes back, and one that leaps.
    #expect(round(now: 50, 20) == nil)
    #expect(round(now: 1000, 21) == 18)
  }

  @Test("a time of 0 or less is refused by name, and the old one stays")
  func refused() throws {
    var options = CacheOptions()
    options.idleTime = .zero
    #expect(throws: PurgeableError.self) { try ObjectCache<Int, Int>(options) }
    options.idleTime = .seconds(5)
    let cache = try ObjectCache<Int, Int>(options)
    #expect {
      try cache.setIdleTime(.seconds(-1))
    } throws: { error in
      (error as? PurgeableError)?.kind == .invalidArgument("time")
    }
    #expect(cache.idleTime == .seconds(5))
  }
}
