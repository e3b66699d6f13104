// SPDX-License-Identifier: MIT
// The blocks of a file, one after the other: a thread reads the next one while its owner uses the one before.
//
// They go around the page cache (O_DIRECT) or, where the file system knows no such thing, are given up as soon as they are read.

import CPurgeableFiles
import Glibc

/// `@unchecked Sendable`: what changes is of whoever reads: the thread from `begin` to `wait`, else the owner, which is one
/// thread at a time. `@safe`: a block is its owner's, who waits. Not for a forked child.
@safe final class BlockReader: SideThread, @unchecked Sendable {
  private var file: Int32
  private var isDirect: Bool
  private var block = unsafe UnsafeMutableRawBufferPointer(start: nil, count: 0)
  private var place = 0
  private var result = Result<Int, BlockFailure>.success(0)

  static func open(_ path: String) throws(BlockFailure) -> BlockReader {
    let flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK
    var file = unsafe purgeable__open_direct(AT_FDCWD, path, flags, 0)
    let isDirect = file >= 0
    if file < 0, errno == EINVAL { file = unsafe Glibc.open(path, flags) }
    if file < 0 { throw BlockFailure(call: "open", what: "it cannot be read") }
    return BlockReader(file, isDirect: isDirect)
  }

  private init(_ file: Int32, isDirect: Bool) { (self.file, self.isDirect) = (file, isDirect) }

  deinit { close() }

  /// Ends the thread, and gives up what is in the page cache. Also in a forked child, where the thread keeps this object alive.
  func close() {
    end()
    if file < 0 { return }
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)
    Glibc.close(file)
    file = -1
  }

  func status() -> stat? {
    var status = stat()
    return unsafe fstat(file, &status) == 0 ? status : nil
  }

  /// Begins to fill a block from a place that is a multiple of a page, as far as the file reaches. `isLast`: no other one
  /// follows.
  func begin(_ block: UnsafeMutableRawBufferPointer, at place: Int, isLast: Bool) {
    unsafe self.block = block
    self.place = place
    begin(makesThread: !isLast)
  }

  /// Waits until it is filled. How many bytes there are.
  func fill() throws(BlockFailure) -> Int {
    wait()
    return try result.get()
  }

  override func work() { result = Result { () throws(BlockFailure) in unsafe try read(block, at: place) } }

  /// Fills a buffer, as far as the file reaches. Nothing is being read.
  func read(_ buffer: UnsafeMutableRawBufferPointer, at place: Int) throws(BlockFailure) -> Int {
    var done = 0
    while done < buffer.count {
      let got = unsafe pread(file, buffer.baseAddress! + done, buffer.count - done, off_t(place + done))
      if got < 0, errno == EINTR { continue }
      if got < 0, errno == EINVAL, isDirect {
        // A file system may take the flag and refuse to read.
        guard purgeable__leave_direct(file) else { throw BlockFailure(call: "fcntl", what: "it cannot be read") }
        isDirect = false
        continue
      }
      if got < 0 { throw BlockFailure(call: "read", what: "it cannot be read") }
      done += got
      // The end; around the page cache, the next read would not begin on a page.
      if got == 0 || isDirect && done % CacheFile.pageByteCount != 0 { break }
    }
    if !isDirect { posix_fadvise(file, off_t(place), off_t(done), POSIX_FADV_DONTNEED) }
    return done
  }
}
