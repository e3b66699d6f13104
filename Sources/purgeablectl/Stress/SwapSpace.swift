// SPDX-License-Identifier: MIT
// Swap for the scenarios: what the machine has, or a file of our own where it may be made.

import Glibc
import Purgeable
import ToolSupport

/// Whether there is swap, and the file that was made for it. The maker of the file removes it.
final class SwapSpace: CustomStringConvertible {
  private var path: String?
  let isOn: Bool
  /// "off", "on (...)", or "off (why)".
  let description: String

  /// `byteCount`: of a file to swap to; nil to take the machine as it is.
  init(_ byteCount: UInt64?) {
    let machine = Self.areas
    guard let byteCount else {
      isOn = false
      description = machine == 0 ? "off (this machine has none)" : "off (the group may not use the machine's)"
      return
    }
    if machine > 0 {
      isOn = true
      description = "on (the machine's own)"
      return
    }
    let path = "/var/tmp/purgeable-stress-\(getpid()).swap"
    if let reason = Self.make(path, byteCount) {
      _ = unsafe unlink(path)
      isOn = false
      description = "off (\(reason))"
    } else {
      self.path = path
      isOn = true
      description = "on (a file of \(ByteSize(byteCount)))"
    }
  }

  /// What a group has of it.
  func description(in group: GroupFiles) -> String {
    isOn || Self.areas == 0 || group.deniesSwap ? description : "on (the group cannot be kept from the machine's)"
  }

  /// Switches it off and removes it. May be called more than once.
  func remove() {
    guard let path else { return }
    self.path = nil
    let error = LibraryCalls.swapOff(path)
    if error != 0 { complain("\(Tool.name) stress: swapoff \(path): \(SystemError.text(error))") }
    _ = unsafe unlink(path)
  }

  /// How many swap areas are in use: the file's first line is a title.
  private static var areas: Int {
    max(0, (SmallFile.text("/proc/swaps") ?? "").split(separator: "\n").count - 1)
  }

  /// nil when it is on, else why not.
  private static func make(_ path: String, _ byteCount: UInt64) -> String? {
    let descriptor = unsafe open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
    guard descriptor >= 0 else { return "\(path): \(SystemError.text(errno))" }
    defer { close(descriptor) }
    let page = UInt64(sysconf(Int32(_SC_PAGESIZE)))
    let pages = byteCount / page
    let error = posix_fallocate(descriptor, 0, off_t(pages * page))
    if error != 0 { return "\(path): \(SystemError.text(error))" }
    // The first page, as mkswap writes it: version, last page, no bad pages; the signature at its end.
    var head = [UInt8](repeating: 0, count: Int(page))
    let numbers = Frame.bytes(of: [1 | (pages - 1) << 32])
    head.replaceSubrange(1024..<1032, with: numbers)
    head.replaceSubrange(Int(page) - 10..<Int(page), with: Array("SWAPSPACE2".utf8))
    let written = unsafe head.withUnsafeBytes { unsafe pwrite(descriptor, $0.baseAddress, $0.count, 0) }
    guard written == head.count, fsync(descriptor) == 0 else { return "\(path): \(SystemError.text(errno))" }
    let refusal = LibraryCalls.swapOn(path)
    return refusal == 0 ? nil : "swapon: \(SystemError.text(refusal))"
  }
}
