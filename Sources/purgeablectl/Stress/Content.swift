// SPDX-License-Identifier: MIT
// The content of the stress scenarios: keys by popularity, and bytes that follow from the key, so that each can be checked.

import Glibc
import ToolSupport

/// Keys, sizes and contents of one load, all from a seed. The k-th key is the k-th most popular.
///
/// Content is a piece of one table of random bytes, at an offset that the key decides, with the key mixed into its first eight:
/// cheap to make and to compare, and nothing else in memory looks like it.
struct Content: Sendable {
  let seed: UInt64
  let sizes: ClosedRange<Int>
  private let table: [UInt8]
  private static let offsets: UInt64 = 1 << 20

  /// Sizes are at least 8.
  init(seed: UInt64, sizes: ClosedRange<Int>) {
    self.seed = seed
    self.sizes = sizes
    var random = SplitMix64(seed: seed ^ 0xC0_47E4_7AB1E)
    let words = (0..<(Int(Self.offsets) + sizes.upperBound + 7) / 8).map { _ in random.next() }
    table = Frame.bytes(of: words)
  }

  /// Different for every number.
  func key(_ number: UInt64) -> UInt64 { SplitMix64.mix(number &+ seed &* 0x9E37_79B9_7F4A_7C15) }

  func size(of key: UInt64) -> Int {
    sizes.lowerBound + Int(SplitMix64.mix(key ^ 0x512E).multipliedFullWidth(by: UInt64(sizes.count)).high)
  }

  private func offset(of key: UInt64) -> Int { Int(SplitMix64.mix(key ^ 0x0FF5E7) % Self.offsets) }

  /// Writes the key's content and answers its size. `buffer` has room for the largest.
  func write(_ key: UInt64, to buffer: UnsafeMutableRawBufferPointer) -> Int {
    let size = size(of: key)
    // In bounds: the table goes on for the largest size behind the last offset.
    unsafe table.withUnsafeBytes { table in
      _ = unsafe memcpy(buffer.baseAddress!, table.baseAddress! + offset(of: key), size)
    }
    let head = unsafe buffer.loadUnaligned(as: UInt64.self)
    unsafe buffer.storeBytes(of: head ^ SplitMix64.mix(key), as: UInt64.self)
    return size
  }

  /// The number of wrong bytes: place by place, and one for each too many or too few.
  func wrongBytes(_ key: UInt64, _ bytes: UnsafeRawBufferPointer) -> UInt64 {
    let size = size(of: key)
    // In bounds: only bytes that both have are compared, the first eight by themselves.
    let isRight = unsafe table.withUnsafeBytes { table -> Bool in
      guard bytes.count == size else { return false }
      let right = unsafe table.baseAddress! + offset(of: key)
      let head = unsafe right.loadUnaligned(as: UInt64.self) ^ SplitMix64.mix(key)
      return unsafe bytes.loadUnaligned(as: UInt64.self) == head
        && memcmp(bytes.baseAddress! + 8, right + 8, size - 8) == 0
    }
    if isRight { return 0 }
    var right = [UInt8](repeating: 0, count: sizes.upperBound)
    _ = unsafe right.withUnsafeMutableBytes { unsafe write(key, to: $0) }
    return max(1, Difference.count(unsafe Array(bytes), Array(right.prefix(size))))
  }
}

/// An endless sequence of numbers below a count, the k-th with a chance of 1 / (k + 1) to the power of the exponent. Without any
/// table: rejection-inversion (Hörmann and Derflinger, 1996).
struct ZipfNumbers: Sequence, IteratorProtocol {
  static let usualExponent = 0.99

  private var random: SplitMix64
  private let count: Double
  private let exponent: Double
  private let low: Double
  private let high: Double
  private let sure: Double

  /// `count` is at least 1, the exponent not 1.
  init(count: UInt64, seed: UInt64, exponent: Double = Self.usualExponent) {
    random = SplitMix64(seed: seed ^ 0x21FF_0F0D_E4D5)
    self.count = Double(count)
    self.exponent = exponent
    low = Self.integral(1.5, exponent) - 1
    high = Self.integral(Double(count) + 0.5, exponent)
    sure = 2 - Self.inverse(Self.integral(2.5, exponent) - pow(2, -exponent), exponent)
  }

  private static func integral(_ x: Double, _ exponent: Double) -> Double { (pow(x, 1 - exponent) - 1) / (1 - exponent) }

  private static func inverse(_ y: Double, _ exponent: Double) -> Double { pow(1 + y * (1 - exponent), 1 / (1 - exponent)) }

  mutating func next() -> UInt64? {
    while true {
      let point = high + random.fraction() * (low - high)
      let place = Self.inverse(point, exponent)
      let rank = Swift.min(Swift.max((place + 0.5).rounded(.down), 1), count)
      if rank - place <= sure || point >= Self.integral(rank + 0.5, exponent) - pow(rank, -exponent) {
        return UInt64(rank) - 1
      }
    }
  }
}
