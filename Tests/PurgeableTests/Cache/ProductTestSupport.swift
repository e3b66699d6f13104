// SPDX-License-Identifier: MIT
// What the products of configurations have in common, of caches of bytes and of objects.

import PurgeableTestSupport
import ToolSupport

@testable import Purgeable

extension SplitMix64 {
  mutating func chance(_ one: Int, of all: Int) -> Bool { index(below: all) < one }
}

/// What a value is stored with; often nothing of it.
struct GivenAttributes {
  var expiry: Expiry?
  var recomputeCost: Duration?
  var priority: EntryPriority?

  init() {}

  init(_ random: inout SplitMix64) {
    if random.chance(1, of: 4) {
      expiry =
        [
          .never, .sinceCreation(.seconds(1 + random.index(below: 100))), .sinceLastUse(.seconds(1 + random.index(below: 30))),
          Expiry(sinceCreation: .seconds(60), sinceLastUse: .seconds(10)),
        ][random.index(below: 4)]
    }
    if random.chance(1, of: 3) { recomputeCost = .milliseconds(1 + random.index(below: 5000)) }
    if random.chance(1, of: 4) { priority = EntryPriority.allCases[random.index(below: 3)] }
  }
}

/// What a run knows of an entry that it has stored. Times are those of the run's clock.
struct KnownEntry {
  var value: [UInt8]
  var cost: Int
  var recomputeCost: Duration?
  var version: String?
  var priority: EntryPriority
  var used: Duration
  private let deadline: Duration?
  /// How long after the last use its time is over.
  private let idle: Duration?

  /// `expiry`: the cache's, where none is given.
  init(
    _ value: [UInt8], cost: Int, _ given: GivenAttributes = GivenAttributes(), expiry: Expiry?, version: String? = nil,
    at now: Duration
  ) {
    (self.value, self.cost, self.version, used) = (value, cost, version, now)
    (recomputeCost, priority) = (given.recomputeCost, given.priority ?? .normal)
    let expiry = given.expiry ?? expiry
    deadline = expiry?.sinceCreation.map { now + $0 }
    idle = expiry?.sinceLastUse
  }

  /// When its time is over, unless it is used again; nil: never.
  var end: Duration? { [deadline, idle.map { $0 + used }].compactMap(\.self).min() }

  func isOver(at now: Duration) -> Bool { end.map { $0 <= now } ?? false }
}

/// A run of random operations over one configuration, whatever the cache.
class RandomRun {
  static let keyCount = 150

  private let clock: ManualClock
  let told: Departures<Int, [UInt8]>
  let mirror = ChangeMirror()
  /// By the run's clock.
  private(set) var now = Duration.zero
  var random: SplitMix64
  var known: [Int: KnownEntry] = [:]
  var failures: [String] = []
  var hits = 0
  private var version: UInt32 = 0

  /// `clock` and `told`: those of the cache.
  init(seed: UInt64, _ clock: ManualClock, _ told: Departures<Int, [UInt8]>) {
    (self.clock, self.told, random) = (clock, told, SplitMix64(seed: seed))
  }

  func expect(_ condition: Bool, _ what: @autoclosure () -> String) {
    if !condition, failures.count < 5 { failures.append(what()) }
  }

  /// A value like no other of the key.
  func newValue(of key: Int, byteCount: Int) -> [UInt8] {
    version &+= 1
    return described(UInt32(key), version: version, count: byteCount)
  }

  func passTime() {
    clock.advance(by: .seconds(3))
    now += .seconds(3)
  }
}

/// Runs `body` beside a thread that does the library's rounds for a cache without a pause: its own thread may at any moment.
func besideRounds<E: Error>(of client: any PressureClient, _ body: () throws(E) -> Void) throws(E) {
  let isOver = Guarded(false)
  let thread = TestThread { while !isOver.withLock({ $0 }) { _ = client.upkeepRound() } }
  defer {
    isOver.withLock { $0 = true }
    thread.join()
  }
  try body()
}
