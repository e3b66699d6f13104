// SPDX-License-Identifier: MIT
// A mutex that a forked child can use, and whose order the thread sanitizer can see.

import Glibc

/// A value and the mutex that guards it: what `Mutex` is, with a POSIX mutex inside.
///
/// `Mutex` writes the number of the thread that holds it, which it asks the kernel for once per thread. In a forked child the
/// thread that forked still goes by its number in the parent, and the first time another thread of the child waits for it the
/// kernel refuses and the program is stopped (seen with Swift 6.3.1 on Linux). Under contention it also hands over in code that
/// the thread sanitizer does not watch. When both have gone, this can be `Mutex` again.
///
/// Not recursive. An uncontended use costs two atomic operations, as `Mutex` does, and the value is one pointer further away.
@safe struct Guarded<Value: ~Copyable>: ~Copyable, @unchecked Sendable {
  private let mutex: UnsafeMutablePointer<pthread_mutex_t>
  /// Only touched by the holder of the mutex.
  private let value: UnsafeMutablePointer<Value>

  /// One allocation. `isBusy`: for a mutex that several threads are often after, and hold for less than it takes to sleep and to
  /// wake. It shares no cache line with another, and who finds it taken spins for a moment.
  init(_ value: consuming sending Value, isBusy: Bool = false) {
    let start =
      unsafe (MemoryLayout<pthread_mutex_t>.size + MemoryLayout<Value>.alignment - 1) & ~(MemoryLayout<Value>.alignment - 1)
    let byteCount = start + MemoryLayout<Value>.size
    let memory = unsafe UnsafeMutableRawPointer.allocate(
      byteCount: isBusy ? (byteCount + 63) & ~63 : byteCount,
      alignment: isBusy ? 64 : max(MemoryLayout<pthread_mutex_t>.alignment, MemoryLayout<Value>.alignment))
    unsafe self.mutex = memory.bindMemory(to: pthread_mutex_t.self, capacity: 1)
    var attributes = pthread_mutexattr_t()
    unsafe pthread_mutexattr_init(&attributes)
    if isBusy { unsafe pthread_mutexattr_settype(&attributes, Int32(PTHREAD_MUTEX_ADAPTIVE_NP)) }
    unsafe pthread_mutex_init(mutex, &attributes)
    unsafe pthread_mutexattr_destroy(&attributes)
    unsafe self.value = (memory + start).bindMemory(to: Value.self, capacity: 1)
    unsafe self.value.initialize(to: value)
  }

  deinit {
    unsafe value.deinitialize(count: 1)
    unsafe pthread_mutex_destroy(mutex)
    unsafe UnsafeMutableRawPointer(mutex).deallocate()
  }

  borrowing func withLock<Result: ~Copyable, Failure: Error>(
    _ body: (inout sending Value) throws(Failure) -> sending Result
  ) throws(Failure) -> sending Result {
    unsafe pthread_mutex_lock(mutex)
    defer { unsafe pthread_mutex_unlock(mutex) }
    return try unsafe body(&value.pointee)
  }

  /// Without a scope: for the length of a fork (ForkGuard.swift), and for several at once (CacheShards+Opening.swift).
  borrowing func lock() { unsafe pthread_mutex_lock(mutex) }
  borrowing func unlock() { unsafe pthread_mutex_unlock(mutex) }

  /// For the holder of the mutex (by `lock`), once at a time.
  borrowing func whileHeld<Result>(_ body: (inout Value) -> Result) -> Result {
    // Safe: the caller holds the mutex, so nobody else is in here.
    unsafe body(&value.pointee)
  }

  /// Like `withLock`, but answers nil instead of waiting.
  borrowing func withLockIfAvailable<Result: ~Copyable, Failure: Error>(
    _ body: (inout sending Value) throws(Failure) -> sending Result
  ) throws(Failure) -> sending Result? {
    guard unsafe pthread_mutex_trylock(mutex) == 0 else { return nil }
    defer { unsafe pthread_mutex_unlock(mutex) }
    return try unsafe body(&value.pointee)
  }
}
