// SPDX-License-Identifier: MIT
// Elements of one size that are taken one by one and given back in any order, in segments whose memory is given back singly.
//
//   a segment's free elements --> element --> element --> nil         through their first words
//   open segments             <-> segment <-> segment                 those with free elements
//   bare segments              --> segment --> segment                those whose memory went back
//
// Elements that are given back in any order leave free places in every segment. To give memory back, a segment is closed: no
// element is taken from it any more, the owner moves those that are left, and its memory goes back with its last element.

import Glibc

/// `@unchecked Sendable`: its owner guards it.
@safe struct SegmentPool: @unchecked Sendable {
  private enum State: UInt8 {
    /// All of its elements are taken. The state of zeroed memory.
    case full = 0
    case open, closing, bare
  }

  @safe private struct Segment {
    var free: UnsafeMutableRawPointer?
    var takenCount: Int32
    /// The next segment in the list of open or of bare ones, + 1; 0 for none.
    var next: Int32
    /// The previous segment in the list of open ones, + 1; 0 for none.
    var previous: Int32
    var state: State
  }

  private var memory: SegmentedMemory
  private var segments = SegmentedMemory(stride: MemoryLayout<Segment>.stride, alignment: MemoryLayout<Segment>.alignment)
  private let stride: Int
  private var firstOpen: Int32 = 0
  private var firstBare: Int32 = 0
  /// Elements that can be taken without more memory.
  private(set) var freeCount = 0

  init(stride: Int, alignment: Int) {
    self.stride = stride
    memory = SegmentedMemory(stride: stride, alignment: alignment)
  }

  /// An empty pool with the layout of `other`.
  init(copyingLayoutOf other: SegmentPool) {
    stride = other.stride
    memory = SegmentedMemory(copyingLayoutOf: other.memory)
  }

  /// The bytes that it takes, its own bookkeeping included.
  var byteCount: Int { memory.byteCount + segments.byteCount }
  /// How many elements there are numbers for.
  var capacity: Int { memory.capacity }

  /// The address of an element; nil when its segment's memory went back. `number` is below the capacity.
  func address(of number: Int) -> UnsafeMutableRawPointer? { unsafe memory.address(of: number) }

  private func segment(_ at: Int) -> UnsafeMutablePointer<Segment> {
    // Segments of this array are never dropped singly, so there is memory.
    unsafe segments.address(of: at)!.assumingMemoryBound(to: Segment.self)
  }

  // MARK: Taking

  /// Takes a free element: of the first open segment, the one that was given back last. The caller writes its first word; the
  /// others are as they were left, or zeros. nil when there is no memory, or `limit` elements have numbers.
  mutating func take(limit: Int) -> (number: Int, address: UnsafeMutableRawPointer)? {
    if firstOpen == 0, !openAnother(limit) { return nil }
    let at = Int(firstOpen) - 1
    let segment = unsafe segment(at)
    guard let address = unsafe segment.pointee.free else { return nil }
    unsafe segment.pointee.free = address.load(as: UnsafeMutableRawPointer?.self)
    unsafe segment.pointee.takenCount += 1
    freeCount -= 1
    assert(freeCount >= 0, "PurgeableCache: more places are taken than were free")
    if unsafe segment.pointee.free == nil { unlink(at, .full) }
    let first = SegmentedMemory.firstNumber(ofSegment: at)
    // A segment with free elements has memory.
    guard let start = unsafe memory.address(of: first) else { return nil }
    return unsafe (first + (address - start) / stride, address)
  }

  /// Obtains memory for a bare segment, or for one more segment.
  private mutating func openAnother(_ limit: Int) -> Bool {
    if firstBare != 0 {
      let at = Int(firstBare) - 1
      guard memory.obtain(at) else { return false }
      unsafe firstBare = segment(at).pointee.next
      fill(at)
      return true
    }
    let fresh = memory.segmentCount
    guard memory.capacity + SegmentedMemory.elementCount(ofSegment: fresh) <= limit,
      fresh < segments.capacity || segments.grow(), memory.grow()
    else { return false }
    fill(fresh)
    return true
  }

  /// Opens a segment with fresh memory: all of its elements are free.
  private mutating func fill(_ at: Int) {
    let first = SegmentedMemory.firstNumber(ofSegment: at)
    let count = SegmentedMemory.elementCount(ofSegment: at)
    var next: UnsafeMutableRawPointer?
    for number in (first..<first + count).reversed() {
      guard let address = unsafe memory.address(of: number) else { return }
      unsafe address.storeBytes(of: next, as: UnsafeMutableRawPointer?.self)
      unsafe next = address
    }
    unsafe segment(at).pointee = unsafe Segment(free: next, takenCount: 0, next: 0, previous: 0, state: .full)
    freeCount += count
    link(at)
  }

  // MARK: Giving back

  /// Frees an element that was taken; its first word is the pool's from here on. The memory of a segment without taken elements
  /// goes back, except that of the first one, which is small.
  mutating func giveBack(_ number: Int) {
    let at = SegmentedMemory.place(of: number).segment
    let segment = unsafe segment(at)
    guard let address = unsafe memory.address(of: number) else { return }
    unsafe address.storeBytes(of: segment.pointee.free, as: UnsafeMutableRawPointer?.self)
    unsafe segment.pointee.free = address
    unsafe segment.pointee.takenCount -= 1
    assert(unsafe segment.pointee.takenCount >= 0, "PurgeableCache: a place is given back twice")
    let isClosing = unsafe segment.pointee.state == .closing
    if !isClosing { freeCount += 1 }
    if unsafe segment.pointee.state == .full { link(at) }
    if at > 0, unsafe segment.pointee.takenCount == 0 { drop(at) }
  }

  private mutating func drop(_ at: Int) {
    if unsafe segment(at).pointee.state == .open {
      unlink(at, .bare)
      freeCount -= SegmentedMemory.elementCount(ofSegment: at)
    }
    unsafe segment(at).pointee = unsafe Segment(free: nil, takenCount: 0, next: firstBare, previous: 0, state: .bare)
    firstBare = Int32(at) + 1
    memory.drop(at)
  }

  /// Closes the last segment that has memory: no element is taken from it any more. Returns the numbers of its elements; the
  /// caller moves those that are taken, and gives them back. nil when only small segments are left.
  mutating func close() -> Range<Int>? {
    for at in (0..<memory.segmentCount).reversed() where memory.hasMemory(at) {
      let count = SegmentedMemory.elementCount(ofSegment: at)
      guard count == SegmentedMemory.largestCount else { return nil }
      let segment = unsafe segment(at)
      if unsafe segment.pointee.state == .closing { continue }
      unsafe freeCount -= count - Int(segment.pointee.takenCount)
      if unsafe segment.pointee.state == .open { unlink(at, .closing) } else { unsafe segment.pointee.state = .closing }
      let first = SegmentedMemory.firstNumber(ofSegment: at)
      return first..<first + count
    }
    return nil
  }

  /// Gives all memory back, without a look at its content.
  mutating func release() {
    memory.release()
    segments.release()
    (firstOpen, firstBare, freeCount) = (0, 0, 0)
  }

  // MARK: Open segments

  private mutating func link(_ at: Int) {
    let segment = unsafe segment(at)
    unsafe segment.pointee.state = .open
    unsafe segment.pointee.next = firstOpen
    unsafe segment.pointee.previous = 0
    if firstOpen != 0 { unsafe self.segment(Int(firstOpen) - 1).pointee.previous = Int32(at) + 1 }
    firstOpen = Int32(at) + 1
  }

  private mutating func unlink(_ at: Int, _ state: State) {
    let segment = unsafe segment(at)
    let (next, previous) = unsafe (segment.pointee.next, segment.pointee.previous)
    if next != 0 { unsafe self.segment(Int(next) - 1).pointee.previous = previous }
    if previous != 0 { unsafe self.segment(Int(previous) - 1).pointee.next = next } else { firstOpen = next }
    unsafe segment.pointee.state = state
  }
}
