// SPDX-License-Identifier: MIT
// An array that reports a lack of memory: where a Swift array would end the program, its initializer answers nil.

import CPurgeable

/// A fixed number of plain values, zeros at first, in ordinary memory. nil when there is no memory for them.
///
/// Small arrays share pages with the C library's other allocations. Larger ones are mappings, which go back to the system page
/// by page. An array never grows: a caller that needs a larger one makes a second one, and keeps the first where that fails.
///
/// `@safe`: the memory is this value's alone until its end, and every index is compared with the count.
@safe struct BookkeepingArray<Element: BitwiseCopyable>: ~Copyable {
  /// Leads nowhere where the count is 0. Not an optional: debug builds look its type up each time they unwrap one.
  private var start: UnsafeMutablePointer<Element>
  private(set) var count: Int
  /// The memory it takes, in bytes.
  private(set) var byteCount: Int
  private let isMapped: Bool

  /// From here on a mapping's last page, half empty on average, is small against the rest.
  private static var mappedByteCount: Int { 32 << 10 }

  /// Takes no memory.
  init() {
    unsafe start = UnsafeMutablePointer(bitPattern: MemoryLayout<Element>.alignment).unsafelyUnwrapped
    (count, byteCount, isMapped) = (0, 0, false)
  }

  /// nil: no memory, or a count of 0.
  init?(zeros count: Int) {
    let (wanted, overflow) = count.multipliedReportingOverflow(by: MemoryLayout<Element>.stride)
    guard count > 0, !overflow else { return nil }
    let isLarge = wanted >= Self.mappedByteCount
    let taken = isLarge ? Self.wholePages(wanted) : wanted
    guard let raw = unsafe isLarge ? purgeable_bookkeeping_map(taken) : purgeable_bookkeeping_allocate(taken) else { return nil }
    // Assigned last: the deinitializer does not run for a value that is not complete.
    isMapped = isLarge
    byteCount = taken
    unsafe start = raw.bindMemory(to: Element.self, capacity: count)
    self.count = count
  }

  var isEmpty: Bool { count == 0 }

  /// Makes an empty one as `init(zeros:)` does; another one stays. False without memory.
  mutating func make(_ count: Int) -> Bool {
    if isEmpty, let made = Self(zeros: count) { self = made }
    return !isEmpty
  }

  deinit {
    if isMapped {
      unsafe purgeable_bookkeeping_unmap(start, byteCount)
    } else if count > 0 {
      unsafe purgeable_bookkeeping_free(start)
    }
  }

  subscript(index: Int) -> Element {
    get {
      precondition(index >= 0 && index < count, "BookkeepingArray: index out of range")
      return unsafe start[index]
    }
    set {
      precondition(index >= 0 && index < count, "BookkeepingArray: index out of range")
      unsafe start[index] = newValue
    }
  }

  /// Calls `body` with all elements.
  mutating func withElements<R>(_ body: (inout UnsafeMutableBufferPointer<Element>) -> R) -> R {
    var elements = unsafe UnsafeMutableBufferPointer(start: start, count: count)
    return unsafe body(&elements)
  }

  /// Has the processor fetch an element.
  func prefetch(_ index: Int) {
    precondition(index >= 0 && index < count, "BookkeepingArray: index out of range")
    unsafe purgeable_prefetch(start + index)
  }

  /// Keeps the first elements and gives the memory of the others back. Allocates nothing; if the system refuses, the memory
  /// stays.
  mutating func shrink(to newCount: Int) {
    guard newCount > 0, newCount < count else { return }
    count = newCount
    let wanted = newCount * MemoryLayout<Element>.stride
    if isMapped {
      let kept = Self.wholePages(wanted)
      guard kept < byteCount else { return }
      // Whole pages behind the elements kept; nothing reads these pages any more.
      let tail = unsafe UnsafeMutableRawPointer(start) + kept
      if unsafe purgeable_bookkeeping_unmap(tail, byteCount - kept) == 0 { byteCount = kept }
    } else if let smaller = unsafe purgeable_bookkeeping_resize(start, wanted) {
      unsafe start = smaller.bindMemory(to: Element.self, capacity: newCount)
      byteCount = wanted
    }
  }

  private static func wholePages(_ byteCount: Int) -> Int {
    let page = Int(purgeable_page_size_bytes())
    return (byteCount + page - 1) / page * page
  }
}
