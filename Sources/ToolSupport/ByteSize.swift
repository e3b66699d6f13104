// SPDX-License-Identifier: MIT
// Sizes as people write and read them.

/// A number of bytes.
package struct ByteSize: Equatable, Sendable, CustomStringConvertible {
  package var count: UInt64

  package init(_ count: UInt64) {
    self.count = count
  }

  /// Reads "4096", "64K", "64KiB", "1.5G": powers of 1,024; and "64KB": powers of 1,000. Letters in either case. nil for anything
  /// else or above 2^64.
  package init?(_ text: String) {
    let digits = text.prefix { "0123456789.".contains($0) }
    let letters = text[digits.endIndex...].lowercased()
    let units: [String: UInt64] = [
      "": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30, "t": 1 << 40,
      "tib": 1 << 40, "kb": 1000, "mb": 1_000_000, "gb": 1_000_000_000, "tb": 1_000_000_000_000,
    ]
    guard let unit = units[letters] else { return nil }
    if let whole = UInt64(digits) {
      let (bytes, overflow) = whole.multipliedReportingOverflow(by: unit)
      guard !overflow else { return nil }
      count = bytes
    } else {
      guard unit > 1, let value = Double(digits), digits.first != ".", digits.last != "." else { return nil }
      let bytes = value * Double(unit)
      guard bytes.isFinite, bytes < 0x1p64 else { return nil }
      count = UInt64(bytes)
    }
  }

  /// "512 bytes", "64 KiB", "1.5 GiB": at most one digit after the point.
  package var description: String {
    guard count >= 1024 else { return count == 1 ? "1 byte" : "\(count) bytes" }
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    var value = Double(count)
    var unit = -1
    // A value that would be rounded up to 1024 goes on to the next unit.
    while value >= 1023.95 && unit + 1 < units.count {
      value /= 1024
      unit += 1
    }
    // Exactly 1 KiB and little above has been divided once, so `unit` is never -1 here.
    let tenths = (value * 10).rounded()
    let whole = Int(tenths) / 10
    let tenth = Int(tenths) % 10
    return tenth == 0 ? "\(whole) \(units[unit])" : "\(whole).\(tenth) \(units[unit])"
  }
}
