// SPDX-License-Identifier: MIT
// A mutex on which threads wait for news, or for a time.

import Glibc

/// A POSIX mutex and its condition, whose times are the monotonic clock's.
@safe package struct WaitableMutex: ~Copyable, @unchecked Sendable {
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private let condition = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)

  package init() {
    unsafe pthread_mutex_init(mutex, nil)
    prepareCondition()
  }

  deinit {
    unsafe pthread_cond_destroy(condition)
    unsafe pthread_mutex_destroy(mutex)
    unsafe condition.deallocate()
    unsafe mutex.deallocate()
  }

  private func prepareCondition() {
    var attributes = pthread_condattr_t()
    unsafe pthread_condattr_init(&attributes)
    unsafe pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    unsafe pthread_cond_init(condition, &attributes)
    unsafe pthread_condattr_destroy(&attributes)
  }

  package borrowing func withLock<Result>(_ body: () -> Result) -> Result {
    lock()
    defer { unlock() }
    return body()
  }

  package borrowing func lock() { unsafe pthread_mutex_lock(mutex) }
  package borrowing func unlock() { unsafe pthread_mutex_unlock(mutex) }

  /// Wakes a thread that waits.
  package borrowing func signal() { unsafe pthread_cond_signal(condition) }

  /// Wakes all threads that wait.
  package borrowing func broadcast() { unsafe pthread_cond_broadcast(condition) }

  /// Waits for a signal, or until a moment of `MonotonicTime` (nil: for ever), with the mutex free meanwhile. For the holder of
  /// the mutex, who then looks for what the wait was for. False when the time is over.
  package borrowing func wait(until moment: UInt64?) -> Bool {
    guard let moment else {
      unsafe pthread_cond_wait(condition, mutex)
      return true
    }
    var time = timespec(tv_sec: Int(moment / 1_000_000_000), tv_nsec: Int(moment % 1_000_000_000))
    return unsafe pthread_cond_timedwait(condition, mutex, &time) != ETIMEDOUT
  }

  /// In a forked child: the parent's thread does not wait here.
  borrowing func forgetWaiters() { prepareCondition() }
}
