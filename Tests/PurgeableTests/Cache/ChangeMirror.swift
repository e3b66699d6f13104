// SPDX-License-Identifier: MIT
// What is there by the changes that a cache tells, beside what is there.

@testable import Purgeable

final class ChangeMirror {
  private let told = ToldChanges()
  /// What is there, by all changes so far.
  private(set) var keys: Set<Int> = []
  /// So many keys were told as updated, and nothing had been stored since they were told before.
  private(set) var untouchedCount = 0
  private var touched: Set<Int> = []

  /// To be told of changes.
  var handler: @Sendable (CacheChanges<Int>) -> Void { { [told] in told.note($0) } }

  func touch(_ key: Int) { touched.insert(key) }

  /// Compares with a cache that has just told all, and has had so many keys. Returns what is wrong.
  func check(ofFirst keyCount: Int, isThere: (Int) -> Bool) -> [String] {
    var wrong: [String] = []
    for change in told.take() {
      let both = change.updatedKeys.intersection(change.removedKeys)
      if !both.isEmpty { wrong.append("\(both) are both updated and removed") }
      untouchedCount += change.updatedKeys.subtracting(touched).count
      for key in touched.subtracting(change.updatedKeys) where isThere(key) {
        wrong.append("\(key) was stored, and nobody was told")
      }
      for key in change.removedKeys where isThere(key) { wrong.append("\(key) is there, and was told as removed") }
      keys = keys.union(change.updatedKeys).subtracting(change.removedKeys)
    }
    touched = []
    for key in 0..<keyCount where isThere(key) && !keys.contains(key) {
      wrong.append("\(key) is there, and was not told of")
    }
    return wrong
  }
}
