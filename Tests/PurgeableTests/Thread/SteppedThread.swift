// SPDX-License-Identifier: MIT
// The library's thread by a clock that stands still until the test moves it.

import Testing
import ToolSupport

@testable import Purgeable

/// For exit tests, made before there is any work for the thread.
struct SteppedThread {
  private let clock = SetClock()

  init() { Maintainer.shared.clock = clock.monotonic }

  /// Moves the clock, and waits until the thread has done all that is due by the new time.
  func advance(seconds: Double) {
    clock.advance(seconds: seconds)
    let before = Maintainer.shared.wakeUps.load(ordering: .relaxed)
    // The first wake-up that is counted from here on begins after the step, and has ended when the second is counted.
    let isDone = patiently {
      _ = Maintainer.shared.signal.wake()
      return Maintainer.shared.wakeUps.load(ordering: .relaxed) >= before + 2
    }
    require(isDone, "the thread does not wake up")
  }
}
