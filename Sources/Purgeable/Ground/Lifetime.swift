// SPDX-License-Identifier: MIT
// How long something is valid, in nanoseconds of a clock.

/// By either bound, whichever comes first; nil for no bound.
@usableFromInline
struct Lifetime: Sendable, Equatable {
  var sinceCreation: UInt64?
  var sinceLastUse: UInt64?

  init(sinceCreation: UInt64? = nil, sinceLastUse: UInt64? = nil) {
    (self.sinceCreation, self.sinceLastUse) = (sinceCreation, sinceLastUse)
  }

  /// Of an entry that is kept on as it was: as long as from its beginning, where that is known, else from now, to its deadline.
  init(until deadline: UInt64?, from made: UInt64?, now: UInt64, sinceLastUse: UInt64?) {
    // `made` may have wrapped round.
    sinceCreation = deadline.map { deadline in made.map { deadline &- $0 } ?? deadline - min(deadline, now) }
    self.sinceLastUse = sinceLastUse
  }

  /// Whether its time is over at once.
  var isOver: Bool { sinceCreation == 0 || sinceLastUse == 0 }

  /// Last uses are known in steps of 10 ms, and for half as long as 32 bits of them can tell apart.
  static let useStep: UInt64 = 10_000_000
  static let longestSinceLastUse = UInt64(Int32.max) * useStep
}
