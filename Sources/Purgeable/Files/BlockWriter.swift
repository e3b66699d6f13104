// SPDX-License-Identifier: MIT
// The blocks of a new file: a thread writes one while its owner fills the next.
//
//   owner    fills a block, waits until the one before is written, hands it over, fills the other half of the buffer
//   thread   writes what is handed over; begins with the first whole block, so that a small file needs none
//
// Nothing of it stays in the page cache. Pages that were written there would push out what the cache has on offer, which the
// kernel takes for the cheapest memory there is: so whole pages go around it (O_DIRECT) or, where the file system knows no such
// thing, are written at once and given up (sync_file_range, POSIX_FADV_DONTNEED).

import CPurgeableFiles
import Glibc

/// What could not be done with a file.
struct BlockFailure: Error {
  let call: String
  let what: String
  var number = errno
}

/// `@unchecked Sendable`: what changes is under the mutex, or is of whoever writes: the thread while it has a block, else the
/// owner, which is one thread at a time. `@safe`: a block is its owner's, who waits. Not for a forked child, which has no such
/// thread.
@safe final class BlockWriter: @unchecked Sendable {
  private let file: Int32

  // Under the mutex.
  private let mutex = WaitableMutex()
  private var block = unsafe UnsafeRawBufferPointer(start: nil, count: 0)
  private var failure: BlockFailure?
  private var hasThread = false
  private var isEnded = false

  // Of whoever writes.
  private var isDirect: Bool
  private var written = 0
  /// From where on pages may be in the page cache.
  private var cachedFrom = 0

  /// Of a block that is not the last.
  static let blockByteCount = 512 << 10
  /// Written to the disk at a time where the page cache is in between.
  private static let flushedByteCount = 8 << 20

  /// `file`: stays its owner's.
  init(_ file: Int32, isDirect: Bool) { (self.file, self.isDirect) = (file, isDirect) }

  // MARK: The owner

  /// Hands a block over, whose bytes stay as they are until the next call has returned. Throws where an earlier one failed.
  func write(_ block: UnsafeRawBufferPointer) throws(BlockFailure) {
    try wait()
    if !hasThread, block.count == Self.blockByteCount, MemoryReserve.isThere(MemoryReserve.ofObjects) {
      hasThread = startThread { [self] in run() }
    }
    guard hasThread else { return unsafe try put(block) }
    mutex.withLock {
      unsafe self.block = block
      mutex.signal()
    }
  }

  /// Waits until all is written.
  func wait() throws(BlockFailure) {
    let known = mutex.withLock {
      while unsafe !block.isEmpty { _ = mutex.wait(until: nil) }
      return failure
    }
    if let known { throw known }
  }

  /// For what is no whole page. Nothing is being written.
  func leaveDirect() throws(BlockFailure) {
    guard isDirect else { return }
    guard purgeable__leave_direct(file) else { throw BlockFailure(call: "fcntl", what: "it cannot be written") }
    (isDirect, cachedFrom) = (false, written)
  }

  /// Ends the thread. It does not use the file any more.
  func end() {
    mutex.withLock {
      isEnded = true
      mutex.signal()
      while hasThread { _ = mutex.wait(until: nil) }
    }
  }

  // MARK: The thread

  private func run() {
    mutex.lock()
    while true {
      if unsafe block.isEmpty {
        if isEnded { break }
        _ = mutex.wait(until: nil)
        continue
      }
      mutex.unlock()
      var failure: BlockFailure?
      do throws(BlockFailure) { unsafe try put(block) } catch { failure = error }
      mutex.lock()
      self.failure = failure
      unsafe block = UnsafeRawBufferPointer(start: nil, count: 0)
      mutex.signal()
    }
    hasThread = false
    mutex.signal()
    mutex.unlock()
  }

  private func put(_ block: UnsafeRawBufferPointer) throws(BlockFailure) {
    var done = 0
    while done < block.count {
      let rest = unsafe UnsafeRawBufferPointer(rebasing: block[done...])
      let count = unsafe pwrite(file, rest.baseAddress, rest.count, off_t(written))
      if count < 0, errno == EINTR { continue }
      // A file system may take the flag and refuse the write.
      if count < 0, errno == EINVAL, isDirect {
        try leaveDirect()
        continue
      }
      guard count > 0 else {
        if count == 0 { errno = ENOSPC }
        throw BlockFailure(call: "write", what: "it cannot be written")
      }
      (done, written) = (done + count, written + count)
      // A part of a page was written: what follows does not begin on one.
      if written % CacheFile.pageByteCount != 0 { try leaveDirect() }
    }
    if !isDirect, written - cachedFrom >= Self.flushedByteCount {
      guard purgeable__write_out(file, off_t(cachedFrom), off_t(written - cachedFrom)) else {
        throw BlockFailure(call: "sync_file_range", what: "it cannot be brought to the disk")
      }
      cachedFrom = written
    }
  }
}
