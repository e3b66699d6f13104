// SPDX-License-Identifier: MIT
// A fork waits until no thread, the library's own included, is inside anything that the child will use.
//
//   the forking thread:  prepare: takes every mutex --> fork --> parent: gives them back
//                                                          \--> child:  gives them back, and nothing is half done
//
// The core needs none of this: its mutexes are wiped in the child, and what they guard is put right there. What Swift keeps
// (arrays, dictionaries, references) cannot be put right when a thread was in the middle of changing it.
//
// Swift's runtime makes generic types and their tables at their first use, under mutexes of its own, which another thread may
// hold at the fork: a child that needs a new one then waits for ever. So all that a child runs here was run before
// (`rehearseFork`), and the library's own thread rests meanwhile (AwakeMark.swift).

import CPurgeablePressure
import Glibc
import Synchronization

/// An object with mutexes that a forked child will need. A class private to the library: no foreign code runs inside it.
protocol ForkProtected: AnyObject, Sendable {
  /// Takes them in the order in which they nest.
  func lockForFork()
  func unlockAfterFork()
  /// In the child, when all mutexes are free: forgets what is the parent's alone.
  func forgetInChild()
}

extension ForkProtected {
  func forgetInChild() {}

  /// Runs what a child will run, so that the runtime has made all that it needs. For whoever makes the object, before any other
  /// thread knows of it; it has nothing to forget yet.
  func rehearseFork() {
    lockForFork()
    unlockAfterFork()
    forgetInChild()
  }
}

/// Has no mutex.
private final class Rehearsal: ForkProtected {
  func lockForFork() {}
  func unlockAfterFork() {}
}

/// What another target of this package has to protect.
package final class ForkProtection: ForkProtected {
  private let lock, unlock, forget: @Sendable () -> Void

  /// From here on, and for good, each fork calls these: `lock` as the last of all that take a mutex.
  package static func protectDatabases(
    lock: @escaping @Sendable () -> Void, unlock: @escaping @Sendable () -> Void, forgetInChild: @escaping @Sendable () -> Void
  ) {
    let databases = ForkProtection(lock, unlock, forgetInChild)
    ForkGuard.shared.reserve(1)
    databases.rehearseFork()
    ForkGuard.shared.announce(.databases) { $0.append(databases) }
  }

  private init(
    _ lock: @escaping @Sendable () -> Void, _ unlock: @escaping @Sendable () -> Void, _ forget: @escaping @Sendable () -> Void
  ) {
    (self.lock, self.unlock, self.forget) = (lock, unlock, forget)
  }

  func lockForFork() { lock() }
  func unlockAfterFork() { unlock() }
  func forgetInChild() { forget() }
}

/// The order of mutexes: the holder of one may take those further down, never those further up. A fork takes all of them in
/// this order.
enum MutexOrder: Int {
  /// Waited for: the sleep of the library's thread.
  case awake
  /// Caches in the order of their making, then the teller and the loads of each.
  case clients
  /// Who changes several entries at once, and who looks at all.
  case batches
  /// The turn of those who give back many slabs together.
  case turn
  case monitors
  case sources
  /// The thread's notes and its signal. From here on each is taken for a moment, also while one from above is held.
  case thread
  case lists
  case group
  /// The list of open databases.
  case databases
}

/// Runs around every fork(2) of this process (not around vfork and posix_spawn, which do not run pthread_atfork handlers); before
/// a fork behind the program's own handlers, which may wait for a mutex under which another thread uses a cache.
///
/// One fork at a time; it takes the mutexes of all that was announced. `@unchecked Sendable`: `held` is touched only by the
/// thread that has `turn`.
final class ForkGuard: @unchecked Sendable {
  static let shared = ForkGuard()

  /// The objects to protect at one place of the order. Collected before each fork, under no mutex but `turn`. Takes no memory,
  /// except for objects added since `reserve`.
  private final class Announcement: Sendable {
    let collect: @Sendable (inout [any ForkProtected]) -> Void
    init(_ collect: @escaping @Sendable (inout [any ForkProtected]) -> Void) { self.collect = collect }
  }

  private let announcements = InlineArray<10, AtomicLazyReference<Announcement>> { _ in AtomicLazyReference() }
  private let turn = Guarded<Void>(())
  /// Has room for all objects, reserved when each is made: a fork takes no memory, whose lack would end the program.
  private var held: [any ForkProtected] = []
  /// Objects that exist once, beside those that come and go: two sources, the thread and its rest, lists, the group, the turn,
  /// the batches.
  private static let lastingCount = 10
  private let count = Atomic<Int>(lastingCount)

  /// Called once, before there is anything to protect.
  private init() {
    held.reserveCapacity(2 * Self.lastingCount)
    // As a fork does, with nothing to protect.
    turn.lock()
    held.append(Rehearsal())
    release(inChild: true)
    purgeable__set_around_forks(
      { ForkGuard.shared.prepare() }, { ForkGuard.shared.release() }, { ForkGuard.shared.release(inChild: true) })
  }

  /// From here on each fork protects what `collect` adds. One announcement for each place of the order: the first. Takes no
  /// mutex; what `collect` waits for must not take `turn` from here on (`reserve`).
  func announce(_ place: MutexOrder, _ collect: @escaping @Sendable (inout [any ForkProtected]) -> Void) {
    _ = announcements[place.rawValue].storeIfNil(Announcement(collect))
  }

  /// Reserves room for `added` more objects. Under no mutex; not during a fork.
  func reserve(_ added: Int) {
    let needed = count.add(added, ordering: .relaxed).newValue
    turn.lock()
    if held.capacity < needed { held.reserveCapacity(2 * needed) }
    turn.unlock()
  }

  /// Runs `publish`, which lets other threads know of an object, between two forks: one that is under way knows what it protects.
  /// Under no mutex.
  func betweenForks<R>(_ publish: () -> R) -> R {
    turn.lock()
    defer { turn.unlock() }
    return publish()
  }

  /// `gone` objects have ended.
  func dismiss(_ gone: Int) { count.subtract(gone, ordering: .relaxed) }

  private func prepare() {
    turn.lock()
    for place in announcements.indices { announcements[place].load()?.collect(&held) }
    for item in held { item.lockForFork() }
  }

  private func release(inChild: Bool = false) {
    for item in held.reversed() { item.unlockAfterFork() }
    if inChild { for item in held { item.forgetInChild() } }
    // Kept until the mutexes are free: this may drop the last reference to a cache, and the deinitializer of a key is the
    // program's code.
    var released: [any ForkProtected] = []
    swap(&released, &held)
    turn.unlock()
    released.removeAll(keepingCapacity: true)
    turn.lock()
    // The room is there for the next one.
    if held.isEmpty, held.capacity < released.capacity { swap(&released, &held) }
    turn.unlock()
  }
}
