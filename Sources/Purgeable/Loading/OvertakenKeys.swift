// SPDX-License-Identifier: MIT
// Keys that were stored or removed while a file is restored: what the file has of them is older.

import CPurgeable
import Synchronization

/// A bit for each key, by its hash: keys that share one are taken for each other, and what the file has of them is left out.
///
/// Without a race, because both sides use the mutex under which the cache stores, as with `LoadPermit`: who stores or removes
/// notes the key before taking it, and who restores asks while holding it.
///
/// `@unchecked Sendable`: the bits are atomics.
@safe final class OvertakenKeys: @unchecked Sendable {
  private let words: UnsafeMutablePointer<Atomic<UInt64>>
  private let byteCount: Int
  private let areAll = Atomic<Bool>(false)

  /// nil where there is no memory. `count`: how many entries the file has. A 16th of that many noted keys leave out a 128th of
  /// the entries.
  init?(forEntries count: Int) {
    var bits = 1 << 18
    while bits < 8 * count, bits < 1 << 28 { bits *= 2 }
    byteCount = bits / 8
    guard let raw = unsafe purgeable_bookkeeping_map(byteCount) else { return nil }
    // Safe: pages of zeros are such atomics.
    unsafe words = raw.assumingMemoryBound(to: Atomic<UInt64>.self)
  }

  deinit { unsafe purgeable_bookkeeping_unmap(words, byteCount) }

  private func bit(of hash: Int) -> (word: Int, bit: UInt64) {
    let number = hash & (byteCount * 8 - 1)
    return (number / 64, 1 << UInt64(number % 64))
  }

  func note(_ hash: Int) {
    let (word, bit) = bit(of: hash)
    unsafe words[word].bitwiseOr(bit, ordering: .relaxed)
  }

  func noteAll() { areAll.store(true, ordering: .relaxed) }
  /// Whether everything was removed: nothing of the file may come any more.
  var hasAll: Bool { areAll.load(ordering: .relaxed) }

  func has(_ hash: Int) -> Bool {
    let (word, bit) = bit(of: hash)
    return unsafe hasAll || words[word].load(ordering: .relaxed) & bit != 0
  }
}
