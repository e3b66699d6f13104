// SPDX-License-Identifier: MIT
// Reading, writing, refilling and giving up the content of a region.

import CPurgeable

extension PurgeableRegion {
  /// Locks for reading, lends the bytes, unlocks. `nil`, without calling `body`, when the content was discarded.
  ///
  /// Any number of threads may read at once. The content stays while `body` runs, whatever the kernel needs. Throws only what
  /// `body` throws. More than 1,048,575 locks at once stop the program.
  ///
  /// - Complexity: an atomic operation each for lock and unlock; after an offer one more for each page (the rescue). No system
  ///   call, but for the offer in immediate mode, and a futex wait while another thread is offering this very region.
  @discardableResult
  public borrowing func withBytes<Result: ~Copyable, Failure: Error>(
    _ body: (RawSpan) throws(Failure) -> Result
  ) throws(Failure) -> Result? {
    guard lock() else { return nil }
    defer { unlock() }
    return try body(unsafe lockedBytes.bytes)
  }

  /// Locks for writing, lends the bytes, unlocks. `nil`, without calling `body`, when the content was discarded.
  ///
  /// The change stands, also when `body` throws. Reads without lock answer `busy` meanwhile. Cost as `withBytes`; the unlock also
  /// looks for a non-zero word in each page, at once found in most content.
  @discardableResult
  public mutating func withMutableBytes<Result: ~Copyable, Failure: Error>(
    _ body: (inout MutableRawSpan) throws(Failure) -> Result
  ) throws(Failure) -> Result? {
    guard lock(forWriting: true) else { return nil }
    defer { unlock() }
    var span = unsafe lockedBytes.mutableBytes
    return try body(&span)
  }

  /// Copies bytes without locking: no system call, no page dirtied, the offer to the kernel stands.
  ///
  /// Fills the whole of `buffer` with the bytes from `offset` on. They are content only if the answer is `intact`. Any thread,
  /// beside locks for reading as well. An empty buffer asks for the region as such.
  ///
  /// - Throws: `PurgeableError`: invalid argument, when the bytes asked for do not lie within the region.
  public borrowing func read(
    into buffer: inout MutableSpan<UInt8>, at offset: Int = 0
  ) throws(PurgeableError) -> ReadOutcome {
    guard offset >= 0, offset <= byteCount, buffer.count <= byteCount - offset else {
      throw PurgeableError(
        .invalidArgument("offset"), in: "PurgeableRegion.read",
        explanation: "\(buffer.count) bytes at \(offset) do not lie within the region's \(byteCount)")
    }
    // Safe: the buffer is valid for the length of the closure, and the core writes at most its count. With an empty buffer it
    // gets the address of a byte it does not write to, because NULL is an error to it.
    var nothing: UInt8 = 0
    let outcome =
      buffer.isEmpty
      ? unsafe purgeable_region_read(handle, offset, 0, &nothing)
      : unsafe buffer.withUnsafeMutableBytes { bytes in
        unsafe purgeable_region_read(handle, offset, bytes.count, bytes.baseAddress)
      }
    switch outcome {
    case .intact: return .intact
    case .discarded: return .discarded
    case .busy: return .busy
    case .error: throw PurgeableError(status: lastErrorNumber(), in: "PurgeableRegion.read", argument: "offset")
    }
  }

  /// Starts the content anew: a closure fills it from zeros, and it is not discarded any more. What was there is gone.
  ///
  /// When `body` throws, the region stands refilled with what was written so far, zeros else.
  ///
  /// - Throws: `PurgeableError` when the kernel refuses to clear the pages (then nothing has changed); or what `body` throws.
  /// - Complexity: one system call (MADV_DONTNEED), and the filling.
  public mutating func refill(
    with body: (inout MutableRawSpan) throws(PurgeableError) -> Void
  ) throws(PurgeableError) {
    try PurgeableError.check(unsafe purgeable_region_refill(handle), in: "PurgeableRegion.refill")
    defer { unlock() }
    var span = unsafe lockedBytes.mutableBytes
    try body(&span)
  }

  /// Gives the content up at once. Discarding what is discarded changes nothing.
  ///
  /// - Throws: `PurgeableError`: busy while another thread reads; a failed system call. Nothing has changed then.
  /// - Complexity: one system call (MADV_DONTNEED).
  public borrowing func discard() throws(PurgeableError) {
    try PurgeableError.check(unsafe purgeable_region_discard(handle), in: "PurgeableRegion.discard")
  }

  /// Offers the region to the kernel now (MADV_FREE), whatever its queue; nothing to do in `never` mode or when discarded.
  ///
  /// - Throws: `PurgeableError`: busy while locked; a failed system call where memory is mlocked or the kernel is too old. The
  ///   content is intact then.
  public borrowing func offer() throws(PurgeableError) {
    try PurgeableError.check(
      unsafe purgeable_region_offer(handle), in: "PurgeableRegion.offer",
      explanation: "the region is in use, or this kernel refuses the offer: KernelSupport.probe() says what it does")
  }
}

// MARK: For owners within this library

extension PurgeableRegion {
  /// All bytes; to be touched only under a lock, and written to only by one who keeps all others out.
  var lockedBytes: UnsafeMutableRawBufferPointer {
    unsafe UnsafeMutableRawBufferPointer(start: purgeable_region_bytes(handle), count: purgeable_region_length(handle))
  }

  /// Locks; false when discarded, or when that would exceed the limit of what may be locked.
  borrowing func lock(forWriting: Bool = false) -> Bool {
    let outcome = unsafe forWriting ? purgeable_region_lock_for_writing(handle) : purgeable_region_lock(handle)
    switch outcome {
    case .intact: return true
    case .discarded: return false
    case .error where lastErrorNumber() == Status.again: return false
    // The two ways of locking used here wait instead of answering busy, and the handle is never NULL: only the count is left.
    case .busy, .error: stop("PurgeableRegion of \(byteCount) bytes: more than \(lockCount) locks are held at once")
    }
  }

  /// Gives a lock back; where it was the last one, says that there is something to offer.
  borrowing func unlock() {
    if unlockQuietly() { noteIdleMemory() }
  }

  /// Gives a lock back and says whether that put the region into the queue of those to offer; for callers that hold a mutex.
  borrowing func unlockQuietly() -> Bool {
    _ = unsafe purgeable_region_unlock(handle)
    return offering == .deferred && lockCount == 0
  }
}
