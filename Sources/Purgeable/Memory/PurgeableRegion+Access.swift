// SPDX-License-Identifier: MIT
// Reading, writing, refilling and giving up the content of a region.

import CPurgeable

extension PurgeableRegion {
  /// Locks for reading, lends the bytes, unlocks. `nil`, without calling `body`, when the content was discarded, or no more may
  /// be locked (`setLockedByteLimit`).
  ///
  /// Any number of threads may read at once. The content stays while `body` runs, whatever the kernel needs. Throws only what
  /// `body` throws. While another thread fills the region (`withBytes(orRefilling:_:)`) this waits, and answers `nil` when that
  /// gives up. More than 1,048,575 locks at once stop the program, and so does reading a region within the closure that fills it.
  ///
  /// - Complexity: an atomic operation each for lock and unlock; after an offer one more for each page (the rescue). No system
  ///   call, but for the offer in immediate mode, and a futex wait while another thread is offering this very region.
  @discardableResult
  public borrowing func withBytes<Result: ~Copyable, Failure: Error>(
    _ body: (RawSpan) throws(Failure) -> Result
  ) throws(Failure) -> Result? {
    guard lock() else { return nil }
    defer { unlock() }
    return try body(unsafe lockedBuffer.bytes)
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
    var span = unsafe lockedBuffer.mutableBytes
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
    case .error: throw PurgeableError.of(lastErrorNumber(), in: "PurgeableRegion.read", argument: "offset")
    }
  }

  /// Locks for reading, lends the bytes, unlocks; where the content was discarded, one caller makes it anew first.
  ///
  /// Of all threads that find the content discarded, one runs `fill`, on zeros; the others wait, and then all of them run their
  /// `body`. Nobody is ever lent what is half made. When `fill` throws, the region is discarded again, the caller gets the error,
  /// and those who waited get `nil`; the next call runs its `fill`.
  ///
  /// - Parameters:
  ///   - fill: makes the content. Using this region within it stops the program.
  ///   - body: gets the bytes.
  /// - Returns: what `body` returns; `nil` when another thread gave its fill up, or the limit of what may be locked is reached.
  /// - Throws: `PurgeableError` when the kernel refuses to clear the pages, or at 1,048,575 locks (then nothing has changed); or
  /// what the closures throw. A closure that has an error of its own kind to tell keeps it in a variable outside, and throws a
  /// `PurgeableError`.
  /// - Complexity: as `withBytes`; for the one that fills, one system call (MADV_DONTNEED), and one to wake those who wait.
  @discardableResult
  public borrowing func withBytes<Result: ~Copyable>(
    orRefilling fill: (inout MutableRawSpan) throws(PurgeableError) -> Void,
    _ body: (RawSpan) throws(PurgeableError) -> Result
  ) throws(PurgeableError) -> Result? {
    stopIfFilling("withBytes(orRefilling:)")
    var isFiller = false
    switch unsafe purgeable_region_lock_or_fill(handle, &isFiller) {
    case .intact: break
    case .discarded:
      guard isFiller else { return nil }
      do throws(PurgeableError) {
        // Safe: locked for writing by this thread, and the core lends it to nobody else before it is published.
        var span = unsafe lockedBuffer.mutableBytes
        try fill(&span)
      } catch {
        _ = unsafe purgeable_region_abandon(handle)
        throw error
      }
      _ = unsafe purgeable_region_publish(handle)
    case .error where lastErrorNumber() == Status.again: return nil
    case .busy, .error:
      throw PurgeableError.of(lastErrorNumber(), in: "PurgeableRegion.withBytes(orRefilling:)", argument: "region")
    }
    defer { unlock() }
    return try body(unsafe lockedBuffer.bytes)
  }

  /// Starts the content anew: a closure fills it from zeros, and it is not discarded any more. What was there is gone.
  ///
  /// When `body` throws, the fill is given up: the region is discarded, and nobody is ever lent what is half made.
  ///
  /// - Throws: `PurgeableError` when the kernel refuses to clear the pages (then nothing has changed); or what `body` throws.
  /// - Complexity: one system call (MADV_DONTNEED), and the filling.
  public mutating func refill(
    with body: (inout MutableRawSpan) throws(PurgeableError) -> Void
  ) throws(PurgeableError) {
    try PurgeableError.check(unsafe purgeable_region_refill(handle), in: "PurgeableRegion.refill")
    do throws(PurgeableError) {
      var span = unsafe lockedBuffer.mutableBytes
      try body(&span)
    } catch {
      _ = unsafe purgeable_region_abandon(handle)
      throw error
    }
    unlock()
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
      explanations: [
        Status.invalid: "the kernel refuses the offer, or the memory is mlocked: KernelSupport.probe() says what the kernel does"
      ])
  }
}

// MARK: For owners within this library

extension PurgeableRegion {
  /// All bytes; to be touched only under a lock, and written to only by one who keeps all others out.
  var lockedBuffer: UnsafeMutableRawBufferPointer {
    unsafe UnsafeMutableRawBufferPointer(start: purgeable_region_bytes(handle), count: purgeable_region_length_bytes(handle))
  }

  /// Locks; false when discarded, or when that would exceed the limit of what may be locked. Waits while another thread fills.
  borrowing func lock(forWriting: Bool = false) -> Bool {
    let outcome: purgeable_outcome_t
    if forWriting {
      outcome = unsafe purgeable_region_lock_for_writing_waiting(handle)
    } else {
      // Unlike the others, this one answers busy to the thread that fills as well.
      let first = unsafe purgeable_region_try_lock(handle)
      if first == .busy { stopIfFilling("withBytes") }
      outcome = first == .busy ? unsafe purgeable_region_lock_waiting(handle) : first
    }
    switch outcome {
    case .intact: return true
    case .discarded: return false
    case .error where lastErrorNumber() == Status.again: return false
    // Busy regions were waited for, and the handle is never NULL: only a count overflow is left.
    case .busy, .error: stop("PurgeableRegion of \(byteCount) bytes: more than \(lockCount) locks are held at once")
    }
  }

  /// A thread cannot read a region that it is filling: the bytes are lent to the closure that fills.
  private borrowing func stopIfFilling(_ operation: String) {
    guard unsafe purgeable_region_fills_here(handle) else { return }
    stop("PurgeableRegion of \(byteCount) bytes: \(operation) within the closure that fills it")
  }

  /// Gives a lock back; after the last one, rings for the region to be offered.
  borrowing func unlock() {
    if unlockQuietly() { WorkBell.ring() }
  }

  /// Gives a lock back and says whether that put the region into the queue of those to offer, in immediate mode once more: the
  /// first offer skips pages that another processor has just filled. For callers that hold a mutex.
  borrowing func unlockQuietly() -> Bool {
    _ = unsafe purgeable_region_unlock(handle)
    return offering != .never && lockCount == 0
  }
}
