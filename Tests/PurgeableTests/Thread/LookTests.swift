// SPDX-License-Identifier: MIT
// When the library's thread looks whether what is kept off offer may stay so.

import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// Counts what the thread asks of it.
private final class CountingClient: PressureClient {
  let link = ClientLink<UnownedClient>()
  let looks = Atomic<Int>(0)
  let rounds = Atomic<Int>(0)

  func lookAtRoom() -> UInt64 {
    looks.add(1, ordering: .relaxed)
    return .max
  }

  func upkeepRound() -> UInt64 {
    rounds.add(1, ordering: .relaxed)
    return .max
  }

  var holdsAnything: Bool { false }
  var offeredBytes: Int { 0 }
  func offerAll() -> Int { 0 }
  func lockForFork() {}
  func unlockAfterFork() {}
}

@Suite("the library's thread: looks at the room beside a core", .serialized)
struct LookTests {
  @Test("with the first slab that a core keeps off offer, before any round, and also where a round is due already")
  func firstSlab() async {
    await #expect(processExitsWith: .success) {
      let thread = SteppedThread()
      PurgeableMemory.pressureSource = FakeSource()
      let client = CountingClient()
      ClientRoster.shared.add(client)
      var options = CacheOptions()
      (options.core, options.evictionOrder) = (.share(1), .lru)
      let cache = try PurgeableCache<Int, [UInt8]>(options)
      // As if somebody had rung just before: then nobody is heard until the next round, which by this clock never comes.
      WorkBell.isRung.store(true, ordering: .relaxed)
      cache[1] = [1]
      require(cache.statistics.coreBytes > 0, "is in the core at once")
      require(patiently { client.looks.load(ordering: .relaxed) > 0 }, "which somebody looks after")
      require(client.rounds.load(ordering: .relaxed) == 0, "before any round")
      thread.advance(seconds: 1)
      require(client.rounds.load(ordering: .relaxed) == 1 && cache.count == 1, "which comes as well")
      ClientRoster.shared.remove(client)
    }
  }
}
