// SPDX-License-Identifier: MIT
// Calls that wait for the disk, for tasks: on a thread of their own, since the threads of tasks are few.

import Synchronization

/// Runs `body` on a thread of its own. False where no thread can be made.
package func startThread(_ body: @escaping @Sendable () -> Void) -> Bool { BackgroundCall(body).startTelling() }

/// One such call.
final class BackgroundCall: Teller, @unchecked Sendable {
  private let body: @Sendable () -> Void

  fileprivate init(_ body: @escaping @Sendable () -> Void) { self.body = body }

  override func run() { body() }

  /// Runs `body` on a thread, and suspends the task meanwhile. `body` gets whether the task has been cancelled, to ask now and
  /// then. nil where no thread can be made.
  nonisolated(nonsending) static func run<R: Sendable>(
    _ body: @escaping @Sendable (_ isCancelled: @escaping @Sendable () -> Bool) -> R
  ) async -> R? {
    let cancelled = CancelFlag()
    return await withTaskCancellationHandler {
      await unsafe withUnsafeContinuation { (continuation: UnsafeContinuation<R?, Never>) in
        // Safe: resumed once, by the thread or where there is none.
        let call = BackgroundCall { unsafe continuation.resume(returning: body { cancelled.isSet.load(ordering: .relaxed) }) }
        if !call.startTelling() { unsafe continuation.resume(returning: nil) }
      }
    } onCancel: {
      cancelled.isSet.store(true, ordering: .relaxed)
    }
  }

  private final class CancelFlag: Sendable {
    let isSet = Atomic<Bool>(false)
  }
}
