// SPDX-License-Identifier: MIT
// What the demonstration was asked to do, and the times and shares that it keeps to by itself.

import Glibc
import ToolSupport

/// The options of `demo`.
package struct DemoOptions: Equatable, Sendable {
  package var directory = "/usr"
  /// The most bytes of files to read.
  package var sizeBytes: UInt64 = 1 << 30
  /// Of the memory group; nil: half of what is read.
  package var limitBytes: UInt64?
  package var seed: UInt64 = 1
  package var isJSON = false
  /// Where to write the run's record; nil: none.
  package var recordPath: String?
  /// Whether the reads are done once more in the room that the neighbour left.
  package var replaysInRoom = false

  package init() {}

  package init(_ arguments: Arguments) throws(UsageError) {
    directory = arguments.operands.first ?? directory
    sizeBytes = try arguments.bytes("size") ?? sizeBytes
    limitBytes = try arguments.bytes("limit")
    seed = try arguments.number("seed") ?? seed
    isJSON = arguments.has("json")
    recordPath = try arguments.recordPath()
    replaysInRoom = arguments.has("in-room")
    if sizeBytes == 0 { throw UsageError("--size: nothing to read; write at least 1") }
    if sizeBytes > 1 << 40 { throw UsageError("--size: at most 1T") }
    if limitBytes == 0 { throw UsageError("--limit: nothing can live in 0 bytes") }
    if let limitBytes, limitBytes > 1 << 40 { throw UsageError("--limit: at most 1T") }
    guard let status = DiskFile.status(directory, followsLinks: true) else {
      throw UsageError("\"\(directory)\": \(SystemError.text(errno))")
    }
    guard status.isDirectory else { throw UsageError("\"\(directory)\" is not a directory") }
  }
}

/// How long the parts may take: together under two minutes, also on a slow disk.
package enum DemoTimes {
  /// After this, what was read until then is what the demonstration works with.
  package static let loading: UInt64 = 35_000_000_000
  /// Reads go on at least for so long, for the neighbour and the library's thread to get round several times.
  package static let readingAtLeast: UInt64 = 3_000_000_000
  package static let readingAtMost: UInt64 = 25_000_000_000
  package static let measuring: UInt64 = 6_000_000_000
  package static let dictionary: UInt64 = 25_000_000_000
  /// For one child process: three times what all of that takes.
  package static let childSeconds: UInt32 = 300
}
