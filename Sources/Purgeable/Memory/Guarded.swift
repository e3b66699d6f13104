// SPDX-License-Identifier: MIT
// A mutex that a forked child can use, and whose order the thread sanitizer can see.

import Glibc

/// A value and the mutex that guards it: what `Mutex` is, with a POSIX mutex inside.
///
/// `Mutex` writes the number of the thread that holds it, which it asks the kernel for once per thread. In a forked child the thread that
/// forked still goes by its number in the parent, and the first time another thread of the child waits for it the kernel refuses
/// and the program is stopped (seen with Swift 6.3.1 on Linux). Under contention it also hands over in code that the thread
/// sanitizer does not watch. When both have gone, this can be `Mutex` again.
///
/// Not recursive. An uncontended use costs two atomic operations, as `Mutex` does, and the value is one pointer further away.
@safe struct Guarded<Value: ~Copyable>: ~Copyable, @unchecked Sendable {
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>
  /// Only touched by the holder of the mutex.
  private let value: UnsafeMutablePointer<Value>

  init(_ value: consuming sending Value) {
    unsafe self.mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
    unsafe pthread_mutex_init(mutex, nil)
    unsafe self.value = UnsafeMutablePointer<Value>.allocate(capacity: 1)
    unsafe self.value.initialize(to: value)
  }

  deinit {
    unsafe value.deinitialize(count: 1)
    unsafe value.deallocate()
    unsafe pthread_mutex_destroy(mutex)
    unsafe mutex.deallocate()
  }

  borrowing func withLock<Result: ~Copyable, Failure: Error>(
    _ body: (inout sending Value) throws(Failure) -> sending Result
  ) throws(Failure) -> sending Result {
    unsafe pthread_mutex_lock(mutex)
    defer { unsafe pthread_mutex_unlock(mutex) }
    return try unsafe body(&value.pointee)
  }

  /// Without a scope, for the length of a fork (ForkGuard.swift).
  borrowing func lock() { unsafe pthread_mutex_lock(mutex) }
  borrowing func unlock() { unsafe pthread_mutex_unlock(mutex) }

  /// As `withLock`, but answers nil where that would wait.
  borrowing func withLockIfAvailable<Result: ~Copyable, Failure: Error>(
    _ body: (inout sending Value) throws(Failure) -> sending Result
  ) throws(Failure) -> sending Result? {
    guard unsafe pthread_mutex_trylock(mutex) == 0 else { return nil }
    defer { unsafe pthread_mutex_unlock(mutex) }
    return try unsafe body(&value.pointee)
  }
}
