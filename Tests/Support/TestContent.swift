// SPDX-License-Identifier: MIT
// An object with discardable content.

import Purgeable
import Synchronization

/// Content that is there until it is discarded; in nobody's use at first.
public final class TestContent: DiscardableContent {
  public let number: Int
  private let accesses = Atomic<Int>(0)
  private let isGone = Atomic<Bool>(false)
  public let discardCount = Atomic<Int>(0)

  public init(_ number: Int) { self.number = number }

  public func beginContentAccess() -> Bool {
    if isContentDiscarded { return false }
    accesses.add(1, ordering: .relaxed)
    return true
  }

  public func endContentAccess() { accesses.subtract(1, ordering: .relaxed) }

  public func discardContentIfPossible() {
    discardCount.add(1, ordering: .relaxed)
    if accesses.load(ordering: .relaxed) == 0 { isGone.store(true, ordering: .relaxed) }
  }

  public var isContentDiscarded: Bool { isGone.load(ordering: .relaxed) }
}
