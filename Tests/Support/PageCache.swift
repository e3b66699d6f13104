// SPDX-License-Identifier: MIT
// What of a file the kernel has in memory.

import Foundation
import Testing

/// How many pages of a file are in the page cache.
public func cachedPages(_ path: String) throws -> Int {
  let file = unsafe open(path, O_RDONLY)
  defer { close(file) }
  var status = stat()
  let isThere = unsafe file >= 0 && fstat(file, &status) == 0
  try #require(isThere)
  let byteCount = Int(status.st_size)
  var pages = [UInt8](repeating: 0, count: (byteCount + 4095) / 4096)
  let memory = unsafe mmap(nil, byteCount, PROT_READ, MAP_SHARED, file, 0)!
  defer { unsafe munmap(memory, byteCount) }
  let isKnown = unsafe mincore(memory, byteCount, &pages) == 0
  try #require(isKnown)
  return pages.count { $0 & 1 != 0 }
}

/// Ends the test where a file that is made at `path`, on the disk and given up is in memory all the same.
public func cancelWherePagesStay(_ path: String) throws {
  try Data(count: 1 << 20).write(to: URL(fileURLWithPath: path))
  let file = unsafe open(path, O_RDWR)
  fsync(file)
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)
  close(file)
  if try cachedPages(path) > 64 { try Test.cancel("this file system keeps its files in the page cache alone") }
}
