// SPDX-License-Identifier: MIT
// What the tests of caches of objects use.

import Synchronization

@testable import Purgeable

/// Content that is there until it is discarded; in nobody's use at first.
final class TestContent: DiscardableContent {
  let number: Int
  private let accesses = Atomic<Int>(0)
  private let isGone = Atomic<Bool>(false)
  let discardCount = Atomic<Int>(0)

  init(_ number: Int) { self.number = number }

  func beginContentAccess() -> Bool {
    if isContentDiscarded { return false }
    accesses.add(1, ordering: .relaxed)
    return true
  }

  func endContentAccess() { accesses.subtract(1, ordering: .relaxed) }

  func discardContentIfPossible() {
    discardCount.add(1, ordering: .relaxed)
    if accesses.load(ordering: .relaxed) == 0 { isGone.store(true, ordering: .relaxed) }
  }

  var isContentDiscarded: Bool { isGone.load(ordering: .relaxed) }
}

extension Departure {
  /// For comparing.
  var inShort: String { "\(key): \(reason), \(cost)" }
}

/// A key whose hash is bad and whose `==` calls something.
struct OddKey: Hashable, Sendable {
  let number: Int
  /// Called by `==`.
  let compares: (@Sendable () -> Void)?

  init(_ number: Int, compares: (@Sendable () -> Void)? = nil) { (self.number, self.compares) = (number, compares) }

  static func == (left: OddKey, right: OddKey) -> Bool {
    left.compares?()
    return left.number == right.number
  }

  func hash(into hasher: inout Hasher) { hasher.combine(number % 3) }
}
