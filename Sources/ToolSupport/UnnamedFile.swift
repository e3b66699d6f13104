// SPDX-License-Identifier: MIT
// A file that nobody finds and that cannot be left behind: its name is gone before anything is written to it.

import Glibc
import Purgeable

/// An empty file without a name, open for reading and writing; it goes with the last reference and descriptor.
package final class UnnamedFile {
  package let descriptor: Int32

  /// For processes of the same user, while this one lives.
  package var path: String { "/proc/\(getpid())/fd/\(descriptor)" }

  /// `directory`: TMPDIR or /tmp unless told otherwise.
  package init(in directory: String? = nil) throws(ToolFailure) {
    // The environment's string is copied at once.
    let directory = directory ?? (unsafe getenv("TMPDIR").map { unsafe String(cString: $0) } ?? "/tmp")
    var descriptor: Int32
    repeat {
      let name = "\(directory)/purgeable-\(getpid())-\(Clock.now)"
      descriptor = unsafe open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
      if descriptor >= 0 { unsafe unlink(name) }
    } while descriptor < 0 && errno == EEXIST
    guard descriptor >= 0 else { throw ToolFailure("no temporary file in \(directory): \(SystemError.text(errno))") }
    self.descriptor = descriptor
  }

  deinit { close(descriptor) }

  /// All that was written, up to `limit` bytes; bytes that are no UTF-8 are replaced.
  package func text(limit: Int) throws(ToolFailure) -> String {
    do {
      // Opened anew, and so read from its beginning.
      return try SmallFile.read(path, limit: limit)
    } catch {
      throw ToolFailure("\(path): \(SystemError.text(error.number))")
    }
  }
}
