// SPDX-License-Identifier: MIT
// Words whose growth may fail: the memory comes from malloc, and a Swift array would end the process.

import Glibc

/// Words by number, 0 at first. In a forked child they are what they were. `@unchecked Sendable`: its owner guards it.
@safe struct WordTable: @unchecked Sendable {
  private var words: UnsafeMutablePointer<UInt>?
  private(set) var capacity = 0
  var byteCount: Int { capacity * MemoryLayout<UInt>.stride }

  static let firstCapacity = 8

  /// Makes room for more, an eighth at least. False, with nothing changed, when there is no memory.
  mutating func grow() -> Bool {
    let wanted = capacity + max(Self.firstCapacity, capacity / 8)
    guard let grown = unsafe realloc(words, wanted * MemoryLayout<UInt>.stride) else { return false }
    unsafe words = grown.assumingMemoryBound(to: UInt.self)
    unsafe words!.advanced(by: capacity).initialize(repeating: 0, count: wanted - capacity)
    capacity = wanted
    return true
  }

  subscript(number: Int) -> UInt {
    get {
      precondition(number >= 0 && number < capacity, "PurgeableCache: a word that there is no memory for")
      return unsafe words![number]
    }
    nonmutating set {
      precondition(number >= 0 && number < capacity, "PurgeableCache: a word that there is no memory for")
      unsafe words![number] = newValue
    }
  }

  /// Gives all memory back.
  mutating func release() {
    unsafe free(words)
    self = WordTable()
  }
}
