// SPDX-License-Identifier: MIT
// Freeing elements, and queries about elements that do not read them.

import CPurgeable

extension PurgeableHeap {
  /// Ends an element's life. While somebody reads it, it is gone for look-ups at once and its bytes go with the last reader.
  ///
  /// - Throws: `PurgeableError`: stale reference.
  /// - Complexity: no system call, but for one when the slab's last element goes.
  public borrowing func free(_ reference: ElementReference) throws(PurgeableError) {
    try PurgeableError.check(unsafe purgeable_heap_free(handle, reference.code), in: "PurgeableHeap.free(\(reference))")
  }

  /// Whether an element's content was lost. Looks at every page it touches; no system call.
  ///
  /// - Throws: `PurgeableError`: stale reference.
  public borrowing func isDiscarded(_ reference: ElementReference) throws(PurgeableError) -> Bool {
    switch unsafe purgeable_heap_check(handle, reference.code) {
    case .intact, .busy: false
    case .discarded: true
    case .error: throw PurgeableError.of(lastErrorNumber(), in: "PurgeableHeap.isDiscarded(\(reference))")
    }
  }

  /// An element's length in bytes; `nil` when it was discarded, for the length goes with the content.
  ///
  /// - Throws: `PurgeableError`: stale reference.
  public borrowing func byteCount(of reference: ElementReference) throws(PurgeableError) -> Int? {
    try byteCount(of: reference, in: "byteCount")
  }

  /// For the function of that name.
  borrowing func byteCount(of reference: ElementReference, in function: String) throws(PurgeableError) -> Int? {
    var count = 0
    switch unsafe purgeable_heap_length_bytes(handle, reference.code, &count) {
    case .intact: return count
    case .discarded: return nil
    case .busy, .error: throw PurgeableError.of(lastErrorNumber(), in: "PurgeableHeap.\(function)(of: \(reference))")
    }
  }

  /// The tag given when the element was stored, also of discarded content.
  ///
  /// - Throws: `PurgeableError`: stale reference; not supported when the heap keeps no tags.
  public borrowing func tag(of reference: ElementReference) throws(PurgeableError) -> UInt64 {
    var tag: UInt64 = 0
    try PurgeableError.check(
      unsafe purgeable_heap_tag(handle, reference.code, &tag), in: "PurgeableHeap.tag(of: \(reference))",
      explanations: [Status.unsupported: "the heap keeps no tags: make it with `keepsTags` in its options"])
    return tag
  }
}
