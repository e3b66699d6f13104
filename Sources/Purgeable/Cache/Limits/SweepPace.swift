// SPDX-License-Identifier: MIT
// How often stores look for lost pages: looking takes a twentieth of the time at most.

import Synchronization

/// Times are in nanoseconds of the cache's clock (`MonotonicClock`).
struct SweepPace: ~Copyable, Sendable {
  /// When the core last finished looking.
  private let last = Atomic<UInt64>(0)
  /// How long that took.
  private let length = Atomic<UInt64>(0)

  private static let leastPause: UInt64 = 10_000_000

  /// Whether it is time to look again.
  func isDue(now: UInt64) -> Bool {
    now - min(now, last.load(ordering: .relaxed)) >= max(Self.leastPause, 20 * length.load(ordering: .relaxed))
  }

  func note(from start: UInt64, to end: UInt64) {
    last.store(end, ordering: .relaxed)
    length.store(end - min(end, start), ordering: .relaxed)
  }
}
