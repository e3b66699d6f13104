// SPDX-License-Identifier: MIT
// Threads that are joined.

import Glibc
import ToolSupport

/// A thread with one thing to do.
struct StressThread {
  private let thread: pthread_t

  init(_ body: @escaping @Sendable () -> Void) throws(ToolFailure) {
    let work = Work(body)
    var thread = pthread_t()
    let error = unsafe pthread_create(
      &thread, nil,
      { work in
        // Retained below, for this.
        unsafe Unmanaged<Work>.fromOpaque(work!).takeRetainedValue().body()
        return nil
      }, Unmanaged.passRetained(work).toOpaque())
    guard error == 0 else {
      unsafe Unmanaged.passUnretained(work).release()
      throw ToolFailure("no thread: \(SystemError.text(error))")
    }
    self.thread = thread
  }

  /// Waits for its end.
  func join() { pthread_join(thread, nil) }

  private final class Work: Sendable {
    let body: @Sendable () -> Void
    init(_ body: @escaping @Sendable () -> Void) { self.body = body }
  }
}
