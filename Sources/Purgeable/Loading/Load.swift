// SPDX-License-Identifier: MIT
// The parts of a load: the key, who loads it, who waits. LoadTable.swift draws how they hang together.
//
// Everything that can change here, unless it is atomic, is guarded by the mutex of the table.
//
// None of it is generic but the key itself. Code of this library that is compiled for any type asks the runtime for each generic
// type that it names, each time: a load would take ten times as long.

import Glibc
import Synchronization

/// The right to keep what was loaded: lost when something else is stored under the key, or the key is removed, after the load
/// began.
///
/// Without a race, because both sides use the mutex under which the cache stores: that of the key's shard. Who overtakes raises
/// the count before taking that mutex. Who keeps a loaded value calls `take` while holding it. So either the loaded value is
/// stored first, and what overtakes replaces or removes it; or `take` sees the count and refuses. For a load that begins between
/// the two, and finds no value yet, the count is raised again after the mutex. Of two loads of one key the first to take has
/// overtaken the other.
@usableFromInline
struct LoadPermit: Sendable {
  private let key: LoadedKey
  private let count: Int

  /// From now on whatever overtakes the key counts. Made before the load begins.
  init(_ key: LoadedKey) {
    self.key = key
    count = key.overtakings.load(ordering: .relaxed)
  }

  /// Whether nothing has overtaken the load; its value may have been kept already. Who asks between the two, and looks for a
  /// value without the mutex, may find none: he has to wait for this load, and not to begin another.
  var isCurrent: Bool { key.overtakings.load(ordering: .relaxed) - count < LoadedKey.overtaking }

  /// Whether `take` would say yes now.
  var mayBeTaken: Bool { key.overtakings.load(ordering: .relaxed) == count }

  /// Whether nothing has come since `take` said yes.
  var isKept: Bool { key.overtakings.load(ordering: .relaxed) == count + 1 }

  /// Whether the loaded value may be stored now. Called once, under the mutex under which it is stored then.
  ///
  /// Acquire and release pair with `LoadedKey.overtake`.
  @usableFromInline
  func take() -> Bool {
    key.overtakings.compareExchange(expected: count, desired: count + 1, ordering: .acquiringAndReleasing).exchanged
  }

  /// The same where a second tier is asked last.
  func take(announcing announce: (() -> Bool)?) -> Bool { take() && (announce?() ?? true) }
}

/// The outcome of a flight that loaded nothing: who waits loads by itself.
@usableFromInline
struct NothingLoaded: Error {}

/// A key that is being loaded, and its flights, until the last of them has ended.
@usableFromInline
class LoadedKey: @unchecked Sendable {
  let hash: Int
  /// What has come between the key's loads and their end: `overtaking` for each store and removal of the program's, 1 for each
  /// loaded value that was kept.
  let overtakings = Atomic<Int>(0)
  static let overtaking = 1 << 32
  /// The table numbers keys as they come. 0: not in the table yet.
  var number: UInt64 = 0
  /// The next older key with the same hash.
  var next: LoadedKey?
  var isListed = false
  var youngest: Flight?

  @usableFromInline init(hash: Int) { self.hash = hash }

  /// Partner: `LoadPermit.take`.
  func overtake() { overtakings.add(Self.overtaking, ordering: .acquiringAndReleasing) }

  func add(_ flight: Flight) { (flight.older, youngest) = (youngest, flight) }

  func remove(_ flight: Flight) {
    var younger: Flight?
    var next = youngest
    while let one = next, one !== flight { (younger, next) = (one, one.older) }
    if let younger { younger.older = flight.older } else { youngest = flight.older }
    flight.older = nil
  }

  /// The youngest flight of which `isMeant` says so.
  func flight(_ isMeant: (Flight) -> Bool) -> Flight? {
    var next = youngest
    while let flight = next, !isMeant(flight) { next = flight.older }
    return next
  }
}

/// The key of a table whose keys are of this type.
@usableFromInline
final class TypedLoadedKey<Key: Hashable & Sendable>: LoadedKey, @unchecked Sendable {
  @usableFromInline let key: Key

  /// Compiled into callers, who know the type.
  @inlinable
  init(_ key: Key) {
    self.key = key
    super.init(hash: key.hashValue)
  }
}

/// The load of one key by one call of the program's closure, and who waits for it.
@usableFromInline
final class Flight: @unchecked Sendable {
  let loaded: LoadedKey
  let call: LoadCall
  let version: String?
  let isLookUp: Bool
  /// Of a load within a load of the same key: nobody joins it.
  let isInner: Bool
  @usableFromInline let permit: LoadPermit
  /// How many files had been restored when it began.
  let restoreCount: Int
  /// The key's next older one.
  var older: Flight?
  var waiters: [LoadWaiter] = []
  /// nil until the load has ended; the same from then on. Read by who waited, after the wait. A value is of the cache's type.
  @usableFromInline var outcome: Result<Any?, any Error>?

  init(_ loaded: LoadedKey, _ call: LoadCall, _ terms: LoadTerms, isInner: Bool, restoreCount: Int) {
    self.loaded = loaded
    self.call = call
    (version, isLookUp) = (terms.version, terms.isLookUp)
    (self.isInner, self.restoreCount) = (isInner, restoreCount)
    permit = LoadPermit(loaded)
  }

  func addWaiter(blocks: Bool) -> LoadWaiter {
    let waiter = LoadWaiter(blocks: blocks)
    waiter.position = waiters.count
    waiters.append(waiter)
    call.waiterCount += 1
    return waiter
  }

  func remove(_ waiter: LoadWaiter) {
    let last = waiters.removeLast()
    if last !== waiter {
      waiters[waiter.position] = last
      last.position = waiter.position
    }
    call.waiterCount -= 1
  }

  /// In a forked child (`LoadTable.forgetInChild`).
  func forgetWaiters() {
    var at = 0
    while at < waiters.count {
      waiters[at].isOver = true
      waiters[at].wakeThread()
      at += 1
    }
    waiters = []
  }
}

/// A call of the program's closure, for one key or many.
@usableFromInline
final class LoadCall: @unchecked Sendable {
  /// nil for a load in a task.
  let thread: pthread_t?
  var waiterCount = 0
  var task: Task<Void, Never>?
  /// Nobody waits any more: later askers load anew.
  let isCancelled = Atomic<Bool>(false)
  /// Of a load in a task.
  let hasEnded = Atomic<Bool>(false)

  init(thread: pthread_t?) { self.thread = thread }

  @usableFromInline static var ofThisThread: LoadCall { LoadCall(thread: pthread_self()) }
}

/// One asker of one key, while it waits. `@safe`: the semaphore is its own, and lives as long.
@safe final class LoadWaiter: @unchecked Sendable {
  /// Of an asker that blocks its thread. A semaphore, because a forked child may post one that a thread of its parent waits for.
  private let semaphore: UnsafeMutablePointer<sem_t>?
  var continuation: UnsafeContinuation<Void, Never>?
  var position = 0
  /// The load has ended, or the asker has left.
  var isOver = false
  /// Read by the asker when it is over, and not changed after that.
  var hasLeft = false

  init(blocks: Bool) {
    guard blocks else {
      unsafe semaphore = nil
      return
    }
    let memory = UnsafeMutablePointer<sem_t>.allocate(capacity: 1)
    unsafe sem_init(memory, 0, 0)
    unsafe semaphore = memory
  }

  deinit {
    guard let semaphore = unsafe semaphore else { return }
    unsafe sem_destroy(semaphore)
    unsafe semaphore.deallocate()
  }

  /// Blocks the thread until the load has ended.
  func block() {
    guard let semaphore = unsafe semaphore else { return }
    // Interrupted by a signal handler: waits on.
    while unsafe sem_wait(semaphore) != 0 {}
  }

  /// Called once, under no mutex, by who made it over.
  func wake() {
    wakeThread()
    unsafe continuation?.resume()
  }

  /// As `wake`, in a forked child, where the parent's tasks do not go on.
  func wakeThread() {
    if let semaphore = unsafe semaphore { unsafe sem_post(semaphore) }
  }
}

/// An asker's place at a key's load.
@usableFromInline
struct LoadSeat: Sendable {
  /// Of the key among the asker's.
  let index: Int
  @usableFromInline let flight: Flight
  /// nil where the asker's own thread loads.
  let waiter: LoadWaiter?
  /// Whether the asker itself has to load, or to start the task that does.
  @usableFromInline let isOwn: Bool
}

/// The loads that the present task runs inside of.
@usableFromInline
final class EnclosingLoads: Sendable {
  @TaskLocal static var current: EnclosingLoads?

  let calls: [LoadCall]

  /// Loads that have ended are left out: tasks that outlive the load that began them, and load again, would make an endless list.
  init(_ call: LoadCall, _ outer: EnclosingLoads?) {
    calls = (outer?.calls.filter { !$0.hasEnded.load(ordering: .relaxed) } ?? []) + [call]
  }

  func contains(_ other: LoadCall) -> Bool { calls.contains { $0 === other } }
}
