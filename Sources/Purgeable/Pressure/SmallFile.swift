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
  /// By bytes: this is asked again and again while memory is short.
  package static func number(after key: String, in text: String) -> UInt64? {
    let (bytes, key) = (text.utf8.span, key.utf8.span)
    var start = 0
    while start < bytes.count {
      var end = start
      while end < bytes.count, bytes[end] != UInt8(ascii: "\n") { end += 1 }
      let rest = start + key.count
      if rest < end, key.indices.allSatisfy({ bytes[start + $0] == key[$0] }), " \t:".utf8.contains(bytes[rest]) {
        let words = String(decoding: (rest + 1..<end).map { bytes[$0] }, as: UTF8.self).split(whereSeparator: \.isWhitespace)
        guard let number = words.first.flatMap({ UInt64($0) }) else { return nil }
        guard words.count > 1, words[1] == "kB" else { return number }
        let (whole, overflow) = number.multipliedReportingOverflow(by: 1024)
        return overflow ? .max : whole
      }
      start = end + 1
    }
    return nil
  }
}
