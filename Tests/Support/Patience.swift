// SPDX-License-Identifier: MIT
// Waiting in the process that all tests share.

import Dispatch

extension TestRun {
  /// Waits until a condition holds, and asks a hundred times a second. False when it still does not hold after `seconds`. Unlike
  /// `patiently` it leaves its thread to other tests meanwhile: the pool has as many threads as there are processors.
  public static func comes(seconds: Int = 120, _ holds: () -> Bool) async -> Bool {
    for _ in 0..<seconds * 100 {
      if holds() { return true }
      try? await Task.sleep(nanoseconds: 10_000_000)
    }
    return holds()
  }
}

extension DispatchSemaphore {
  /// Waits for a signal. False when none has come after `seconds`: a test that waits for ever says nothing.
  @discardableResult
  public func comes(seconds: Int = 120) -> Bool { wait(timeout: .now() + .seconds(seconds)) == .success }
}
