// SPDX-License-Identifier: MIT
// A file descriptor that is still ours when it is closed.

import CPurgeablePressure
import Glibc

/// A descriptor and what it was opened on.
///
/// A program that becomes a daemon closes all descriptors, ours too, and opens its own under the same numbers; a forked child
/// does the same. So before one is closed late, written to or read, it is compared with what it was.
struct OwnedDescriptor: Sendable, Hashable {
  let number: Int32
  private let device: UInt64
  private let inode: UInt64
  /// Tells eventfds apart, which share one inode. Linux 5.2 and newer; nil elsewhere, and where no descriptor was left to look
  /// it up by.
  private let eventNumber: UInt64?

  /// Takes a descriptor over; nil for a negative one, which is how a failed call is passed on.
  init?(_ number: Int32) {
    guard number >= 0, let identity = Self.identity(number) else { return nil }
    self.number = number
    (device, inode, eventNumber) = identity
  }

  /// Whether the number still names the same file: up to four system calls.
  var isOurs: Bool {
    guard let (device, inode, eventNumber) = Self.identity(number), (device, inode) == (self.device, self.inode) else {
      return false
    }
    guard let eventNumber, let known = self.eventNumber else { return true }
    return eventNumber == known
  }

  /// Closes the descriptor, unless its number names another file by now.
  func close() {
    if isOurs { Glibc.close(number) }
  }

  private static func identity(_ number: Int32) -> (UInt64, UInt64, UInt64?)? {
    var status = stat()
    guard unsafe fstat(number, &status) == 0 else { return nil }
    // Only descriptors without a file of their own have no type.
    guard status.st_mode & S_IFMT == 0 else { return (UInt64(status.st_dev), UInt64(status.st_ino), nil) }
    return (UInt64(status.st_dev), UInt64(status.st_ino), SmallFile.known(purgeable__eventfd_number(number)))
  }

  /// Opens a file, closed on exec.
  static func open(_ path: String, _ flags: Int32) -> OwnedDescriptor? {
    OwnedDescriptor(unsafe Glibc.open(path, flags | O_CLOEXEC | O_NOCTTY))
  }

  /// An eventfd that does not block, closed on exec.
  static func event() -> OwnedDescriptor? {
    OwnedDescriptor(purgeable__pressure_event())
  }

  /// Writes the text in one call; whether all of it was taken.
  func write(_ text: String) -> Bool {
    let bytes = Array(text.utf8)
    return unsafe bytes.withUnsafeBytes { unsafe Glibc.write(number, $0.baseAddress, $0.count) } == bytes.count
  }

  /// Sets an eventfd off; false where it is not ours any more, which is then left alone.
  @discardableResult
  func signal() -> Bool {
    guard isOurs else { return false }
    var one: UInt64 = 1
    // The counter is far from full.
    return unsafe Glibc.write(number, &one, 8) == 8
  }

  /// Takes what an eventfd has counted; 0 when there was nothing, or it is not ours any more.
  @discardableResult
  func drain() -> UInt64 {
    guard isOurs else { return 0 }
    var count: UInt64 = 0
    return unsafe read(number, &count, 8) == 8 ? count : 0
  }
}
