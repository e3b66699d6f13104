// SPDX-License-Identifier: MIT
// What a cache does again and again for the program: on a thread of the cache's own, since it is the program's code that runs.

import Glibc
import Synchronization

/// Works that come back at intervals, by the machine's clock, one after the other on one thread. There is a thread while there is
/// a work. It keeps this object alive, and nothing else: a work must not keep the owner alive.
///
/// `@unchecked Sendable`: what changes is under the mutex.
final class IntervalThread: Teller, ForkProtected, @unchecked Sendable {
  private struct Work {
    let number: Int
    let interval: UInt64
    var due: UInt64
    let body: @Sendable () -> Void
  }

  private let mutex = WaitableMutex()
  private var works: [Work] = []
  private var lastNumber = 0
  /// The process that has the thread; 0 for none.
  private var owner: pid_t = 0

  override init() {
    super.init()
    rehearseFork()
    ForkGuard.shared.reserve(1)
  }

  deinit { ForkGuard.shared.dismiss(1) }

  // MARK: Works

  /// Whether a work that was set still is.
  final class SetMark: Sendable { let isSet = Atomic<Bool>(true) }
  /// The one that is set and removed.
  private var setWork: (number: Int, mark: SetMark)?

  /// What has ended. What the closures hold may be the program's, and end with them: under no mutex, and in no turn of anybody.
  typealias Ended = [@Sendable () -> Void]

  /// Sets a work, in place of the one that was set.
  @discardableResult
  func set(every interval: Duration, _ body: @escaping @Sendable (SetMark) -> Void) -> Ended {
    let mark = SetMark()
    // Set before it can run: it may be what sets another one, or none.
    let old = mutex.withLock { exchange(&setWork, with: (append(every: interval) { body(mark) }, mark)) }
    resume()
    return end(old)
  }

  @discardableResult
  func unset() -> Ended { end(mutex.withLock { exchange(&setWork, with: nil) }) }

  private func end(_ work: (number: Int, mark: SetMark)?) -> Ended {
    guard let work else { return [] }
    work.mark.isSet.store(false, ordering: .relaxed)
    return remove(work.number)
  }

  /// Runs `body` after each interval from now on. Returns the work's number.
  func add(every interval: Duration, _ body: @escaping @Sendable () -> Void) -> Int {
    let number = mutex.withLock { append(every: interval, body) }
    resume()
    return number
  }

  /// With the mutex.
  private func append(every interval: Duration, _ body: @escaping @Sendable () -> Void) -> Int {
    let interval = max(1, interval.wholeNanoseconds)
    lastNumber += 1
    works.append(Work(number: lastNumber, interval: interval, due: MonotonicTime.now + interval, body: body))
    mutex.signal()
    return lastNumber
  }

  /// Ends a work; nil for all. One that runs now goes on to its end.
  @discardableResult
  func remove(_ number: Int?) -> Ended {
    let ended = mutex.withLock {
      let ended = works.filter { number == nil || $0.number == number }
      works.removeAll { number == nil || $0.number == number }
      mutex.signal()
      return ended.map(\.body)
    }
    // Optimized, what nobody uses any more ends where it was used last, which may be before the mutex is free.
    withExtendedLifetime(ended) {}
    return ended
  }

  /// Starts the thread if there is work and none: in a forked child, or where none could be started before.
  func resume() {
    let isNeeded = mutex.withLock { () -> Bool in
      guard !works.isEmpty, owner != getpid() else { return false }
      owner = getpid()
      return true
    }
    if isNeeded, !startTelling() { mutex.withLock { owner = 0 } }
  }

  /// Whether this process has the thread.
  var isRunning: Bool { mutex.withLock { owner == getpid() } }

  // MARK: The thread

  override func run() {
    let process = getpid()
    while let (number, body) = awaitNext(process) {
      body()
      rest(number)
    }
  }

  /// A work that takes longer than its interval rests for one before it comes again, so that others come too.
  private func rest(_ number: Int) {
    mutex.withLock {
      guard let at = works.firstIndex(where: { $0.number == number }) else { return }
      let now = MonotonicTime.now
      if works[at].due <= now { works[at].due = now + works[at].interval }
    }
  }

  /// The next work that is due; nil where there is none left, and in a child that a work has forked.
  private func awaitNext(_ process: pid_t) -> (number: Int, body: @Sendable () -> Void)? {
    mutex.withLock {
      while getpid() == process {
        guard let next = works.indices.min(by: { works[$0].due < works[$1].due }) else {
          owner = 0
          return nil
        }
        let (now, due) = (MonotonicTime.now, works[next].due)
        if due <= now {
          works[next].due = due + works[next].interval
          return (works[next].number, works[next].body)
        }
        _ = mutex.wait(until: due)
      }
      return nil
    }
  }

  // MARK: Forks (ForkGuard.swift)

  func lockForFork() { mutex.lock() }
  func unlockAfterFork() { mutex.unlock() }
  /// The child does not have the thread that waits. `resume` starts another one.
  func forgetInChild() { mutex.forgetWaiters() }
}
