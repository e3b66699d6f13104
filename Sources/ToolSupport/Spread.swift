// SPDX-License-Identifier: MIT
// A figure that was measured several times.

/// The median of some rounds, and how far they are apart. All 0 for no rounds.
package struct Spread: Equatable, Sendable {
  package var median = 0.0
  package var least = 0.0
  package var most = 0.0
  package var count = 0

  package init(median: Double, least: Double, most: Double, count: Int) {
    self.median = median
    self.least = least
    self.most = most
    self.count = count
  }

  package init(_ values: [Double]) {
    guard !values.isEmpty else { return }
    let sorted = values.sorted()
    median = (sorted[(sorted.count - 1) / 2] + sorted[sorted.count / 2]) / 2
    least = sorted[0]
    most = sorted[sorted.count - 1]
    count = sorted.count
  }
}
