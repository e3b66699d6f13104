// SPDX-License-Identifier: MIT
// Why an entry left, and why a look-up found nothing.

/// Why an entry left a cache.
public enum DepartureReason: Int, Sendable, Hashable, CaseIterable {
  /// Another value was stored under its key.
  case replaced
  /// The program removed it.
  case removed
  /// The count limit.
  case count
  /// The cost limit.
  case cost
  /// The byte limit.
  case bytes
  /// It was larger than a whole limit and was never admitted.
  case tooLarge
  /// Its time was over.
  case expired
  /// The kernel took a page of it.
  case discarded
  /// The cache gave memory back, because somebody needs it.
  case pressure
  /// The program's own verdict over a snapshot.
  case decider
  /// It was not used for the cache's idle time.
  case idle
}

/// Why a look-up found nothing. That it found nothing is exact; the reason is advice.
public enum MissReason: Int, Sendable, Hashable, CaseIterable {
  /// Never stored, or so long ago that nothing is remembered of it.
  case unknown
  /// Stored and evicted by a limit or under pressure, as far as is remembered.
  case evicted
  /// Stored and removed by the program, as far as is remembered.
  case removed
  /// Stored, and lost to the kernel.
  case discarded
  /// Stored, and its time was over.
  case expired
  /// There, but its bytes are none that this value type can be made of.
  case undecodable
  /// There, but no more may be locked now: copying reads still answer.
  case lockLimit
}
