// SPDX-License-Identifier: MIT
// The list of all caches, for the library's thread and for forks.

import Glibc

/// Every cache from its making to its end. Has a mutex of its own, under which nothing else is taken.
final class CacheRoster: ForkProtected {
  static let shared = CacheRoster()
  private let list = Guarded(ClientList<CacheEngine>())

  /// Called with the first cache. What caches need of the layers below is made now, so that later calls allocate nothing for it.
  private init() {
    ProcessMemory.prepare()
    ForkGuard.shared.announce(.caches) { items in
      let first = items.count
      for engine in ListedEngines() { items.append(engine) }
      for at in first..<items.count { if let table = (items[at] as? CacheEngine)?.base.observer { items.append(table) } }
      for at in first..<items.count { if let loads = (items[at] as? CacheEngine)?.loads { items.append(loads) } }
      items.append(GivingBackTurn.shared)
    }
    ForkGuard.shared.announce(.lists) { $0.append(CacheRoster.shared) }
  }

  var isEmpty: Bool { list.withLock { $0.isEmpty } }

  /// Adds an engine; its owner removes it before it ends. Only what a fork needs is allocated here, and the cache's initializer
  /// has tested that there is memory.
  func add(_ engine: CacheEngine) {
    list.withLock { $0.append(engine, engine.link) }
    // The engine, its key table and its loads.
    ForkGuard.shared.reserve(3)
    WorkBell.expectWork()
  }

  func remove(_ engine: CacheEngine) {
    let isLast = list.withLock { list -> Bool in
      list.remove(engine.link)
      return list.isEmpty
    }
    ForkGuard.shared.dismiss(3)
    if isLast { WorkBell.review() }
  }

  func lockForFork() { list.lock() }
  func unlockAfterFork() { list.unlock() }

  fileprivate func engine(after link: ClientLink<CacheEngine>?, _ number: UInt64) -> (client: CacheEngine, number: UInt64)? {
    list.withLock { $0.client(after: link, number: number) }
  }
}

/// All caches, one after the other. Each is kept alive until the next is asked for. Caches made meanwhile are included. Takes
/// only the roster's mutex, for a moment each time.
struct ListedEngines: Sequence, IteratorProtocol {
  private var present: CacheEngine?
  private var number: UInt64 = 0

  mutating func next() -> CacheEngine? {
    let found = CacheRoster.shared.engine(after: present?.link, number)
    present = found?.client
    number = found?.number ?? number
    return present
  }
}
