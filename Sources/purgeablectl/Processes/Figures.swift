// SPDX-License-Identifier: MIT
// Numbers as people read them.

enum Figures {
  /// "1,234,567".
  static func count(_ number: UInt64) -> String {
    let digits = Array(String(number))
    var text = ""
    for (place, digit) in digits.enumerated() {
      if place > 0 && (digits.count - place) % 3 == 0 { text += "," }
      text.append(digit)
    }
    return text
  }

  /// "850 ns", "6.2 us", "14 ms", "3.1 s": two digits at least.
  static func time(_ nanoseconds: UInt64) -> String {
    let units: [(name: String, size: Double)] = [("s", 1e9), ("ms", 1e6), ("us", 1e3)]
    for unit in units where Double(nanoseconds) >= unit.size {
      return oneDecimal(Double(nanoseconds) / unit.size) + " " + unit.name
    }
    return "\(nanoseconds) ns"
  }

  /// One digit after the point below 100, none above.
  static func oneDecimal(_ value: Double) -> String {
    guard value.isFinite, abs(value) < 1e15 else { return "-" }
    if value >= 99.95 { return String(Int(value.rounded())) }
    let tenths = Int((value * 10).rounded())
    return "\(tenths / 10).\(tenths % 10)"
  }

  /// "65.5 %".
  static func share(_ part: UInt64, of whole: UInt64) -> String {
    whole == 0 ? "-" : oneDecimal(Double(part) * 100 / Double(whole)) + " %"
  }
}
