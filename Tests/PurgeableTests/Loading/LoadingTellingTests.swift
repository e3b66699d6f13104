// SPDX-License-Identifier: MIT
// Handlers of departures, and who is asked before an eviction, beside loads: called when no flight is left.

import Dispatch
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("loading: handlers")
struct LoadingTellingTests {
  /// What a cache calls when an entry leaves for another one that was loaded.
  enum Called: CaseIterable, Sendable {
    case handler, veto

    /// A cache with room for some entries, which has that many: the keys below 0.
    func fill(
      _ kind: CacheKind, countLimit: Int, _ acts: @escaping @Sendable (any LoadingCache<Int>, Int) -> Void
    ) throws -> any LoadingCache<Int> {
      var options = CacheOptions(countLimit: countLimit)
      options.tracksKeys = kind == .tracked || self == .handler
      let made: any LoadingCache<Int>
      switch (kind, self) {
      case (.objects, _):
        let cache = try ObjectCache<Int, [UInt8]>(options)
        if self == .handler { cache.setDepartureHandler { [weak cache] in acts(cache!, $0.key) } }
        if self == .veto {
          cache.shouldEvict = { [weak cache] key, _ in
            acts(cache!, key)
            return true
          }
        }
        made = cache
      case (_, .handler):
        let cache = try PurgeableCache<Int, [UInt8]>(options)
        try cache.setDepartureHandler { [weak cache] in acts(cache!, $0.key) }
        made = cache
      case (_, .veto):
        let cache = try PurgeableCache<Int, [UInt8]>(options)
        cache.shouldEvict = { [weak cache] key, _ in
          acts(cache!, key)
          return true
        }
        made = cache
      }
      for key in 1...countLimit { made.set([0], -key) }
      return made
    }
  }

  /// How a cache loads.
  enum Form: CaseIterable, Sendable {
    case one, any, group, oneInTask, anyInTask, groupInTask

    /// A group's form loads all keys, others the first.
    func load(_ keys: [Int], in cache: any LoadingCache<Int>) async -> [[UInt8]?] {
      let all: @Sendable ([Int]) -> [Int: [UInt8]] = { Dictionary(uniqueKeysWithValues: $0.map { ($0, [UInt8($0)]) }) }
      let (key, value) = (keys[0], [UInt8(keys[0])])
      return switch self {
      case .one: [cache.load(key) { value }]
      case .any: [cache.loadIfAny(key, nil) { value }]
      case .group: cache.loadAll(keys, all)
      case .oneInTask: [await cache.loadInTask(key) { value }]
      case .anyInTask: [await cache.loadIfAnyInTask(key, nil) { value }]
      case .groupInTask: await cache.loadAllInTask(keys) { all($0) }
      }
    }

    func count(of keys: [Int]) -> Int { self == .group || self == .groupInTask ? keys.count : 1 }
  }

  @Test(
    "is called, in order and before the load returns, when others get the values of all keys that were loaded",
    arguments: Called.allCases, Form.allCases)
  func noFlightIsLeft(_ called: Called, _ form: Form) async throws {
    let keys = [1, 2, 3]
    for kind in CacheKind.allCases {
      let calls = Mutex<[Int]>([])
      let cache = try called.fill(kind, countLimit: 4) { cache, key in
        // On another thread, as for this one its own loads are inner ones.
        let hasValues = DispatchSemaphore(value: 0)
        let thread = TestThread {
          for key in keys.prefix(form.count(of: keys)) where cache.load(key, { [0] }) == [UInt8(key)] { hasValues.signal() }
        }
        for _ in 0..<form.count(of: keys) { #expect(hasValues.comes(seconds: 20), "\(kind)") }
        thread.join()
        // A call that does not wait for this has time to return.
        usleep(5_000)
        calls.withLock { $0.append(key) }
      }
      #expect(await form.load(keys, in: cache) == keys.prefix(form.count(of: keys)).map { [UInt8($0)] })
      #expect(calls.withLock { $0 } == (1...form.count(of: keys)).map { -$0 }, "\(kind)")
      #expect(cache.statistics.loadCount == 1)
    }
  }

  @Test("is told of a refused value when nobody waits for it any more, too", arguments: [CacheKind.tracked, .objects])
  func refused(_ kind: CacheKind) throws {
    let calls = Mutex<[DepartureReason]>([])
    let itself = Mutex<(any LoadingCache<Int>)?>(nil)
    let handler: @Sendable (Departure<Int, [UInt8]>) -> Void = { departure in
      calls.withLock { $0.append(departure.reason) }
      // What was refused is loaded again, and not waited for.
      let hasValue = DispatchSemaphore(value: 0)
      let thread = TestThread {
        if itself.withLock({ $0 })?.load(departure.key, { [9] }) == [9] { hasValue.signal() }
      }
      #expect(hasValue.comes(seconds: 20))
      thread.join()
    }
    let options = CacheOptions(costLimit: 10)
    let cache: any LoadingCache<Int>
    if kind == .objects {
      let objects = try ObjectCache<Int, [UInt8]>(options)
      objects.costOfValue = { $0.count }
      objects.setDepartureHandler(handler)
      cache = objects
    } else {
      cache = try PurgeableCache(options, onDeparture: handler)
    }
    itself.withLock { $0 = cache }
    defer { itself.withLock { $0 = nil } }
    #expect(cache.load(1) { [UInt8](repeating: 1, count: 20) }.count == 20)
    #expect(calls.withLock { $0 } == [.tooLarge] && cache.peekValue(forKey: 1) == [9])
  }

  @Test("two handlers that load what the other's call is loading get it", arguments: [CacheKind.tracked, .objects])
  func eachOthers(_ kind: CacheKind) throws {
    let (told, ended) = (LoadCounter(), DispatchSemaphore(value: 0))
    let cache = try Called.handler.fill(kind, countLimit: 4) { cache, _ in
      for key in [1, 2] { #expect(cache.load(key) { [0] } == [UInt8(key)]) }
      told.next()
    }
    let began = [Event(), Event()]
    let threads = [1, 2].map { key in
      TestThread {
        let value = cache.load(key) {
          began[key - 1].happens()
          #expect(began[2 - key].blocks())
          return [UInt8(key)]
        }
        #expect(value == [UInt8(key)])
        ended.signal()
      }
    }
    for _ in threads { try #require(ended.comes()) }
    for thread in threads { thread.join() }
    #expect(told.value == 2)
  }

  @Test("a handler that forks while a group's departures are told: the child is told nothing more of them", .forks)
  func forked() async {
    await #expect(processExitsWith: .success) {
      let child = Atomic<pid_t>(-1)
      let told = LoadCounter()
      let cache = try Called.handler.fill(.tracked, countLimit: 4) { _, _ in
        told.next()
        if child.load(ordering: .relaxed) < 0 { child.store(fork(), ordering: .relaxed) }
      }
      let values = cache.loadAll([1, 2, 3]) { _ in [1: [1], 2: [2], 3: [3]] }
      require(values == [[1], [2], [3]], "what was loaded")
      if child.load(ordering: .relaxed) == 0 { _exit(told.value == 1 ? 0 : 1) }
      require(told.value == 3, "the parent is told of all")
      require(ChildEnd.of(child.load(ordering: .relaxed)) == .exited(0), "the child of none")
    }
  }
}
