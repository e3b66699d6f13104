// SPDX-License-Identifier: MIT
// A file that the program asks for: what is at its path stays the file, the pipe or the device that it is.

import Glibc
import ToolSupport

final class OutputFile {
  let path: String
  private let descriptor: Int32

  /// Opens it, or makes it. Nothing of what is there is changed yet.
  init(_ path: String) throws(ToolFailure) {
    self.path = path
    descriptor = unsafe open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY, 0o644)
    if descriptor < 0 { throw failure }
  }

  deinit { close(descriptor) }

  /// Of the last call.
  private var failure: ToolFailure { ToolFailure("\"\(path)\" cannot be written: \(SystemError.text(errno))") }

  /// What is in it goes; a pipe or a device has no length.
  func empty() { _ = ftruncate(descriptor, 0) }

  func write(_ text: String) throws(ToolFailure) {
    var rest = Array(text.utf8)[...]
    while !rest.isEmpty {
      let count = unsafe rest.withUnsafeBytes { unsafe Glibc.write(descriptor, $0.baseAddress, $0.count) }
      if count < 0, errno == EINTR { continue }
      guard count > 0 else { throw failure }
      rest = rest.dropFirst(count)
    }
  }
}
