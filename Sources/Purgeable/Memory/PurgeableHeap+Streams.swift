// SPDX-License-Identifier: MIT
// Streams: which slabs there are, in order of birth, what lives in them, and how to empty one.

import CPurgeable

extension PurgeableHeap {
  /// Makes a stream. It cannot be taken back: a heap has at most 1,024.
  ///
  /// - Throws: `PurgeableError`: out of memory.
  public borrowing func makeStream() throws(PurgeableError) -> HeapStream {
    var number: UInt32 = 0
    try PurgeableError.check(unsafe purgeable_stream_create(handle, &number), in: "PurgeableHeap.makeStream", call: "mmap")
    return HeapStream(number: number)
  }

  /// Closes the slab that a stream is filling, so that the next element begins a fresh one.
  ///
  /// - Throws: `PurgeableError`: invalid argument (an unknown stream).
  public borrowing func seal(_ stream: HeapStream) throws(PurgeableError) {
    try PurgeableError.check(unsafe purgeable_stream_seal(handle, stream.number), in: "PurgeableHeap.seal", argument: "stream")
  }

  /// The slabs of a stream, oldest first.
  ///
  /// - Throws: `PurgeableError`: invalid argument (an unknown stream).
  /// - Complexity: O(slabs).
  public borrowing func slabs(of stream: HeapStream) throws(PurgeableError) -> [HeapSlab] {
    var codes: [purgeable_slab_t] = []
    var count = 0
    repeat {
      // Asked again while the stream has grown between the question for room and the answer.
      codes = Array(repeating: purgeable_slab_t(), count: count)
      try PurgeableError.check(
        unsafe purgeable_stream_slabs(handle, stream.number, &codes, codes.count, &count), in: "PurgeableHeap.slabs",
        argument: "stream")
    } while count > codes.count
    return codes.prefix(count).map(HeapSlab.init)
  }

  /// The elements living in a slab, in order of birth, discarded ones included. What is stored or freed meanwhile may be missing.
  ///
  /// - Throws: `PurgeableError`: stale reference (the slab's life is over).
  /// - Complexity: O(elements).
  public borrowing func elements(of slab: HeapSlab) throws(PurgeableError) -> [ElementReference] {
    var found: [ElementReference] = []
    var cursor: UInt32 = 0
    while true {
      var reference = purgeable_reference_t()
      let status = unsafe purgeable_slab_next_element(handle, slab.code, &cursor, &reference)
      if status == Status.noEntry { return found }
      try PurgeableError.check(status, in: "PurgeableHeap.elements(of:)", argument: "slab")
      found.append(ElementReference(reference))
    }
  }

  /// The slab an element lies in.
  ///
  /// - Throws: `PurgeableError`: stale reference.
  public borrowing func slab(of reference: ElementReference) throws(PurgeableError) -> HeapSlab {
    var slab = purgeable_slab_t()
    try PurgeableError.check(
      unsafe purgeable_slab_of(handle, reference.code, &slab), in: "PurgeableHeap.slab(of: \(reference))")
    return HeapSlab(slab)
  }

  /// Copies all that lives in a slab to the end of a stream and gives the slab back to the system.
  ///
  /// - Parameters:
  ///   - slab: sealed by this.
  ///   - stream: where the living go; may be their own.
  ///   - moved: asked for every element; see `Moved`. Called before this returns, on this thread.
  /// - Returns: how many elements stay, because the owner said `false` or because they are discarded and wait to be freed. 0: the
  ///   slab was given back, or will be by its last unlock.
  /// - Throws: `PurgeableError`: stale reference (the slab's life is over), invalid argument (an unknown stream), out of memory.
  public borrowing func evacuate(
    _ slab: HeapSlab, to stream: HeapStream = .first,
    moved: (_ from: ElementReference, _ to: ElementReference, _ tag: UInt64, _ bytes: RawSpan) -> Bool
  ) throws(PurgeableError) -> Int {
    var staying: UInt32 = 0
    // Safe: the core calls back only before it returns, and the mover is kept until then.
    let status = withoutActuallyEscaping(moved) { moved in
      withExtendedLifetime(Mover(moved)) { mover in
        unsafe purgeable_slab_evacuate(
          handle, slab.code, stream.number, Mover.callback, Unmanaged.passUnretained(mover).toOpaque(), &staying)
      }
    }
    if status == Status.busy { return Int(staying) }
    try PurgeableError.check(status, in: "PurgeableHeap.evacuate", argument: "stream")
    return 0
  }
}
