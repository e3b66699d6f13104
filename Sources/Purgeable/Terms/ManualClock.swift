// SPDX-License-Identifier: MIT
// A clock for tests of programs that use caches.

import Synchronization

/// A clock that tests set: for `CacheOptions.clock`. It begins with the moment it is made, and stands still.
///
///     let clock = ManualClock()
///     var options = CacheOptions()
///     (options.clock, options.expiry) = (clock, .sinceCreation(.seconds(60)))
///     let cache = try PurgeableCache<String, [UInt8]>(options)
///     cache["token"] = [1, 2, 3]
///     clock.advance(by: .seconds(61))
///     if case .miss(.expired) = cache.lookUpValue(forKey: "token") { print("over") }
public final class ManualClock: Clock {
  private let start = ContinuousClock.now
  /// Nanoseconds. No mutex, which another thread could hold at a fork.
  private let elapsed = Atomic<Int64>(0)

  /// Makes a clock that shows the present moment.
  public init() {}

  /// Moves the clock on; back, where the time is below 0: ages in caches stand still then until the clock has caught up. By whole
  /// nanoseconds, and no further than 292 years from its beginning. Any thread.
  public func advance(by time: Duration) {
    // Its components cannot say more seconds than an Int64 has.
    let nanoseconds = time.attoseconds / 1_000_000_000
    var before = elapsed.load(ordering: .relaxed)
    while true {
      let after = Int64(clamping: Int128(before) + nanoseconds)
      let (isDone, now) = elapsed.compareExchange(expected: before, desired: after, ordering: .acquiringAndReleasing)
      if isDone { return }
      before = now
    }
  }

  /// The moment that the clock shows.
  public var now: ContinuousClock.Instant { start + .nanoseconds(elapsed.load(ordering: .acquiring)) }

  /// The smallest step that a moment can tell.
  public var minimumResolution: Duration { .nanoseconds(1) }

  /// Returns when the clock shows the moment, which it looks at each millisecond of the machine's time; throws
  /// `CancellationError` where the task is cancelled before.
  public func sleep(until deadline: ContinuousClock.Instant, tolerance: Duration?) async throws {
    while now < deadline { try await Task.sleep(for: .milliseconds(1)) }
  }
}
