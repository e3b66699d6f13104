// SPDX-License-Identifier: MIT
// Files on disk: what they are, and their bytes.

import Glibc

/// What the kernel says about a path.
package struct FileStatus: Equatable, Sendable {
  package var device: UInt64
  package var inode: UInt64
  package var sizeBytes: UInt64
  package var changedSeconds: Int
  package var changedNanoseconds: Int
  package var isRegular: Bool
  package var isDirectory: Bool

  package init(
    device: UInt64, inode: UInt64, sizeBytes: UInt64, changedSeconds: Int, changedNanoseconds: Int, isRegular: Bool,
    isDirectory: Bool
  ) {
    self.device = device
    self.inode = inode
    self.sizeBytes = sizeBytes
    self.changedSeconds = changedSeconds
    self.changedNanoseconds = changedNanoseconds
    self.isRegular = isRegular
    self.isDirectory = isDirectory
  }

  init(_ status: stat) {
    device = UInt64(status.st_dev)
    inode = UInt64(status.st_ino)
    sizeBytes = UInt64(clamping: status.st_size)
    changedSeconds = status.st_mtim.tv_sec
    changedNanoseconds = status.st_mtim.tv_nsec
    isRegular = status.st_mode & S_IFMT == S_IFREG
    isDirectory = status.st_mode & S_IFMT == S_IFDIR
  }
}

package enum DiskFile {
  /// nil, with errno, where there is nothing or it may not be asked about.
  package static func status(_ path: String, followsLinks: Bool = false) -> FileStatus? {
    var status = stat()
    guard unsafe fstatat(AT_FDCWD, path, &status, followsLinks ? 0 : AT_SYMLINK_NOFOLLOW) == 0 else { return nil }
    return FileStatus(status)
  }

  /// A regular file's bytes, nil where it cannot be read. The kernel is asked to forget its cached pages, before with `fromDisk`,
  /// and afterwards without `leavesPageCache`.
  package static func read(_ path: String, fromDisk: Bool = false, leavesPageCache: Bool = true) -> [UInt8]? {
    // Not through links, and not waiting for whatever turned up in the file's place.
    let descriptor = unsafe open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
    guard descriptor >= 0 else { return nil }
    defer { close(descriptor) }
    var status = stat()
    guard unsafe fstat(descriptor, &status) == 0, FileStatus(status).isRegular else { return nil }
    if fromDisk { posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) }
    var failed = false
    // As much is initialised as was read.
    let bytes = unsafe [UInt8](unsafeUninitializedCapacity: Int(status.st_size)) { buffer, count in
      while count < buffer.count {
        let got = unsafe Glibc.read(descriptor, buffer.baseAddress! + count, buffer.count - count)
        if got < 0 && errno == EINTR { continue }
        failed = got < 0
        if got <= 0 { break }
        count += got
      }
    }
    if !leavesPageCache { posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) }
    return failed ? nil : bytes
  }

  /// Writes all of it. False, with errno, where that fails.
  package static func write(_ bytes: [UInt8], to descriptor: Int32) -> Bool {
    var done = 0
    while done < bytes.count {
      // In bounds: what is left after `done`.
      let written = unsafe bytes.withUnsafeBytes { unsafe Glibc.write(descriptor, $0.baseAddress! + done, $0.count - done) }
      if written < 0 && errno == EINTR { continue }
      guard written > 0 else { return false }
      done += written
    }
    return true
  }

  /// The names in a directory, sorted, without "." and ".."; those that are no UTF-8 are left out. nil where it cannot be read.
  package static func names(in directory: String) -> [(name: String, kind: UInt8)]? {
    guard let stream = unsafe opendir(directory) else { return nil }
    defer { unsafe closedir(stream) }
    var found: [(name: String, kind: UInt8)] = []
    // An entry is valid until the next `readdir`; its name ends with a zero.
    while let entry = unsafe readdir(stream) {
      let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) { tuple in
        unsafe tuple.withMemoryRebound(to: CChar.self, capacity: 256) { unsafe String(validatingCString: $0) }
      }
      if let name, name != ".", name != ".." { found.append((name, unsafe entry.pointee.d_type)) }
    }
    return found.sorted { $0.name.utf8.lexicographicallyPrecedes($1.name.utf8) }
  }
}
