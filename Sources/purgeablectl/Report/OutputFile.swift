// SPDX-License-Identifier: MIT
// A file that the program asks for: what is at its path stays the file, the pipe or the device that it is.

import Glibc
import ToolSupport

final class OutputFile {
  let path: String
  private let descriptor: Int32
  /// Made here, and nothing is in it yet.
  private var isNew = false

  /// Opens it, or makes it; - is standard output. Nothing of what is there is changed yet.
  init(_ path: String) throws(ToolFailure) {
    self.path = path
    if path == "-" {
      descriptor = fcntl(1, F_DUPFD_CLOEXEC, 3)
    } else {
      let flags = O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY
      let made = unsafe open(path, flags | O_EXCL, 0o644)
      isNew = made >= 0
      descriptor = unsafe isNew ? made : open(path, flags, 0o644)
    }
    if descriptor < 0 { throw failure }
  }

  deinit {
    if isNew { unsafe unlink(path) }
    close(descriptor)
  }

  /// Of the last call.
  private var failure: ToolFailure { ToolFailure("\"\(path)\" cannot be written: \(SystemError.text(errno))") }

  /// What is in it goes; a pipe or a device has no length.
  func empty() { if path != "-" { _ = ftruncate(descriptor, 0) } }

  /// Whether it is the file at another path, which is read.
  func isSame(as other: String) -> Bool {
    guard let mine = DiskFile.status(path, followsLinks: true), let its = DiskFile.status(other, followsLinks: true) else {
      return false
    }
    return mine.device == its.device && mine.inode == its.inode
  }

  func write(_ text: String) throws(ToolFailure) {
    isNew = false
    if !DiskFile.write(Array(text.utf8), to: descriptor) { throw failure }
  }
}
