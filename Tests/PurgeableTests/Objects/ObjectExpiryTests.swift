// SPDX-License-Identifier: MIT
// Objects whose time is over: by both bounds, in every call, beside a model, and with threads.

import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("objects: expiry")
struct ObjectExpiryTests {
  /// `isAlone`: as `staysAlone`.
  private func make(
    _ clock: ManualClock?, _ expiry: Expiry? = nil, countLimit: Int? = nil, told: Departures<Int, Int>? = nil,
    isAlone: Bool = true
  ) throws -> ObjectCache<Int, Int> {
    var options = CacheOptions(countLimit: countLimit)
    (options.clock, options.expiry) = (clock, expiry)
    let cache = try ObjectCache<Int, Int>(options)
    if let told { cache.setDepartureHandler { told.note($0) } }
    if isAlone { cache.staysAlone() }
    return cache
  }

  @Test("what ends while a removal asks about others leaves as expired, and is not counted")
  func endedMeanwhile() throws {
    for asDecider in [false, true] {
      let (clock, told) = (ManualClock(), Departures<Int, Int>())
      let cache = try make(clock, told: told)
      for key in 0..<10 { cache.setValue(key, forKey: key, expiry: key % 2 == 0 ? .sinceCreation(.seconds(10)) : nil) }
      let mayGo = { (entry: CacheEntry<Int, Int>) in
        if entry.remainingTime != nil { clock.advance(by: .seconds(10)) }
        return true
      }
      #expect((asDecider ? cache.evictAll(where: mayGo) : cache.removeAll(where: mayGo)) == 5)
      let reason = asDecider ? DepartureReason.decider : .removed
      #expect(told.take().allSatisfy { $0.reason == ($0.key % 2 == 0 ? .expired : reason) } && cache.isEmpty)
    }
  }

  @Test("each kind of use prolongs an entry, and nothing else does; both to the nanosecond")
  func uses() throws {
    let clock = ManualClock()
    let cache = try make(clock, .sinceLastUse(.seconds(10)))
    let calls: [(String, isUse: Bool, (Int) -> Void)] = [
      ("value", true, { #expect(cache[$0] == 10) }),
      ("look-up", true, { if case .miss = cache.lookUpValue(forKey: $0) { Issue.record() } }),
      ("many", true, { #expect(cache.values(forKeys: [$0]) == [10]) }),
      ("loading", true, { #expect(cache.value(forKey: $0) { 11 } == 10) }),
      ("store", true, { cache[$0] = 10 }),
      ("update", true, { #expect(cache.updateValue(10, forKey: $0) == 10) }),
      ("modify", true, { cache.modifyValue(forKey: $0) { $0? += 0 } }),
      ("peek", false, { #expect(cache.peekValue(forKey: $0) == 10) }),
      ("contains", false, { #expect(cache.containsValue(forKey: $0)) }),
      ("keys", false, { #expect(cache.keys.contains($0)) }),
      ("snapshot", false, { #expect(cache.snapshot()[$0] == 10) }),
      ("remove none", false, { _ in #expect(cache.removeAll { _ in false } == 0) }),
      ("priority", false, { #expect(cache.setPriority(.pinned, forKey: $0)) }),
      ("remove expired", false, { _ in cache.removeExpired() }),
    ]
    for (key, (name, isUse, call)) in calls.enumerated() {
      cache[key] = 10
      for _ in 0..<(isUse ? 3 : 1) {
        clock.advance(by: .seconds(10) - .nanoseconds(1))
        #expect(cache.peekEntry(forKey: key)?.remainingTime == .nanoseconds(1), "\(name)")
        call(key)
      }
      clock.advance(by: .nanoseconds(1))
      #expect(cache.containsValue(forKey: key) == isUse, "\(name)")
      clock.advance(by: .seconds(10) - .nanoseconds(1))
      #expect(MissReason.of(cache.lookUpValue(forKey: key)) == .expired, "\(name)")
    }
    #expect(cache.statistics.missesByReason[.expired] == calls.count && cache.removeExpired() == 0 && cache.isEmpty)
  }

  @Test("what is over is returned by no call, and leaves once, for its reason")
  func over() throws {
    let clock = ManualClock()
    let told = Departures<Int, Int>()
    let cache = try make(clock, .sinceCreation(.seconds(1)), told: told)
    let calls: [(String, (ObjectCache<Int, Int>) -> Bool)] = [
      ("value", { $0[1] == nil }), ("peek", { $0.peekEntry(forKey: 1) == nil }), ("contains", { !$0.containsValue(forKey: 1) }),
      ("keys", { $0.keys.isEmpty && $0.snapshot().isEmpty }), ("update", { $0.updateValue(2, forKey: 1) == nil }),
      ("store", { $0.setValue(2, forKey: 1) == .stored && $0.peekEntry(forKey: 1)?.priority == .normal }),
      ("remove", { !$0.remove(forKey: 1) }), ("remove value", { $0.removeValue(forKey: 1) == nil }),
      ("remove all", { $0.removeAll { _ in true } == 0 && $0.evictAll { _ in true } == 0 }),
      (
        "every",
        {
          $0.removeAll()
          return $0.isEmpty
        }
      ), ("priority", { !$0.setPriority(.normal, forKey: 1) }),
      ("modify", { $0.modifyValue(forKey: 1) { value in value == nil } }), ("expired", { $0.removeExpired() == 1 }),
      ("load", { $0.value(forKey: 1) { 3 } == 3 }),
      ("at once", { $0.setValue(4, forKey: 1, expiry: .sinceCreation(.zero)) == .expired }),
      ("relief", { $0.store.beginRelief() && $0.isEmpty }),
    ]
    for (name, call) in calls {
      cache.setValue(1, forKey: 1, priority: .pinned)
      clock.advance(by: .seconds(1))
      #expect(cache.count == 1 && told.all.isEmpty)
      #expect(call(cache), "\(name)")
      cache.removeExpired()
      #expect(told.take().filter { $0.value == 1 }.map(\.inShort) == ["1: expired, 0"], "\(name)")
      cache.removeAll()
      _ = told.take()
    }
  }

  @Test("a store begins anew, modifyValue keeps the time; never, a default that changes, and times of 0")
  func terms() throws {
    let clock = ManualClock()
    let told = Departures<Int, Int>()
    let cache = try make(clock, .sinceCreation(.seconds(10)), told: told)
    func left(_ key: Int) -> Duration? { cache.peekEntry(forKey: key)?.remainingTime }
    cache[1] = 1
    cache.setValue(2, forKey: 2, expiry: .never)
    cache.setValue(3, forKey: 3, expiry: Expiry(sinceCreation: .seconds(20), sinceLastUse: .seconds(5)))
    clock.advance(by: .seconds(4))
    cache.modifyValue(forKey: 1) { $0 = 10 }
    cache.modifyValue(forKey: 2) { $0 = 20 }
    cache.modifyValue(forKey: 3) { $0 = 30 }
    cache.modifyValue(forKey: 4) { $0 = 40 }
    #expect(left(1) == .seconds(6) && left(2) == nil && left(3) == .seconds(5) && left(4) == .seconds(10))
    for _ in 0..<3 {
      clock.advance(by: .seconds(4))
      #expect(cache[3] == 30)
    }
    #expect(left(3) == .seconds(4) && left(1) == nil && cache[2] == 20)
    try cache.setExpiry(.sinceLastUse(.seconds(3)))
    #expect(cache.expiry == .sinceLastUse(.seconds(3)))
    #expect(throws: PurgeableError.self) { try cache.setExpiry(.sinceCreation(.zero)) }
    #expect(throws: PurgeableError.self) { _ = try make(clock, .sinceLastUse(.zero)) }
    cache[1] = 1
    #expect(left(1) == .seconds(3) && cache.setValues([7: 7, 8: 8], expiry: .sinceCreation(.seconds(2))).isEmpty)
    #expect(left(7) == .seconds(2) && left(8) == .seconds(2))
    try cache.setExpiry(nil)
    cache[1] = 1
    #expect(left(1) == nil && cache.expiry == nil)
    _ = told.take()
    #expect(cache.setValue(9, forKey: 1, expiry: .sinceLastUse(.seconds(-1))) == .expired && cache[1] == nil)
    #expect(told.take().map { "\($0.value ?? 0) \($0.reason)" } == ["1 replaced", "9 expired"])
    #expect(cache.value(forKey: 50, expiry: .sinceCreation(.seconds(1))) { 5 } == 5)
    #expect(cache.values(forKeys: [51, 52], expiry: .sinceCreation(.seconds(1))) { _ in [51: 5, 52: 5] } == [5, 5])
    #expect(cache.value(forKey: 53, expiry: .sinceCreation(.seconds(1))) { () -> Int? in 5 } == 5)
    #expect((50...53).allSatisfy { left($0) == .seconds(1) })
    try cache.setExpiry(.sinceLastUse(Duration(secondsComponent: 0, attosecondsComponent: 1)))
    #expect(cache.setValue(9, forKey: 55) == .stored && cache[55] == 9)
    #expect(cache.value(forKey: 54, expiry: .sinceCreation(.zero)) { 5 } == 5 && !cache.containsValue(forKey: 54))
  }

  @Test("the async forms of loading take a time too")
  func tasks() async throws {
    let cache = try make(ManualClock())
    let second = Expiry.sinceCreation(.seconds(1))
    let one = await cache.value(forKey: 1, expiry: second) { () async -> Int in 5 }
    let two = await cache.value(forKey: 2, expiry: second) { () async -> Int? in 5 }
    let three = await cache.values(forKeys: [3], expiry: second) { _ async in [3: 5] }
    #expect(one == 5 && two == 5 && three == [5])
    #expect((1...3).allSatisfy { cache.peekEntry(forKey: $0)?.remainingTime == .seconds(1) })
  }

  @Test("the library's round has what is due dropped and told, and says when it is due next")
  func upkeep() async throws {
    let clock = ManualClock()
    let told = Departures<Int, Int>()
    let cache = try make(clock, told: told, isAlone: false)
    #expect(cache.store.upkeepRound() == .max)
    for key in 0..<100 {
      cache.setValue(key, forKey: key, expiry: key < 50 ? .sinceCreation(.seconds(1)) : .sinceLastUse(.seconds(1)))
    }
    #expect(cache.store.upkeepRound() == 0 && cache.count == 100)
    clock.advance(by: .milliseconds(600))
    for key in 60..<100 { #expect(cache[key] == key) }
    clock.advance(by: .milliseconds(400))
    #expect(cache.store.upkeepRound() == 0)
    #expect(await TestRun.comes { told.count(of: .expired) == 60 } && cache.count == 40)
    #expect(await TestRun.comes { cache.store.nextEnd.load(ordering: .relaxed) != .max }, "those that were used are due again")
    clock.advance(by: .seconds(1))
    #expect(await TestRun.comes { cache.store.upkeepRound() == .max } && cache.isEmpty)
    let other = try make(nil, .sinceCreation(.seconds(100)))
    other[1] = 1
    #expect((90_000...100_001).contains(other.store.upkeepRound()))
  }

  @Test("the ends of values that have left are taken out; tables that grow and shrink keep times and ends")
  func ends() throws {
    let clock = ManualClock()
    let cache = try make(clock)
    func timeBytes() -> Int {
      (0..<ObjectGate.count).reduce(0) { sum, at in sum + cache.store.hold(shard: at) { $0.table.times.byteCount } }
    }
    for key in 0..<1000 { cache[key] = key }
    #expect(timeBytes() == 0, "no memory for times where there are none")
    #expect(MemoryLayout<ObjectNode<Int, TestContent>>.stride == 64, "a cache line")
    for _ in 0..<20_000 { cache.setValue(1, forKey: 1, expiry: .sinceCreation(.seconds(100))) }
    #expect((1..<20_000).contains(timeBytes()))
    for key in 0..<20_000 { cache.setValue(key, forKey: key, expiry: key % 3 == 0 ? .never : .sinceCreation(.seconds(key % 3))) }
    for key in 0..<20_000 where key % 8 != 0 { cache.remove(forKey: key) }
    cache.store.endRelief(before: cache.count)
    let kept = (0..<20_000).filter { $0 % 8 == 0 }
    #expect(kept.allSatisfy { cache.peekEntry(forKey: $0)?.remainingTime == ($0 % 3 == 0 ? nil : .seconds($0 % 3)) })
    for second in 1...2 {
      clock.advance(by: .seconds(1))
      #expect(cache.removeExpired() == kept.count { $0 % 3 == second })
    }
    #expect(Set(cache.keys) == Set(kept.filter { $0 % 3 == 0 }))
  }

  @Test("nobody is asked about what has expired, which goes before the living, also for trims", arguments: [false, true])
  func limits(asks: Bool) throws {
    let clock = ManualClock()
    let told = Departures<Int, Int>()
    let cache = try make(clock, countLimit: 100, told: told)
    if asks { cache.shouldEvict = { key, _ in key < 50 } }
    for key in 0..<100 {
      cache.setValue(key, forKey: key, expiry: key < 50 ? nil : .sinceCreation(.seconds(1)), priority: key < 75 ? nil : .pinned)
    }
    clock.advance(by: .seconds(1))
    for key in 100..<140 { cache[key] = key }
    #expect(told.take().allSatisfy { $0.reason == .expired && $0.key >= 50 } && cache.count == 100)
    cache.trim(toCount: 80)
    #expect(told.take().map(\.reason) == Array(repeating: .expired, count: 10) + Array(repeating: .trimmed, count: 10))
  }

  @Test("with another thread's clock and handlers, each value leaves once or is there", arguments: [nil, 200])
  func threads(countLimit: Int?) async throws {
    let clock = ManualClock()
    let stored = Atomic<Int>(0)
    let left = Atomic<Int>(0)
    let cache = try make(clock, countLimit: countLimit, isAlone: false)
    cache.setDepartureHandler { _ in left.add(1, ordering: .relaxed) }
    onThreads(4) { thread in
      var random = SplitMix64(seed: chosenSeed &+ UInt64(thread))
      for _ in 0..<(TestRun.isFull ? 20_000 : 5000) / slowness {
        let key = Int.random(in: 0..<600, using: &random)
        switch Int.random(in: 0..<20, using: &random) {
        case 0..<8:
          let time = Duration.milliseconds(Int.random(in: 1..<50, using: &random))
          let kind: [Expiry] = [.never, .sinceCreation(time), .sinceLastUse(time)]
          if cache.setValue(key, forKey: key, expiry: kind[key % 3]).isStored { stored.add(1, ordering: .relaxed) }
        case 8: cache.remove(forKey: key)
        case 9: cache.removeExpired()
        case 10: _ = cache.entries
        case 11..<14: clock.advance(by: .milliseconds(1))
        default: if let value = cache[key], value != key { Issue.record("another key's value") }
        }
      }
    }
    // The cache's own thread may be telling.
    #expect(await TestRun.comes { stored.load(ordering: .relaxed) == left.load(ordering: .relaxed) + cache.count })
    clock.advance(by: .seconds(1))
    cache.removeExpired()
    #expect(cache.entries.allSatisfy { $0.key % 3 == 0 } && cache.entries.count == cache.count)
  }

  @Test("beside a model: answers, remaining times, and who leaves for which reason", arguments: [nil, 30])
  func model(countLimit: Int?) throws {
    struct Entry {
      let key: Int, value: Int
      var deadline: Int?, idle: Int?
      var lastUse: Int, turn: Int
      var end: Int { min(deadline ?? .max, idle.map { lastUse + $0 } ?? .max) }
    }
    var random = SplitMix64(seed: chosenSeed)
    let clock = ManualClock()
    let told = Departures<Int, Int>()
    let cache = try make(clock, .sinceLastUse(.milliseconds(20)), countLimit: countLimit, told: told)
    var (now, present) = (0, [Int: Entry]())
    func living(_ key: Int) -> Entry? { present.values.first { $0.key == key && $0.end > now } }
    for step in 1...(TestRun.isFull ? 400_000 : 9000) {
      let key = Int.random(in: 0..<60, using: &random)
      let time = Int.random(in: 1..<50, using: &random)
      let old = living(key)
      var mayCome = true
      switch Int.random(in: 0..<20, using: &random) {
      case 0..<6:
        let kinds: [(Expiry?, Int?, Int?)] = [
          (nil, nil, 20), (.never, nil, nil), (.sinceCreation(.milliseconds(time)), now + time, nil),
          (.sinceLastUse(.milliseconds(time)), nil, time),
          (Expiry(sinceCreation: .milliseconds(time), sinceLastUse: .milliseconds(10)), now + time, 10),
        ]
        let (expiry, deadline, idle) = kinds[random.index(below: kinds.count)]
        present[step] = Entry(key: key, value: step, deadline: deadline, idle: idle, lastUse: now, turn: step)
        #expect(cache.setValue(step, forKey: key, expiry: expiry) == (old == nil ? .stored : .replaced), "step \(step)")
      case 6:
        mayCome = false
        #expect(cache.setValue(step, forKey: key, expiry: .sinceCreation(.zero)) == .expired)
      case 7:
        present[step] = Entry(
          key: key, value: step, deadline: old?.deadline, idle: old == nil ? 20 : old?.idle, lastUse: now, turn: step)
        cache.modifyValue(forKey: key) {
          #expect($0 == old?.value, "step \(step)")
          $0 = step
        }
      case 8..<14:
        #expect(cache[key] == old?.value, "step \(step)")
        if let old { (present[old.value]!.lastUse, present[old.value]!.turn) = (now, step) }
      case 14:
        let expected = old.map { $0.end == .max ? nil : Duration.milliseconds($0.end - now) }
        #expect(cache.peekEntry(forKey: key).map(\.remainingTime) == expected, "step \(step)")
      case 15: #expect(cache.remove(forKey: key) == (old != nil), "step \(step)")
      case 16:
        let over = present.values.count { $0.end <= now }
        #expect(cache.removeExpired() == over, "step \(step)")
        #expect(told.all.count == over)
      case 17:
        let order = present.values.filter { $0.end > now }.sorted { $0.turn < $1.turn }
        #expect(cache.entries.map(\.value) == order.map(\.value), "step \(step)")
      default:
        let moment = Int.random(in: 0..<8, using: &random)
        clock.advance(by: .milliseconds(moment))
        now += moment
      }
      for departure in told.take() {
        guard let entry = departure.value.flatMap({ present.removeValue(forKey: $0) }) else {
          #expect(!mayCome && departure.value == step && departure.reason == .expired, "step \(step)")
          continue
        }
        switch departure.reason {
        case .expired: #expect(entry.end <= now, "step \(step)")
        case .count:
          #expect(
            present.values.allSatisfy { $0.end > now && $0.turn > entry.turn }, "step \(step)")
        default: #expect(entry.key == key && entry.end > now, "step \(step): \(departure)")
        }
      }
      #expect(present.values.count { $0.key == key } <= 1)
      guard cache.count == present.count, present.count <= countLimit ?? .max else {
        Issue.record("step \(step): \(cache.count) entries, \(present.count) in the model")
        return
      }
    }
  }
}
