// SPDX-License-Identifier: MIT
// An array of words whose elements never move, and whose growth may fail.
//
//   directory --> [8] [16] [32] [64] [64] ...     words in each segment
//
// The array grows by one segment at a time, so growth is bounded and small tables stay small. The memory comes from malloc, which
// may fail; a Swift array would end the process then.

import Glibc

/// Words by number, 0 at first. `@unchecked Sendable`: its owner guards it.
@safe struct SegmentedMemory: @unchecked Sendable {
  private var directory: UnsafeMutablePointer<UnsafeMutablePointer<UInt>?>?
  private var directoryCapacity = 0
  private var segmentCount = 0
  private(set) var capacity = 0
  /// The bytes that it takes, directory included.
  private(set) var byteCount = 0

  private static let firstBits = 3
  private static let lastBits = 6
  /// How many words the first segment has.
  static var firstCapacity: Int { 1 << firstBits }

  private static func wordCount(ofSegment segment: Int) -> Int { 1 << min(firstBits + segment, lastBits) }

  /// Where a word is: its segment, and which of that segment's words it is.
  private static func place(of number: Int) -> (segment: Int, at: Int) {
    let shifted = number + firstCapacity
    if shifted >= 1 << lastBits { return (lastBits - firstBits - 1 + shifted >> lastBits, shifted & ((1 << lastBits) - 1)) }
    let bits = Int.bitWidth - 1 - shifted.leadingZeroBitCount
    return (bits - firstBits, shifted - (1 << bits))
  }

  /// Adds a segment. False, with nothing added, when there is no memory.
  mutating func grow() -> Bool {
    if segmentCount == directoryCapacity {
      let wanted = max(4, 2 * directoryCapacity)
      let pointer = MemoryLayout<UInt>.stride
      guard let grown = unsafe realloc(directory, wanted * pointer) else { return false }
      unsafe directory = grown.assumingMemoryBound(to: UnsafeMutablePointer<UInt>?.self)
      byteCount += (wanted - directoryCapacity) * pointer
      directoryCapacity = wanted
    }
    let count = Self.wordCount(ofSegment: segmentCount)
    guard let words = unsafe calloc(count, MemoryLayout<UInt>.stride) else { return false }
    unsafe directory![segmentCount] = words.assumingMemoryBound(to: UInt.self)
    byteCount += count * MemoryLayout<UInt>.stride
    capacity += count
    segmentCount += 1
    return true
  }

  /// The address of a word below the capacity, valid until `release`.
  private func address(of number: Int) -> UnsafeMutablePointer<UInt> {
    precondition(number >= 0 && number < capacity, "PurgeableCache: a word that there is no memory for")
    let (segment, at) = Self.place(of: number)
    return unsafe directory![segment]! + at
  }

  subscript(number: Int) -> UInt {
    get { unsafe address(of: number).pointee }
    nonmutating set { unsafe address(of: number).pointee = newValue }
  }

  /// Gives all memory back.
  mutating func release() {
    for i in 0..<segmentCount { unsafe free(directory![i]) }
    unsafe free(directory)
    self = SegmentedMemory()
  }
}
