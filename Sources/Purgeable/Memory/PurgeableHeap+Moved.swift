// SPDX-License-Identifier: MIT
// The callback by which the owner of references learns that an element was copied to a new place.

import CPurgeable

extension PurgeableHeap {
  /// An owner's answer when an element was copied to a new place.
  ///
  /// Exchange the old reference for the new one wherever it is kept, if the old one still stands there, and say `true`; or say
  /// `false`, and the copy is freed and the old place stays. The heap holds no mutex meanwhile and may be called. The span is the
  /// copy; the tag is 0 unless the heap keeps tags.
  public typealias Moved = @Sendable (_ from: ElementReference, _ to: ElementReference, _ tag: UInt64, _ bytes: RawSpan) -> Bool

  /// Carries an owner's closure through the core's callback.
  final class Mover: Sendable {
    // Safe to share: it is either a heap's own, which is Sendable, or called only by the thread that lent it for one call.
    nonisolated(unsafe) let moved: (ElementReference, ElementReference, UInt64, RawSpan) -> Bool

    init(_ moved: @escaping (ElementReference, ElementReference, UInt64, RawSpan) -> Bool) { unsafe self.moved = moved }

    static let callback: purgeable_moved_t = { context, from, to, tag, bytes, length in
      guard let context = unsafe context else { return false }
      // Safe: the context is a mover that its giver keeps alive while the heap may call, and the core keeps `length` bytes
      // readable during the call.
      let mover = unsafe Unmanaged<Mover>.fromOpaque(context).takeUnretainedValue()
      return unsafe mover.moved(
        ElementReference(from), ElementReference(to), tag, UnsafeRawBufferPointer(start: bytes, count: length).bytes)
    }
  }
}
