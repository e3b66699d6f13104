// SPDX-License-Identifier: MIT
// A file to read that nobody finds and that cannot be left behind: its name is gone before it is filled.

import Glibc

final class TemporaryFile {
  private let descriptor: Int32
  let byteCount: UInt64
  /// For processes of the same user, while this one lives.
  var path: String { "/proc/\(getpid())/fd/\(descriptor)" }

  /// Writes so many bytes to disk, and has the kernel forget them, so that whoever reads them first pays for them.
  init(byteCount: UInt64) throws(StressFailure) {
    self.byteCount = byteCount
    // Not /tmp, which is memory on many machines.
    let name = "/var/tmp/purgeable-stress-\(getpid())-\(Clock.now)"
    descriptor = unsafe open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
    guard descriptor >= 0 else { throw .impossible("no temporary file in /var/tmp: \(SystemError.text(errno))") }
    _ = unsafe unlink(name)
    var random = SplitMix64(seed: byteCount)
    let block = Frame.bytes(of: (0..<(1 << 17)).map { _ in random.next() })
    var left = Int(byteCount)
    while left > 0, Children.interruption == 0 {
      let written = unsafe block.withUnsafeBytes { unsafe write(descriptor, $0.baseAddress, min($0.count, left)) }
      if written < 0 && errno == EINTR { continue }
      guard written > 0 else {
        throw .impossible("no temporary file of \(ByteSize(byteCount)) in /var/tmp: \(SystemError.text(errno))")
      }
      left -= written
    }
    forget()
  }

  deinit { close(descriptor) }

  /// Has the kernel drop what it keeps of it.
  func forget() {
    fsync(descriptor)
    posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED)
  }
}
