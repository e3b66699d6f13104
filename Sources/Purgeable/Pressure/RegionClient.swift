// SPDX-License-Identifier: MIT
// The regions of this process, and all that lies in regions (`PurgeableData`), as one client: the core keeps their list.

import CPurgeable

/// What is idle goes on offer, and is the kernel's to take from then on: there is nothing more to give.
final class RegionClient: PressureClient {
  static let shared = RegionClient()
  /// Of no list.
  let link = ClientLink<UnownedClient>()

  private init() {}

  var holdsAnything: Bool { false }

  var offeredBytes: Int {
    var statistics = purgeable_region_statistics_t()
    return unsafe purgeable_region_statistics(&statistics) == 0 ? Int(statistics.memory.offered_bytes) : 0
  }

  /// Regions are offered again, at ever longer intervals.
  func upkeepRound() -> UInt64 {
    _ = offerAll()
    return purgeable_offer_pending_due_ms()
  }

  func offerAll() -> Int {
    var byteCount = 0
    _ = unsafe purgeable_offer_pending(&byteCount)
    return byteCount
  }

  // The core takes its own mutexes around a fork.
  func lockForFork() {}
  func unlockAfterFork() {}
}
