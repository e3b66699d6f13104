// SPDX-License-Identifier: MIT
// Streams: which slabs there are, in order of birth, what lives in them, and how to empty one.

import CPurgeable

extension PurgeableHeap {
  static var noSuchStream: [Int32: String] { [Status.invalid: "the heap has no such stream"] }

  /// Makes a stream. It cannot be taken back: a heap has at most 1,024.
  ///
  /// - Throws: `PurgeableError`: out of memory.
  public borrowing func makeStream() throws(PurgeableError) -> HeapStream {
    var number: UInt32 = 0
    try PurgeableError.check(
      unsafe purgeable_stream_create(handle, &number), in: "PurgeableHeap.makeStream", call: "mmap",
      explanations: [Status.noMemory: "the heap has 1,024 streams, which is the most, or no memory is left for another one"])
    return HeapStream(number: number)
  }

  /// Closes the slab that a stream is filling, so that the next element begins a fresh one.
  ///
  /// - Throws: `PurgeableError`: invalid argument (an unknown stream).
  public borrowing func seal(_ stream: HeapStream) throws(PurgeableError) {
    try PurgeableError.check(
      unsafe purgeable_stream_seal(handle, stream.number), in: "PurgeableHeap.seal", argument: "stream",
      explanations: Self.noSuchStream)
  }

  /// Keeps a stream's slabs off offer from now on, so that the kernel cannot take them, or lets them go on offer again. What is
  /// on offer already stays so until it is locked.
  ///
  /// - Throws: `PurgeableError`: invalid argument (an unknown stream).
  public borrowing func withhold(_ stream: HeapStream, _ withholds: Bool = true) throws(PurgeableError) {
    try PurgeableError.check(
      unsafe purgeable_stream_withhold(handle, stream.number, withholds), in: "PurgeableHeap.withhold", argument: "stream",
      explanations: Self.noSuchStream)
  }

  /// The slabs of a stream, oldest first.
  ///
  /// - Throws: `PurgeableError`: invalid argument (an unknown stream), out of memory.
  /// - Complexity: O(slabs).
  public borrowing func slabs(of stream: HeapStream) throws(PurgeableError) -> [HeapSlab] {
    var codes: [purgeable_slab_t] = []
    var count = 0
    repeat {
      // Asked again while the stream has grown between the question for room and the answer. Two arrays, the second after the
      // first.
      guard MemoryReserve.isThere(2 * count * MemoryLayout<purgeable_slab_t>.stride + MemoryReserve.ofNews) else {
        throw PurgeableError.withoutMemory(in: "PurgeableHeap.slabs(of:)")
      }
      codes = Array(repeating: purgeable_slab_t(), count: count)
      try PurgeableError.check(
        unsafe purgeable_stream_slabs(handle, stream.number, &codes, codes.count, &count), in: "PurgeableHeap.slabs",
        argument: "stream", explanations: Self.noSuchStream)
    } while count > codes.count
    return codes.prefix(count).map(HeapSlab.init)
  }

  /// The elements living in a slab, in order of birth, discarded ones included. What is stored or freed meanwhile may be missing.
  ///
  /// - Throws: `PurgeableError`: stale reference (the slab's life is over), out of memory.
  /// - Complexity: O(elements).
  public borrowing func elements(of slab: HeapSlab) throws(PurgeableError) -> [ElementReference] {
    // Counted first, so that the array need not grow.
    var count = 0
    try eachElement(of: slab) { _ in
      count += 1
      return true
    }
    guard MemoryReserve.isThere(count * MemoryLayout<ElementReference>.stride + MemoryReserve.ofNews) else {
      throw PurgeableError.withoutMemory(in: "PurgeableHeap.elements(of:)")
    }
    var found: [ElementReference] = []
    found.reserveCapacity(count)
    try eachElement(of: slab) { element in
      found.append(element)
      return found.count < count
    }
    return found
  }

  /// Calls `body` with one after the other, for as long as it says so.
  private borrowing func eachElement(of slab: HeapSlab, _ body: (ElementReference) -> Bool) throws(PurgeableError) {
    var cursor: UInt32 = 0
    while true {
      var reference = purgeable_reference_t()
      let status = unsafe purgeable_slab_next_element(handle, slab.code, &cursor, &reference)
      if status == Status.noEntry { return }
      try PurgeableError.check(status, in: "PurgeableHeap.elements(of:)", argument: "slab")
      if !body(ElementReference(reference)) { return }
    }
  }

  /// The slab an element lies in; of an element that was freed, the one it lay in, as long as that lives.
  ///
  /// - Throws: `PurgeableError`: stale reference (the slab's life is over).
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
  /// - Throws: `PurgeableError`: stale reference (the slab's life is over), invalid argument (an unknown stream), out of memory,
  ///   busy (too many elements of one slab are being written at once).
  public borrowing func evacuate(
    _ slab: HeapSlab, to stream: HeapStream = .first,
    moved: (_ from: ElementReference, _ to: ElementReference, _ tag: UInt64, _ bytes: RawSpan) -> Bool
  ) throws(PurgeableError) -> Int {
    // The runtime takes memory for the closure, and ends the program without it.
    guard MemoryReserve.isThere(MemoryReserve.ofNews) else { throw PurgeableError.withoutMemory(in: "PurgeableHeap.evacuate") }
    var staying: UInt32 = 0
    // Safe: the core calls back only before it returns, and the mover is kept until then.
    let status = withoutActuallyEscaping(moved) { moved in
      withExtendedLifetime(Mover(moved)) { mover in
        unsafe purgeable_slab_evacuate(
          handle, slab.code, stream.number, Mover.callback, Unmanaged.passUnretained(mover).toOpaque(), &staying)
      }
    }
    if status == Status.busy { return Int(staying) }
    try PurgeableError.check(status, in: "PurgeableHeap.evacuate", argument: "stream", explanations: Self.noSuchStream)
    return 0
  }
}
