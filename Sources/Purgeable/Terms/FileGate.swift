// SPDX-License-Identifier: MIT
// One save or restore of a cache at a time, and how the last save went.

import Glibc

/// What a file has: the cache after so many changes, in a format.
struct SavedState: Equatable {
  var changeCount: Int
  var format: UInt32
}

/// `@unchecked Sendable`: what changes is under the mutex.
final class FileGate: ForkProtected, @unchecked Sendable {
  private let mutex = WaitableMutex()
  /// Who saves or restores.
  private var owner: pthread_t?
  /// It is an autosave's save.
  private var isAutosaving = false
  /// Some thread sets or removes an autosave.
  private var isChanging = false
  private var failure: PurgeableError?
  /// The file that was saved or restored last. Where autosaves are set, only theirs.
  private var file: (path: String, state: SavedState)?
  private var autosavePath: String?
  /// Rises when an autosave is set or removed: no save of an earlier one begins from then on.
  private var autosaves = 0

  init() {
    rehearseFork()
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  // MARK: Turns

  /// Waits for its turn, and runs `body`. Throws `busy` where the thread has it already: it is in a closure of the program's that
  /// a save or a restore calls.
  func run<R>(_ operation: String, _ body: () throws(PurgeableError) -> R) throws(PurgeableError) -> R {
    guard enter() else {
      throw PurgeableError(
        .busy, in: operation, explanation: "this thread is saving or restoring this cache, in one of whose closures it is called")
    }
    defer { leave() }
    return try body()
  }

  /// False, without waiting, where the thread has the turn already.
  private func enter() -> Bool {
    let thread = pthread_self()
    return mutex.withLock { () -> Bool in
      while let owner {
        if pthread_equal(owner, thread) != 0 { return false }
        _ = mutex.wait(until: nil)
      }
      owner = thread
      return true
    }
  }

  private func leave() {
    mutex.withLock {
      (owner, isAutosaving) = (nil, false)
      mutex.broadcast()
    }
  }

  /// Whether a save or a restore is at work.
  var isAtWork: Bool { mutex.withLock { owner != nil } }

  // MARK: Saves

  /// Why the last save failed; nil where it did not.
  var lastFailure: PurgeableError? { mutex.withLock { failure } }

  func noteAutosaves(to path: String) { mutex.withLock { autosavePath = path } }

  func noteFile(_ path: String, has state: SavedState) {
    mutex.withLock { if autosavePath ?? path == path { file = (path, state) } }
  }

  /// Whether a file is as the cache is, unless somebody else has written it.
  func isKnown(_ path: String, toHave state: SavedState) -> Bool {
    mutex.withLock { file.map { $0.path == path && $0.state == state } ?? false }
  }

  /// Runs `body`, which is a save, and notes how it went.
  func noting<R>(_ body: () throws(PurgeableError) -> R) throws(PurgeableError) -> R {
    func note(_ error: PurgeableError?) {
      let old = mutex.withLock { exchange(&failure, with: error) }
      // It ends here, under no mutex.
      withExtendedLifetime(old) {}
    }
    do throws(PurgeableError) {
      let result = try body()
      note(nil)
      return result
    } catch {
      note(error)
      throw error
    }
  }

  /// Runs `body`, which sets or ends what saves at intervals, with the number of a new autosave: when the save of the one before
  /// it has ended, and at once on that save's own thread. Waits for no other save, and for no restore.
  func changeAutosave<R>(_ body: (Int) -> R) -> R {
    let thread = pthread_self()
    let number = mutex.withLock {
      while isChanging || isAutosaving && owner.map({ pthread_equal($0, thread) == 0 }) ?? false { _ = mutex.wait(until: nil) }
      isChanging = true
      autosaves += 1
      return autosaves
    }
    defer {
      mutex.withLock {
        isChanging = false
        mutex.broadcast()
      }
    }
    return body(number)
  }

  /// As `run`, if this is still the autosave that is set.
  func run(autosave number: Int, _ body: () -> Void) {
    guard enter() else { return }
    defer { leave() }
    let isSet = mutex.withLock {
      isAutosaving = autosaves == number
      return isAutosaving
    }
    if isSet { body() }
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { mutex.lock() }
  func unlockAfterFork() { mutex.unlock() }
  /// The child has no thread but the one that forked.
  func forgetInChild() {
    mutex.forgetWaiters()
    isChanging = false
    if let owner, pthread_equal(owner, pthread_self()) == 0 { (self.owner, isAutosaving) = (nil, false) }
  }
}
