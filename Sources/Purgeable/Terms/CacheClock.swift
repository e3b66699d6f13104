// SPDX-License-Identifier: MIT
// A cache's clock, given when the cache is made: tests give one that they set.

/// Returns nanoseconds since some moment before the cache was made. Called from any thread, also under a shard's mutex.
struct CacheClock: Sendable {
  let now: @Sendable () -> UInt64

  static let monotonic = CacheClock { MonotonicTime.now }
}
