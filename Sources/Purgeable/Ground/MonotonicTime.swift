// SPDX-License-Identifier: MIT
// The clock that everything here goes by, and the one that tests set in its place.

import Glibc

extension Duration {
  /// In nanoseconds: 0 at least, and at most a time that no clock reaches.
  package var wholeNanoseconds: UInt64 {
    guard self > .zero else { return 0 }
    // A duration may have more seconds than its components can say.
    guard self < .seconds(UInt64.max / 4 / 1_000_000_000) else { return .max / 4 }
    let (seconds, attoseconds) = components
    return UInt64(seconds) * 1_000_000_000 + UInt64(attoseconds) / 1_000_000_000
  }
}

/// Nanoseconds since some moment before the process began.
@usableFromInline
package enum MonotonicTime {
  @usableFromInline package static var now: UInt64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_MONOTONIC, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }

  /// As of the kernel's last tick: for a quarter of the cost, and some milliseconds old; more where the machine is busy.
  static var lastTick: UInt64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_MONOTONIC_COARSE, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}

/// The time in nanoseconds since some moment before its user was made; it does not go back. Called from any thread, also under a
/// mutex. Whoever has a rule about time is given one when it is made, so that tests need not wait.
struct MonotonicClock: Sendable {
  let now: @Sendable () -> UInt64
  /// Whether it goes as the machine's clock.
  let isSystem: Bool

  init(_ now: @escaping @Sendable () -> UInt64) { self.init(now, isSystem: false) }
  private init(_ now: @escaping @Sendable () -> UInt64, isSystem: Bool) { (self.now, self.isSystem) = (now, isSystem) }

  static let system = MonotonicClock({ MonotonicTime.now }, isSystem: true)

  /// A moment that may be some milliseconds old, for a quarter of the cost.
  var recent: UInt64 { isSystem ? MonotonicTime.lastTick : now() }

  /// Far more than the last tick is ever late.
  private static let tickMargin: UInt64 = 1_000_000_000

  /// Whether a moment has come. Exact; cheap where it is a second away at least.
  func hasReached(_ moment: UInt64) -> Bool {
    if isSystem, moment > MonotonicTime.lastTick &+ Self.tickMargin { return false }
    return now() >= moment
  }
}

/// The time of the day, as the machine has it: for what outlives the process. It may be set, forward and back.
package enum WallTime {
  /// Nanoseconds since 1970.
  package static var now: Int64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_REALTIME, &time)
    return Int64(time.tv_sec) * 1_000_000_000 + Int64(time.tv_nsec)
  }
}
