// SPDX-License-Identifier: MIT
// What a reaction learns for the growth after it, in a group whose files the test writes.

import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

/// Holds so many bytes, all on offer, beside a neighbour that takes more with each slice.
private final class GivingClient: PressureClient {
  struct State {
    var held: Int
    var neighbour: Int
    /// What the neighbour takes, or gives, with each slice.
    var waves: [Int]
    var factors: [Double?] = []
  }

  let link = ClientLink<UnownedClient>()
  let state: Mutex<State>
  let root: FakeRoot

  init(_ state: State) throws {
    self.state = Mutex(state)
    root = try FakeRoot([
      "proc/meminfo": "MemTotal: 1600 kB\nMemFree: 0 kB\nMemAvailable: 1600 kB\n",
      "own/memory.max": "1600\n", "own/memory.stat": "file 0\n",
    ])
    try show()
  }

  private func show() throws {
    try state.withLock { try root.write("own/memory.current", "\($0.held + $0.neighbour)\n") }
  }

  func giveSlice(ofParts parts: Int, isFelt: Bool) -> Bool {
    state.withLock { state in
      state.held -= state.held / parts
      if !state.waves.isEmpty { state.neighbour += state.waves.removeFirst() }
    }
    return (try? show()) != nil
  }

  func beginSlowGrowth(by factor: Double?) { state.withLock { $0.factors.append(factor) } }

  var holdsAnything: Bool { true }
  var offeredBytes: Int { state.withLock { $0.held } }
  func offerAll() -> Int { 0 }
  func upkeepRound() -> UInt64 { .max }
  func lockForFork() {}
  func unlockAfterFork() {}

  /// What may be held at once after a reaction to this; nil where growth stays as it was.
  func react(_ level: PressureLevel = .warning) -> (held: Int, room: Int?)? {
    let group = MemoryGroup(version: .v2, path: "/own", directories: [root.path + "/own"], isOwnDirectory: true)
    PressureReaction.run([self], level, told: level, in: group, mustGive: false, root: root.path)
    return state.withLock { state in
      guard let factor = state.factors.popLast() else { return nil }
      return (state.held, factor.map { Int(($0 * Double(state.held)).rounded()) })
    }
  }
}

@Suite("what a reaction learns of its neighbours")
struct ReactionGrowthTests {
  // Of 1600 bytes a reaction begins when fewer than 100 are left, and ends when 200 are.

  @Test("what could have been held all the time, so that no reaction would have begun")
  func deepest() throws {
    let client = try GivingClient(.init(held: 960, neighbour: 560, waves: [40, 0, 0, 0]))
    defer { client.root.remove() }
    // 80 are left, and 100 have to be: 940 could have been held. After a slice and the wave 100 are left beside 900.
    let found = client.react()
    #expect(found?.held == 792 && found?.room == 900, "\(String(describing: found))")
  }

  @Test("a neighbour that has gone before the end is remembered as it was")
  func gone() throws {
    let client = try GivingClient(.init(held: 960, neighbour: 560, waves: [40, -600]))
    defer { client.root.remove() }
    let found = client.react()
    #expect(found?.held == 844 && found?.room == 900, "\(String(describing: found))")
  }

  @Test("a slice that is given in any case, with room for all, learns how much; no slice, nothing")
  func forced() throws {
    let client = try GivingClient(.init(held: 960, neighbour: 0, waves: []))
    defer { client.root.remove() }
    #expect(client.react() == nil)
    let found = client.react(.critical)
    #expect(found?.held == 900 && found?.room == 1500, "\(String(describing: found))")
  }
}
