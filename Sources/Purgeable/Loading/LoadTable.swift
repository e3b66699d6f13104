// SPDX-License-Identifier: MIT
// The keys that a cache is loading right now: one load a key, for all who ask.
//
//   hash --> key, older key with this hash, ...
//             |-- flight of a thread --> waiters (semaphores)         synchronous askers wait for this one only
//             |-- flight of a task ----> waiters (continuations)      async askers wait for this one, else for the thread's
//             +-- overtakings: stores and removals that came while something was loading (LoadPermit)
//   hash --> note: a load found nothing (AbsentKeys)
//
//   asker    no value --> joins the key's flight, or begins one and looks again: a load may have ended in between
//            one's own flight is never waited for (same thread, or a task inside of the load): it loads within
//   end      the value is stored if the permit holds --> the flight leaves the table, its outcome is noted --> waiters wake
//
// One mutex for the table, held for a few steps. The program's code runs under no mutex: keys are hashed before, and compared one
// by one between two looks at the table, as in Cache/Keys/KeySearch.swift; loads, stores and resumed askers come when the mutex
// has been released. Objects that might end a key or a value are kept alive by who releases the mutex.

import Synchronization

private struct LoadBooks {
  /// The youngest key of each hash.
  var youngest: [Int: LoadedKey] = [:]
  var lastNumber: UInt64 = 0
  /// In a forked child: what its parents were loading. Kept, because the end of a key is the program's code.
  var forgotten: [[Int: LoadedKey]] = []
  /// While a file is restored.
  var restoring: OvertakenKeys?
}

/// Of one cache. `Loading` has what caches do with it.
@usableFromInline
final class LoadTable<Key: Hashable & Sendable>: AbsenceKeeper {
  private let books = Guarded(LoadBooks())
  /// Four times the number of keys in the table, 2 more while a file is restored, and 1 more where there is a table of absent
  /// keys. Zero for a cache that loads nothing: then stores and removals look no further.
  private let activity = Atomic<Int>(0)
  /// Made, under the mutex, when the first absent key is remembered.
  private let lazyAbsent = AtomicLazyReference<AbsentKeys<Key>>()
  /// Of absent keys.
  let absentBytes = ByteCount()

  let loadCount = Atomic<Int>(0)
  let failureCount = Atomic<Int>(0)
  let nanoseconds = Atomic<UInt64>(0)
  let sharedCount = Atomic<Int>(0)
  /// Values that are being loaded anew, and how many may be.
  private let refreshCount = Atomic<Int32>(0)
  private let refreshLimit: Int32
  let absentCount = Atomic<Int>(0)
  /// Files that were restored. Changed under the mutex.
  private let restoreCount = Atomic<Int>(0)

  init(refreshLimit: Int) { self.refreshLimit = Int32(clamping: refreshLimit) }

  /// Inlined, and so made for each key's type.
  @inline(__always) private func locked<R>(_ body: (inout LoadBooks) -> R) -> R {
    books.lock()
    defer { books.unlock() }
    return books.whileHeld(body)
  }

  // MARK: Keys

  /// Runs `body`, under the mutex, for a key in the table; puts `fresh` there if the key is not. Without `fresh` it is left at
  /// that.
  private func withKey(_ key: Key, hash: Int, fresh: LoadedKey?, _ body: (LoadedKey) -> Void) {
    var match: LoadedKey?
    var compared: UInt64 = 0
    while true {
      let candidate = locked { books -> LoadedKey? in
        if let match, match.isListed {
          body(match)
          return nil
        }
        // The oldest that was not compared yet.
        var oldest: LoadedKey?
        var next = books.youngest[hash]
        while let loaded = next, loaded.number > compared { (oldest, next) = (loaded, loaded.next) }
        if let oldest { return oldest }
        guard let fresh else { return nil }
        books.lastNumber += 1
        fresh.number = books.lastNumber
        fresh.next = books.youngest.updateValue(fresh, forKey: hash)
        fresh.isListed = true
        // Partner: `isIdle`.
        activity.add(4, ordering: .relaxed)
        body(fresh)
        return nil
      }
      guard let candidate else { return }
      compared = candidate.number
      // Under no mutex: the program's code. Safe: all keys of the table are of this type.
      match = unsafe unsafeDowncast(candidate, to: TypedLoadedKey<Key>.self).key == key ? candidate : nil
    }
  }

  /// Under the mutex. The flight keeps the key alive.
  private func end(_ flight: Flight, in books: inout LoadBooks) {
    let loaded = flight.loaded
    loaded.remove(flight)
    guard loaded.youngest == nil, loaded.isListed else { return }
    loaded.isListed = false
    activity.subtract(4, ordering: .relaxed)
    // A listed key is there.
    let at = books.youngest.index(forKey: loaded.hash)!
    var younger = books.youngest.values[at]
    if younger !== loaded {
      while let next = younger.next, next !== loaded { younger = next }
      younger.next = loaded.next
    } else if let next = loaded.next {
      books.youngest.values[at] = next
    } else {
      books.youngest.remove(at: at)
    }
    loaded.next = nil
    // After many loads at a time, the memory goes back.
    if books.youngest.isEmpty, books.youngest.capacity > 1024 { books.youngest = [:] }
  }

  // MARK: Askers

  /// Gives the asker a place at the key's load, or has it load.
  @usableFromInline
  func join(
    _ key: TypedLoadedKey<Key>, _ index: Int, _ terms: LoadTerms = LoadTerms(), for call: LoadCall, within outer: EnclosingLoads?
  ) -> LoadSeat {
    var seat: LoadSeat?
    withKey(key.key, hash: key.hash, fresh: key) { loaded in
      let isTask = call.thread == nil
      let isWithin = loaded.flight { isTask ? outer?.contains($0.call) ?? false : $0.call.thread == call.thread } != nil
      // Who comes after a store or a removal does not get what was loaded before it, and nobody gets another version, or waits
      // for one who looks in fewer places.
      func open(ofTasks: Bool) -> Flight? {
        loaded.flight {
          ($0.call.thread == nil) == ofTasks && !$0.isInner && !$0.call.isCancelled.load(ordering: .relaxed)
            && $0.permit.isCurrent
            && VersionLimit.isSame($0.version, terms.version) && (terms.isLookUp || !$0.isLookUp)
        }
      }
      if !isWithin, let open = (isTask ? open(ofTasks: true) : nil) ?? open(ofTasks: false) {
        seat = LoadSeat(index: index, flight: open, waiter: open.addWaiter(blocks: !isTask), isOwn: false)
        return
      }
      let flight = Flight(loaded, call, terms, isInner: isWithin, restoreCount: restoreCount.load(ordering: .relaxed))
      loaded.add(flight)
      seat = LoadSeat(index: index, flight: flight, waiter: isTask ? flight.addWaiter(blocks: false) : nil, isOwn: true)
    }
    guard let seat else { preconditionFailure("LoadTable: a key that was put there is not there") }
    return seat
  }

  /// Notes the task that loads, which is cancelled when nobody waits any more. Called by an asker that waits.
  func note(_ task: Task<Void, Never>, of call: LoadCall) { locked { _ in call.task = task } }

  /// Blocks the thread until the load has ended. In a forked child, nobody may be left to wake it from one that had ended.
  @usableFromInline
  func block(_ seat: LoadSeat) {
    guard let waiter = seat.waiter else { return }
    if !locked({ _ in waiter.isOver }) { waiter.block() }
  }

  /// Waits, without blocking a thread, until the load has ended or the asker has left.
  nonisolated(nonsending) func wait(_ seat: LoadSeat) async {
    guard let waiter = seat.waiter else { return }
    await unsafe withUnsafeContinuation { continuation in
      // Safe: resumed once, here or by who makes the waiter over.
      let isOver = locked { _ in
        if !waiter.isOver { unsafe waiter.continuation = continuation }
        return waiter.isOver
      }
      if isOver { unsafe continuation.resume() }
    }
  }

  /// The asker waits no more. The last one to leave cancels a load in a task.
  func leave(_ seat: LoadSeat) {
    guard let waiter = seat.waiter else { return }
    let call = seat.flight.call
    let (hasLeft, task) = locked { _ -> (Bool, Task<Void, Never>?) in
      if waiter.isOver { return (false, nil) }
      (waiter.isOver, waiter.hasLeft) = (true, true)
      seat.flight.remove(waiter)
      guard call.thread == nil, call.waiterCount == 0 else { return (true, nil) }
      call.isCancelled.store(true, ordering: .relaxed)
      return (true, call.task)
    }
    // Under no mutex: the program's code.
    task?.cancel()
    if hasLeft { waiter.wake() }
  }

  /// A load has ended: who waits gets the outcome, and later askers find no flight.
  @usableFromInline
  func end(_ flight: Flight, _ outcome: Result<Any?, any Error>) {
    let waiters = locked { books in
      flight.outcome = outcome
      end(flight, in: &books)
      let waiters = flight.waiters
      flight.waiters = []
      flight.call.waiterCount -= waiters.count
      for waiter in waiters { waiter.isOver = true }
      return waiters
    }
    for waiter in waiters { waiter.wake() }
  }

  /// For tests: how many loads of the key have not ended, and how many askers wait for them.
  func counts(of key: Key) -> (flights: Int, waiters: Int) {
    var counts = (flights: 0, waiters: 0)
    withKey(key, hash: key.hashValue, fresh: nil) { loaded in
      _ = loaded.flight { flight in
        counts = (counts.flights + 1, counts.waiters + flight.waiters.count)
        return false
      }
    }
    return counts
  }

  // MARK: Overtaking

  /// Whether there is nothing to overtake. One relaxed load, which is enough:
  /// - Who stores or removes after a load began, and knows so (by a mutex, a message, what it read), sees the key's addition,
  ///   which happened before. Who does not know may as well have come before the load.
  /// - Who sees that the key is gone comes after the load's store: in the order of the mutex under which both store, it cannot
  ///   be first, since it would then have come before the subtraction that it saw.
  private var isIdle: Bool { activity.load(ordering: .relaxed) == 0 }

  /// What is being loaded for the key will not be kept. Called by everybody but `keep` before a key is stored or removed, and
  /// again after it, for loads that began in between and found no value; under no mutex. Costs a cache that loads nothing one
  /// relaxed load.
  @usableFromInline @inline(__always)
  func overtake(_ key: Key) {
    if !isIdle { overtakeListed(key) }
  }

  private func overtakeListed(_ key: Key) {
    let hash = key.hashValue
    if activity.load(ordering: .relaxed) > 3 { withKey(key, hash: hash, fresh: nil) { $0.overtake() } }
    if isRestoring { noteNewer(hash) }
    endAbsence(hash)
  }

  /// As `overtake`, for all keys; again, too, when they are removed.
  func overtakeAll() {
    if isIdle { return }
    locked { books in
      books.restoring?.noteAll()
      Self.forEach(books) { $0.overtake() }
    }
    forgetAbsent(endsKeys: true)
  }

  private static func forEach(_ books: LoadBooks, _ body: (LoadedKey) -> Void) {
    for first in books.youngest.values {
      var next: LoadedKey? = first
      while let loaded = next {
        body(loaded)
        next = loaded.next
      }
    }
  }

  /// Runs `body`, which restores a file. Meanwhile stores and removals are noted. One at a time.
  func whileRestoring<E: Error>(_ keys: OvertakenKeys, _ body: () throws(E) -> Void) throws(E) {
    locked {
      $0.restoring = keys
      activity.add(2, ordering: .relaxed)
    }
    defer {
      locked {
        restoreCount.add(1, ordering: .relaxed)
        // In a forked child it has ended.
        if $0.restoring === keys { activity.subtract(2, ordering: .relaxed) }
        $0.restoring = nil
      }
    }
    try body()
  }

  var isRestoring: Bool { activity.load(ordering: .relaxed) & 2 != 0 }

  /// Whether a file is restored, or was since the load began.
  func hasRestored(since flight: Flight) -> Bool {
    locked { $0.restoring != nil || restoreCount.load(ordering: .relaxed) != flight.restoreCount }
  }

  /// A load has found something, or that there is nothing: that is newer than what is restored of a file from now on.
  @usableFromInline @inline(__always)
  func noteFound(_ flight: Flight) {
    if isRestoring { noteNewer(flight.loaded.hash) }
  }

  @usableFromInline
  func noteNewer(_ hash: Int) { locked { $0.restoring?.note(hash) } }

  // MARK: Absent keys

  /// Whether any was ever remembered: a look at one word. What follows is in functions of its own, since a function asks the
  /// runtime for the types that it names as soon as it is called.
  private var hasAbsent: Bool { activity.load(ordering: .relaxed) & 1 != 0 }

  /// Whether the key is remembered as one without a value, by a load of any version where `version` is nil. Counts the answer.
  @usableFromInline
  func isAbsent(_ key: Key, version: String? = nil, at now: @autoclosure () -> UInt64) -> Bool {
    hasAbsent && isNoted(key, at: now) { version == nil || VersionLimit.isSame(version, $0) }
  }

  /// Whether a load of the same version, or of the same want of one, has found nothing: another may find something.
  @usableFromInline
  func hasFoundNothing(_ key: Key, version: String?, at now: @autoclosure () -> UInt64) -> Bool {
    hasAbsent && isNoted(key, at: now) { VersionLimit.isSame(version, $0) }
  }

  private func isNoted(_ key: Key, at now: () -> UInt64, by isMeant: (_ version: String?) -> Bool) -> Bool {
    guard let absent = lazyAbsent.load() else { return false }
    let hash = key.hashValue
    guard absent.mayHave(hash) else { return false }
    let now = now()
    let (noted, stale) = locked { _ in (absent.note(hash, at: now), absent.removeStale()) }
    withExtendedLifetime(stale) {}
    // Under no mutex: the program's code.
    guard let noted, isMeant(noted.version), noted.key == key else { return false }
    absentCount.add(1, ordering: .relaxed)
    return true
  }

  /// The key's load found nothing, which is remembered until `end`, if nothing has overtaken the load. A key of too many bytes is
  /// not remembered. `mostBytes`: to be taken for all of them. `hasTaken`: the permit.
  func noteAbsent(
    _ key: Key, _ flight: Flight, until end: UInt64, ownByteCount keyByteCount: Int, mostBytes: Int, hasTaken: Bool
  ) {
    let ownByteCount = keyByteCount + (flight.version?.utf8.count ?? 0)
    guard ownByteCount <= AbsentKeys<Key>.mostOwnBytes else { return }
    let note = AbsentKeys<Key>.Note(
      key: key, version: flight.version, end: end, ownByteCount: ownByteCount)
    let ended = locked { _ -> (AbsentKeys<Key>.Note?, [AbsentKeys<Key>.Note?]) in
      guard let absent = lazyAbsent.load() ?? makeAbsent(mostBytes) else { return (nil, []) }
      let stale = absent.removeStale()
      guard absent.byteCount(with: ownByteCount) <= mostBytes, hasTaken ? flight.permit.isKept : flight.permit.take()
      else { return (nil, stale) }
      return (absent.add(note, flight.loaded.hash), stale)
    }
    withExtendedLifetime(ended) {}
  }

  /// Under the mutex, so that a fork finds the table there or not.
  private func makeAbsent(_ mostBytes: Int) -> AbsentKeys<Key>? {
    guard let absent = AbsentKeys<Key>(mostBytes: mostBytes, absentBytes) else { return nil }
    absent.rehearseFork()
    activity.add(1, ordering: .relaxed)
    return lazyAbsent.storeIfNil(absent)
  }

  /// There is a value.
  @usableFromInline
  func endAbsence(_ flight: Flight) { endAbsence(flight.loaded.hash) }

  /// There is a value, or the program says that there is none.
  func endAbsence(_ hash: Int) {
    if hasAbsent { endNoted(hash) }
  }

  private func endNoted(_ hash: Int) {
    guard let absent = lazyAbsent.load(), absent.mayHave(hash) else { return }
    let ended = locked { _ in (absent.end(hash), absent.removeStale()) }
    withExtendedLifetime(ended) {}
  }

  /// Forgets all absent keys. `endsKeys`: false where code of the program must not run. Then keys whose end may be such code end
  /// with the next call that asks for one, stores, or remembers more.
  func forgetAbsent(endsKeys: Bool) {
    guard let absent = lazyAbsent.load() else { return }
    let ended = locked { _ in
      absent.forgetAll()
      return endsKeys || Self.keysEndPlainly ? absent.removeStale() : []
    }
    withExtendedLifetime(ended) {}
  }

  /// Whether the end of a key is Swift's own code.
  private static var keysEndPlainly: Bool { _isPOD(Key.self) || Key.self == String.self || Key.self == [UInt8].self }

  // MARK: Refreshes

  @usableFromInline var mayRefresh: Bool { refreshCount.load(ordering: .relaxed) < refreshLimit }

  /// False where as many are under way as may be.
  func beginRefresh() -> Bool {
    if refreshCount.add(1, ordering: .relaxed).newValue <= refreshLimit { return true }
    endRefresh()
    return false
  }

  func endRefresh() { refreshCount.subtract(1, ordering: .relaxed) }

  // MARK: Numbers

  /// A call of the program's closure has ended.
  func count(_ time: UInt64, failed: Bool) {
    loadCount.add(1, ordering: .relaxed)
    if failed { failureCount.add(1, ordering: .relaxed) }
    // Times of a clock that leaps may sum up to anything.
    nanoseconds.wrappingAdd(time, ordering: .relaxed)
  }

  /// An asker got what another one's load made.
  @usableFromInline
  func countShared() { sharedCount.add(1, ordering: .relaxed) }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { books.lock() }
  func unlockAfterFork() { books.unlock() }

  /// The parent's loads and those who wait for them are not here. The thread that forked may be inside of a load: that one goes
  /// on, alone, and what it makes is returned and not kept. Keys that another thread was loading for it, it loads itself.
  ///
  /// Of no type that the runtime makes at its first use (ForkGuard.swift): hence loops by number, and an append in advance, which
  /// `rehearseFork` makes.
  func forgetInChild() {
    locked { books in
      Self.forEach(books) { loaded in
        loaded.overtake()
        loaded.isListed = false
        var next = loaded.youngest
        while let flight = next {
          flight.forgetWaiters()
          next = flight.older
        }
      }
      if !books.youngest.isEmpty || books.forgotten.isEmpty { books.forgotten.append(books.youngest) }
      books.youngest = [:]
      lazyAbsent.load()?.forgetAll()
      books.restoring?.noteAll()
      books.restoring = nil
      activity.store(lazyAbsent.load() == nil ? 0 : 1, ordering: .relaxed)
      refreshCount.store(0, ordering: .relaxed)
    }
  }
}
