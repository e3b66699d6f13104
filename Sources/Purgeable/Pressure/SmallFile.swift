// SPDX-License-Identifier: MIT
// Reads the short text files by which Linux tells about itself (/proc, /sys, cgroups), without Foundation.

import Glibc

/// Whole small files, and the numbers in them.
package enum SmallFile {
  /// Why a file could not be read: an errno of `open` or `read`.
  package struct Failure: Error, Equatable {
    package var number: Int32

    package init(number: Int32) {
      self.number = number
    }
  }

  /// The most that is read of one file, unless told otherwise: all files of this kind are far shorter.
  package static let usualLimit = 64 << 10

  /// The file's text, up to `limit` bytes; bytes that are no UTF-8 are replaced.
  ///
  /// Cost: `open`, two or more `read`, `close`. Kernel files have no length beforehand, so the end is where `read` answers 0.
  package static func read(_ path: String, limit: Int = usualLimit) throws(Failure) -> String {
    let descriptor = unsafe open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY)
    guard descriptor >= 0 else { throw Failure(number: errno) }
    defer { close(descriptor) }
    var bytes: [UInt8] = []
    var failure: Int32 = 0
    while bytes.count < limit {
      let wanted = min(4096, limit - bytes.count)
      let start = bytes.count
      bytes.append(contentsOf: repeatElement(0, count: wanted))
      // In bounds: `wanted` bytes were appended after `start`.
      let got = unsafe bytes.withUnsafeMutableBytes { buffer in
        unsafe Glibc.read(descriptor, buffer.baseAddress! + start, wanted)
      }
      let error = errno
      bytes.removeLast(wanted - max(got, 0))
      if got == 0 { break }
      if got < 0 && error != EINTR {
        failure = error
        break
      }
    }
    guard failure == 0 else { throw Failure(number: failure) }
    return String(decoding: bytes, as: UTF8.self)
  }

  /// The file's text, or nil where it cannot be read for whatever reason.
  package static func text(_ path: String, limit: Int = usualLimit) -> String? {
    try? read(path, limit: limit)
  }

  /// The number that is the file's first word, as in `memory.current`; nil for "max" and for anything else.
  package static func number(_ path: String) -> UInt64? {
    text(path).flatMap(firstNumber)
  }

  /// The number that a text begins with; nil where its first word is not a decimal number that fits.
  package static func firstNumber(of text: String) -> UInt64? {
    text.split(whereSeparator: \.isWhitespace).first.flatMap { UInt64($0) }
  }

  /// The number that follows `key` at the beginning of a line, as in `inactive_file 4096` or `MemTotal:  24684084 kB`.
  ///
  /// A trailing "kB" multiplies by 1,024 (saturating); the key has to be the line's whole first word, a colon after it aside.
  package static func number(after key: String, in text: String) -> UInt64? {
    for line in text.split(separator: "\n") where line.hasPrefix(key) {
      let words = line.split(whereSeparator: \.isWhitespace)
      guard words.count >= 2, words[0] == key || words[0] == key + ":" else { continue }
      guard let number = UInt64(words[1]) else { return nil }
      guard words.count > 2, words[2] == "kB" else { return number }
      let (bytes, overflow) = number.multipliedReportingOverflow(by: 1024)
      return overflow ? .max : bytes
    }
    return nil
  }
}
