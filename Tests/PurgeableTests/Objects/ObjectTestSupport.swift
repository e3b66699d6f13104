// SPDX-License-Identifier: MIT
// What the tests of caches of objects use.

import Synchronization

@testable import Purgeable

extension Departure {
  /// For comparing.
  var inShort: String { "\(key): \(reason), \(cost)" }
}

extension ObjectStore {
  /// All entries, the least recently used first.
  func noted() -> [NotedObject<Key, Value>] { all { NotedObject($0, $1, shard: $2) } }
}

extension ObjectCache {
  /// Nothing is dropped on a thread of the cache's own: as if it had the thread already.
  func staysAlone() { store.relief.withLock { $0.hasThread = true } }
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
