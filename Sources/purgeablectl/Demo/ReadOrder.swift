// SPDX-License-Identifier: MIT
// The skewed order of reads, from a seed.

import Glibc
import ToolSupport

/// An endless sequence of indices below a count, where few come often: the k-th most popular with a chance of k to the power
/// -0.9, near to what is found in front of web and file caches. Which index is how popular is the seed's choice.
struct ReadOrder: Sequence, IteratorProtocol {
  static let exponent = 0.9

  private var random: SplitMix64
  private let byPopularity: [Int]
  /// The chance of all up to a rank, not yet divided by their sum.
  private let upTo: [Double]

  /// `count` is at least 1.
  init(count: Int, seed: UInt64) {
    random = SplitMix64(seed: seed ^ 0x5EED_0F0D_E4D5)
    byPopularity = random.shuffled(count)
    var sum = 0.0
    upTo = (1...count).map { rank in
      sum += pow(Double(rank), -Self.exponent)
      return sum
    }
  }

  mutating func next() -> Int? {
    let wanted = random.fraction() * upTo[upTo.count - 1]
    // The first rank that reaches it.
    var low = 0
    var high = upTo.count - 1
    while low < high {
      let middle = (low + high) / 2
      if upTo[middle] > wanted { high = middle } else { low = middle + 1 }
    }
    return byPopularity[low]
  }
}
