// SPDX-License-Identifier: MIT
// An array whose elements never move, and whose growth may fail.
//
//   directory --> [8] [16] [32] [64] [64] ...     elements in each segment
//
// The array grows by one segment at a time, so growth is bounded and small tables stay small; a segment's memory can be given
// back singly. The memory comes from malloc, which may fail; a Swift array would end the process then.

import Glibc

/// Elements of one size, by number, all bits zero at first. `@unchecked Sendable`: its owner guards it.
@safe struct SegmentedMemory: @unchecked Sendable {
  private let stride: Int
  private let alignment: Int
  private var directory: UnsafeMutablePointer<UnsafeMutableRawPointer?>?
  private var directoryCapacity = 0
  private(set) var segmentCount = 0
  /// How many elements all segments have, those without memory included.
  private(set) var capacity = 0
  /// The bytes that it takes, directory included.
  private(set) var byteCount = 0

  private static let firstBits = 3
  private static let lastBits = 6
  /// Segments that are smaller than those after them.
  private static let smallCount = lastBits - firstBits

  init(stride: Int, alignment: Int) {
    self.stride = stride
    self.alignment = alignment
  }

  /// Empty memory with the layout of `other`.
  init(copyingLayoutOf other: SegmentedMemory) { self.init(stride: other.stride, alignment: other.alignment) }

  /// How many elements the first segment has.
  static var firstCapacity: Int { 1 << firstBits }
  /// How many all but the first segments have.
  static var largestCount: Int { 1 << lastBits }

  static func elementCount(ofSegment segment: Int) -> Int {
    segment < smallCount ? 1 << (firstBits + segment) : 1 << lastBits
  }

  /// Where an element is: its segment, and which of that segment's elements it is.
  static func place(of number: Int) -> (segment: Int, at: Int) {
    let shifted = number + (1 << firstBits)
    if shifted >= 1 << lastBits { return (smallCount - 1 + (shifted >> lastBits), shifted & ((1 << lastBits) - 1)) }
    let bits = Int.bitWidth - 1 - shifted.leadingZeroBitCount
    return (bits - firstBits, shifted - (1 << bits))
  }

  /// The number of a segment's first element.
  static func firstNumber(ofSegment segment: Int) -> Int {
    let shifted = segment < smallCount ? 1 << (firstBits + segment) : (segment - smallCount + 1) << lastBits
    return shifted - (1 << firstBits)
  }

  /// Adds a segment, with memory. False, with no segment added, when there is none.
  mutating func grow() -> Bool {
    if segmentCount == directoryCapacity {
      let wanted = max(4, 2 * directoryCapacity)
      let pointer = MemoryLayout<UInt>.stride
      guard let grown = unsafe realloc(directory, wanted * pointer) else { return false }
      unsafe directory = grown.assumingMemoryBound(to: UnsafeMutableRawPointer?.self)
      byteCount += (wanted - directoryCapacity) * pointer
      directoryCapacity = wanted
    }
    unsafe directory![segmentCount] = nil
    guard obtain(segmentCount) else { return false }
    capacity += Self.elementCount(ofSegment: segmentCount)
    segmentCount += 1
    return true
  }

  /// Obtains memory, all zeros, for a segment that has none. False when there is none.
  mutating func obtain(_ segment: Int) -> Bool {
    let size = Self.elementCount(ofSegment: segment) * stride
    var memory: UnsafeMutableRawPointer?
    if alignment <= 16 {
      unsafe memory = calloc(size, 1)
    } else if unsafe posix_memalign(&memory, alignment, size) == 0 {
      unsafe memory?.initializeMemory(as: UInt8.self, repeating: 0, count: size)
    }
    guard let memory = unsafe memory else { return false }
    unsafe directory![segment] = memory
    byteCount += size
    return true
  }

  /// Gives a segment's memory back, without a look at its content.
  mutating func drop(_ segment: Int) {
    assert(segment < segmentCount && hasMemory(segment), "PurgeableCache: a segment is given back twice")
    unsafe free(directory![segment])
    unsafe directory![segment] = nil
    byteCount -= Self.elementCount(ofSegment: segment) * stride
  }

  func hasMemory(_ segment: Int) -> Bool { unsafe directory![segment] != nil }

  /// The address of an element, valid until its segment is dropped; nil when it has been dropped. `number` is below the capacity.
  func address(of number: Int) -> UnsafeMutableRawPointer? {
    assert(number >= 0 && number < capacity, "PurgeableCache: an element that there is no number for")
    let (segment, at) = Self.place(of: number)
    return unsafe directory![segment].map { unsafe $0 + at * stride }
  }

  /// Gives all memory back, without a look at its content.
  mutating func release() {
    for i in 0..<segmentCount { unsafe free(directory![i]) }
    unsafe free(directory)
    unsafe directory = nil
    (directoryCapacity, segmentCount, capacity, byteCount) = (0, 0, 0, 0)
  }
}
