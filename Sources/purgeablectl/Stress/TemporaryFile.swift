// SPDX-License-Identifier: MIT
// A large file to read, on disk, that cannot be left behind.

import Glibc
import ToolSupport

final class TemporaryFile {
  private let file: UnnamedFile
  let byteCount: UInt64
  /// For processes of the same user, while this one lives.
  var path: String { file.path }

  /// Writes `byteCount` bytes to disk, and has the kernel forget them, so that the first reader pays for the disk reads.
  init(byteCount: UInt64) throws(StressFailure) {
    self.byteCount = byteCount
    // Not /tmp, which is memory on many machines.
    do throws(ToolFailure) {
      file = try UnnamedFile(in: "/var/tmp")
    } catch {
      throw .impossible(error.description)
    }
    var random = SplitMix64(seed: byteCount)
    let block = Frame.bytes(of: (0..<(1 << 17)).map { _ in random.next() })
    var left = Int(byteCount)
    while left > 0, Children.interruption == 0 {
      let written = unsafe block.withUnsafeBytes { unsafe write(file.descriptor, $0.baseAddress, min($0.count, left)) }
      if written < 0 && errno == EINTR { continue }
      guard written > 0 else {
        throw .impossible("no temporary file of \(ByteSize(byteCount)) in /var/tmp: \(SystemError.text(errno))")
      }
      left -= written
    }
    forget()
  }

  /// Has the kernel drop what it keeps of it.
  func forget() {
    fsync(file.descriptor)
    posix_fadvise(file.descriptor, 0, 0, POSIX_FADV_DONTNEED)
  }
}
