// SPDX-License-Identifier: MIT
// Random numbers from a seed, the same with every version of Swift.

/// SplitMix64 (Steele, Lea, Flood, 2014): small, seeded, good enough to choose by. Not for secrets.
struct SplitMix64: RandomNumberGenerator {
  private var state: UInt64

  init(seed: UInt64) {
    state = seed
  }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    var mixed = state
    mixed = (mixed ^ (mixed >> 30)) &* 0xBF58_476D_1CE4_E5B9
    mixed = (mixed ^ (mixed >> 27)) &* 0x94D0_49BB_1331_11EB
    return mixed ^ (mixed >> 31)
  }

  /// In 0 ..< 1, with 53 bits.
  mutating func fraction() -> Double { Double(next() >> 11) * 0x1p-53 }

  /// In 0 ..< count, by the upper half of a product.
  mutating func index(below count: Int) -> Int { Int(next().multipliedFullWidth(by: UInt64(count)).high) }

  /// 0 ..< count in a random order (Fisher and Yates). The standard library's own does not promise to stay the same.
  mutating func shuffled(_ count: Int) -> [Int] {
    var order = Array(0..<count)
    for place in stride(from: count - 1, to: 0, by: -1) { order.swapAt(place, index(below: place + 1)) }
    return order
  }
}
