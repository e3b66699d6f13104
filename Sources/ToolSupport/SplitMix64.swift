// SPDX-License-Identifier: MIT
// Random numbers from a seed, the same with every version of Swift.

/// SplitMix64 (Steele, Lea, Flood, 2014): small, seeded, good enough to choose by. Not for secrets.
///
/// Inlined into its users, since benchmarks call it between the look-ups that they measure.
package struct SplitMix64: RandomNumberGenerator, Sendable {
  @usableFromInline package var state: UInt64

  @inlinable
  package init(seed: UInt64) {
    state = seed
  }

  @inlinable
  package mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    return Self.mix(state)
  }

  /// The generator's last step: a different result for every word.
  @inlinable
  package static func mix(_ word: UInt64) -> UInt64 {
    var mixed = word
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }

  /// In 0 ..< 1, with 53 bits.
  @inlinable
  package mutating func fraction() -> Double { Double(next() >> 11) * 0x1p-53 }

  /// In 0 ..< count, by the upper half of a product.
  @inlinable
  package mutating func index(below count: Int) -> Int { Int(next().multipliedFullWidth(by: UInt64(count)).high) }

  /// 0 ..< count in a random order (Fisher and Yates). The standard library's own does not promise to stay the same.
  package mutating func shuffled(_ count: Int) -> [Int] {
    var order = Array(0..<count)
    for place in stride(from: count - 1, to: 0, by: -1) { order.swapAt(place, index(below: place + 1)) }
    return order
  }
}
