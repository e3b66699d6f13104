// SPDX-License-Identifier: MIT
// Reads the short text files by which Linux tells about itself (/proc, /sys, cgroups), without Foundation.

import CPurgeablePressure
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
    known(unsafe text.withCString { unsafe purgeable__first_number($0, text.utf8.count) })
  }

  /// The number that follows `key` at the beginning of a line, as in `inactive_file 4096` or `MemTotal:  24684084 kB`.
  ///
  /// A trailing "kB" multiplies by 1,024 (saturating); the key has to be the line's whole first word, a colon after it aside.
  package static func number(after key: String, in text: String) -> UInt64? {
    // Both are lent with a zero behind them, for the length of the call.
    var number: UInt64 = 0
    let isFound = unsafe key.withCString { key in
      unsafe text.withCString { unsafe purgeable__find_number(key, $0, text.utf8.count, &number) }
    }
    return isFound ? number : nil
  }

  /// The number that a file in a directory begins with. Takes no memory.
  package static func number(_ name: String, in directory: String) -> UInt64? {
    known(
      unsafe directory.withCString { directory in
        unsafe name.withCString { unsafe purgeable__file_number(directory, $0) }
      })
  }

  /// Whether a file in a directory says exactly this; nil where it cannot be read. Takes no memory.
  package static func says(_ text: String, _ name: String, in directory: String) -> Bool? {
    let answer = unsafe directory.withCString { directory in
      unsafe name.withCString { name in
        unsafe text.withCString { unsafe purgeable__file_says(directory, name, $0, text.utf8.count) }
      }
    }
    return answer < 0 ? nil : answer == 1
  }

  /// A number as the C functions answer it: the largest is none.
  package static func known(_ number: UInt64) -> UInt64? { number == .max ? nil : number }
}
