// SPDX-License-Identifier: MIT
// The mutexes that a fork takes, their order, and what the child forgets: in processes that use nothing else of the library.

import Glibc
import Testing

@testable import Purgeable

/// Notes the calls that a fork makes.
private final class Noting: ForkProtected {
  static let notes = Guarded<[String]>([])
  let name: String

  init(_ name: String) { self.name = name }

  private func note(_ what: String) { Self.notes.withLock { $0.append("\(what) \(name)") } }

  func lockForFork() { note("lock") }
  func unlockAfterFork() { note("unlock") }
  func forgetInChild() { note("forget") }
}

@Suite("forks: what is announced")
struct ForkGuardTests {
  @Test("is taken in the order of mutexes, whoever announced first, and given back the other way round", .forks)
  func order() async {
    await #expect(processExitsWith: .success) {
      let (cache, table, source, group) = (Noting("cache"), Noting("table"), Noting("source"), Noting("group"))
      ForkGuard.shared.announce(.group) { $0.append(group) }
      ForkGuard.shared.announce(.sources) { items in
        require(items.count == 2, "what was collected before")
        items.append(source)
      }
      ForkGuard.shared.announce(.caches) { $0 += [cache, table] }
      ForkGuard.shared.announce(.caches) { _ in require(false, "the first announcement of a place counts") }
      let around = [
        "lock cache", "lock table", "lock source", "lock group", "unlock group", "unlock source", "unlock table", "unlock cache",
      ]
      for _ in 0..<2 {
        Noting.notes.withLock { $0 = [] }
        let childIsWell = childSays {
          Noting.notes.withLock { $0 } == around + ["forget cache", "forget table", "forget source", "forget group"]
        }
        require(childIsWell, "the child forgets, when all is free")
        require(Noting.notes.withLock { $0 } == around, "the parent does not")
      }
    }
  }
}
