// SPDX-License-Identifier: MIT
// The mutexes that a fork takes, their order, and what the child forgets: in processes that have no caches. The library's thread
// has announced its own already.

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
      let (cache, table, list, group) = (Noting("cache"), Noting("table"), Noting("list"), Noting("group"))
      ForkGuard.shared.announce(.group) { $0.append(group) }
      ForkGuard.shared.announce(.lists) { items in
        require(items.count { $0 is Noting } == 2, "what was collected before")
        items.append(list)
      }
      ForkGuard.shared.announce(.clients) { $0 += [cache, table] }
      ForkGuard.shared.announce(.clients) { _ in require(false, "the first announcement of a place counts") }
      let around = [
        "lock cache", "lock table", "lock list", "lock group", "unlock group", "unlock list", "unlock table", "unlock cache",
      ]
      for _ in 0..<2 {
        Noting.notes.withLock { $0 = [] }
        let childIsWell = childSays {
          Noting.notes.withLock { $0 } == around + ["forget cache", "forget table", "forget list", "forget group"]
        }
        require(childIsWell, "the child forgets, when all is free")
        require(Noting.notes.withLock { $0 } == around, "the parent does not")
      }
    }
  }
}
