// SPDX-License-Identifier: MIT
// Storing, reading and freeing elements.

import CPurgeable

extension PurgeableHeap {
  /// Stores a copy of the bytes.
  ///
  /// - Parameters:
  ///   - bytes: at least 1 and less than 4 GiB.
  ///   - stream: what is stored in one stream lies together, in order.
  ///   - tag: a number of the owner's, returned by `tag(of:)` and given to `Moved`; ignored unless the heap keeps tags.
  /// - Throws: `PurgeableError`: invalid argument (no bytes, an unknown stream), too large, out of memory (the limit too), busy
  ///   (very many elements are being written at once). Nothing has changed then.
  /// - Complexity: a copy; no system call, but for an mmap per chunk, and an offer per slab in immediate mode.
  public borrowing func store(
    _ bytes: RawSpan, in stream: HeapStream = .first, tag: UInt64 = 0
  ) throws(PurgeableError) -> ElementReference {
    try store(byteCount: bytes.byteCount, in: stream, tag: tag) { space throws(PurgeableError) in
      copy(bytes, to: &space)
    }
  }

  /// Stores a copy of a collection's bytes; see `store(_:in:tag:)`.
  public borrowing func store(
    _ bytes: some Collection<UInt8>, in stream: HeapStream = .first, tag: UInt64 = 0
  ) throws(PurgeableError) -> ElementReference {
    var reference: ElementReference?
    try withRawSpan(of: bytes) { span throws(PurgeableError) in
      reference = try store(span, in: stream, tag: tag)
    }
    guard let reference else { stop("PurgeableHeap.store: neither a reference nor an error") }
    return reference
  }

  /// Makes room for an element and has a closure fill it, zeros so far. When `body` throws, the element is given up.
  ///
  /// The slab is kept off offer while `body` runs; keep it short. Errors and cost as `store(_:in:tag:)`.
  public borrowing func store(
    byteCount: Int, in stream: HeapStream = .first, tag: UInt64 = 0,
    initializingWith body: (inout MutableRawSpan) throws(PurgeableError) -> Void
  ) throws(PurgeableError) -> ElementReference {
    guard byteCount > 0 else {
      throw PurgeableError(
        .invalidArgument("byteCount"), in: "PurgeableHeap.store", explanation: "an element has at least 1 byte, not \(byteCount)")
    }
    var reference = purgeable_reference_t()
    var bytes: UnsafeMutableRawPointer?
    try PurgeableError.check(
      unsafe purgeable_heap_allocate_in(handle, stream.number, byteCount, tag, &reference, &bytes),
      in: "PurgeableHeap.store(\(byteCount) bytes)", argument: "stream", call: "mmap", explanations: Self.noSuchStream)
    do throws(PurgeableError) {
      // Safe: until it is committed the element is `byteCount` bytes that only this call knows.
      var space = unsafe UnsafeMutableRawBufferPointer(start: bytes, count: byteCount).mutableBytes
      try body(&space)
    } catch {
      _ = unsafe purgeable_heap_free(handle, reference)
      throw error
    }
    try PurgeableError.check(unsafe purgeable_heap_commit(handle, reference), in: "PurgeableHeap.store")
    return ElementReference(reference)
  }

  /// Locks an element, lends its bytes, unlocks. `nil`, without calling `body`, when the content was discarded.
  ///
  /// The bytes stay while `body` runs, whatever the kernel needs, also when another thread frees the element meanwhile.
  ///
  /// - Throws: `PurgeableError`: stale reference, count overflow, busy (`Options.lockedByteLimit` is reached; `read` still
  ///   works); or what `body` throws. A closure with errors of its own type returns a `Result`.
  /// - Complexity: an atomic operation for the slab and one for each page of the element; no system call.
  @discardableResult
  public borrowing func withBytes<Result: ~Copyable>(
    of reference: ElementReference, _ body: (RawSpan) throws(PurgeableError) -> Result
  ) throws(PurgeableError) -> Result? {
    var start: UnsafeRawPointer?
    var count = 0
    switch unsafe purgeable_heap_lock(handle, reference.code, &start, &count) {
    case .intact: break
    case .discarded: return nil
    case .busy, .error:
      throw PurgeableError.of(lastErrorNumber(), in: "PurgeableHeap.withBytes(of: \(reference))")
    }
    defer { _ = unsafe purgeable_heap_unlock(handle, reference.code) }
    // Safe: locked until after `body`, and the span cannot leave it.
    return try unsafe body(UnsafeRawBufferPointer(start: start, count: count).bytes)
  }

  /// Copies an element without locking: no system call, no page dirtied, the offer to the kernel stands.
  ///
  /// - Parameters:
  ///   - reference: the element.
  ///   - buffer: gets its bytes at its front.
  /// - Returns: the outcome and the element's length; the buffer's bytes are unspecified unless it is `intact`.
  /// - Throws: `PurgeableError`: stale reference; invalid argument when the buffer is too small (the explanation says by how
  ///   much).
  public borrowing func read(
    _ reference: ElementReference, into buffer: inout MutableSpan<UInt8>
  ) throws(PurgeableError) -> (outcome: ReadOutcome, byteCount: Int) {
    var count = 0
    // Safe: the buffer is valid for the length of the closure, and the core writes at most its count.
    let outcome = unsafe buffer.withUnsafeMutableBytes { bytes in
      unsafe purgeable_heap_read(handle, reference.code, bytes.baseAddress, bytes.count, &count)
    }
    switch outcome {
    case .intact: return (.intact, count)
    case .discarded: return (.discarded, 0)
    case .busy: return (.busy, 0)
    case .error:
      throw PurgeableError.of(
        lastErrorNumber(), in: "PurgeableHeap.read(\(reference))", argument: "buffer",
        explanation: count > buffer.count ? "the element has \(count) bytes, the buffer room for \(buffer.count)" : nil)
    }
  }

  /// A copy of an element's bytes, made without locking while that succeeds; `nil` when they were discarded.
  ///
  /// - Throws: `PurgeableError`: stale reference; out of memory, for 128 KiB or more. Where there is none for a smaller array,
  ///   Swift's runtime ends the program: code that has to go on then uses `read(_:into:)` or `withBytes(of:_:)`.
  public borrowing func bytes(of reference: ElementReference) throws(PurgeableError) -> [UInt8]? {
    guard let count = try byteCount(of: reference, in: "bytes") else { return nil }
    guard count < MemoryReserve.ofLargeResults || MemoryReserve.isThere(2 * (count + 4096)) else {
      throw PurgeableError.withoutMemory(in: "PurgeableHeap.bytes(of:)")
    }
    var copy = [UInt8](repeating: 0, count: count)
    var span = copy.mutableSpan
    switch try read(reference, into: &span).outcome {
    case .intact: return copy
    case .discarded: return nil
    case .busy: return try withBytes(of: reference) { bytes in Array(copying: bytes) }
    }
  }
}
