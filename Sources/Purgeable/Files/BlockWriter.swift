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

/// `@unchecked Sendable`: what changes is of whoever writes: the thread while it has a block, else the owner, which is one thread
/// at a time. `@safe`: a block is its owner's, who waits. Not for a forked child.
@safe final class BlockWriter: SideThread, @unchecked Sendable {
  private let file: Int32
  private var block = unsafe UnsafeRawBufferPointer(start: nil, count: 0)
  private var failure: BlockFailure?
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

  /// Hands a block over, whose bytes stay as they are until the next call has returned. Throws where an earlier one failed.
  func write(_ block: UnsafeRawBufferPointer) throws(BlockFailure) {
    try finish()
    unsafe self.block = block
    begin(makesThread: block.count == Self.blockByteCount)
  }

  /// Waits until all is written.
  func finish() throws(BlockFailure) {
    wait()
    if let failure { throw failure }
  }

  /// For what is no whole page. Nothing is being written.
  func leaveDirect() throws(BlockFailure) {
    guard isDirect else { return }
    guard purgeable__leave_direct(file) else { throw BlockFailure(call: "fcntl", what: "it cannot be written") }
    (isDirect, cachedFrom) = (false, written)
  }

  override func work() {
    do throws(BlockFailure) { unsafe try put(block) } catch { failure = error }
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
