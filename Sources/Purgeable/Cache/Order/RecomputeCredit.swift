// SPDX-License-Identifier: MIT
// What an entry is worth beside the others of its cache: the cost of making its value again, for each byte that it takes, against
// the mean of what is stored.
//
//   credit     -1          0          1           2           3
//            -------|-----------|-----------|-----------|----------      each step is a factor of four
//               half the      twice      8 times    32 times
//               mean
//
// S3-FIFO counts it as uses of the entry (S3FIFOOrder.swift). So there is no heap and no list, and an entry of unknown cost pays
// nothing.

import Synchronization

struct RecomputeCredit: ~Copyable, Sendable {
  /// The mean of the logarithms to the base of two, in the upper half; in the lower one how many have been noted, as far as that
  /// matters. 0 before the first one. Threads that note at the same time may lose one of two.
  private let mean = Atomic<UInt64>(0)

  static let lowest = -1
  static let highest = Int(Slot.highestCounter)
  /// The newest value weighs one part of so many.
  private static let memory: UInt64 = 1024

  /// Whether an entry with a recompute cost was ever stored.
  var isInUse: Bool { mean.load(ordering: .relaxed) != 0 }

  /// The credit of an entry that is stored, which takes `byteCount` bytes. `cost`: in nanoseconds; nil for an unknown one.
  func noted(_ cost: UInt64?, byteCount: Int) -> Int {
    guard let density = Self.density(cost, byteCount) else { return 0 }
    let old = mean.load(ordering: .relaxed)
    let count = min(old & 0xFFFF_FFFF, Self.memory - 1) + 1
    let before = count == 1 ? density : Self.mean(old)
    let new = before + (density - before) / Float(count)
    mean.store(UInt64(new.bitPattern) << 32 | count, ordering: .relaxed)
    return Self.credit(density, beside: before)
  }

  /// The credit of an entry that is there.
  func credit(of cost: UInt64?, byteCount: Int) -> Int {
    guard let density = Self.density(cost, byteCount) else { return 0 }
    let now = mean.load(ordering: .relaxed)
    return now == 0 ? 0 : Self.credit(density, beside: Self.mean(now))
  }

  private static func mean(_ bits: UInt64) -> Float { Float(bitPattern: UInt32(truncatingIfNeeded: bits >> 32)) }

  private static func credit(_ density: Float, beside mean: Float) -> Int {
    min(highest, max(lowest, Int(((density - mean) / 2).rounded())))
  }

  /// The logarithm of the cost of a byte; nil where the cost is not known.
  private static func density(_ cost: UInt64?, _ byteCount: Int) -> Float? {
    cost.map { logarithm($0) - logarithm(UInt64(max(1, byteCount))) }
  }

  /// To the base of two, straight between powers: right to 0.09, which needs no mathematics library. That of 0 is 0.
  private static func logarithm(_ number: UInt64) -> Float {
    let number = Float(max(1, number))
    return Float(number.exponent) + number.significand - 1
  }
}
