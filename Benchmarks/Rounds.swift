// SPDX-License-Identifier: MIT
// Times: the sides of a comparison in alternation, so that what else the machine does falls on all of them; ratios by round.

import Glibc

/// A figure over several rounds.
struct Series {
  let median: Double
  let spread: ClosedRange<Double>
  let rounds: Int

  init(_ values: [Double]) {
    precondition(!values.isEmpty, "a series of no rounds")
    let sorted = values.sorted()
    median = (sorted[(sorted.count - 1) / 2] + sorted[sorted.count / 2]) / 2
    spread = sorted[0]...sorted[sorted.count - 1]
    rounds = sorted.count
  }

  private init(median: Double, spread: ClosedRange<Double>, rounds: Int) {
    (self.median, self.spread, self.rounds) = (median, spread, rounds)
  }

  /// From a child's numbers.
  init(_ numbers: Numbers, _ name: String) throws {
    self.init(
      median: try numbers.value(name), spread: try numbers.value(name + ".min")...numbers.value(name + ".max"),
      rounds: Int(try numbers.value(name + ".rounds")))
  }

  /// Into a child's numbers.
  func write(to numbers: inout Numbers, _ name: String) {
    numbers[name] = median
    numbers[name + ".min"] = spread.lowerBound
    numbers[name + ".max"] = spread.upperBound
    numbers[name + ".rounds"] = Double(rounds)
  }
}

enum Rounds {
  /// How much processor time a piece of work takes, in nanoseconds, on all threads of this process: steadier than a clock on the
  /// wall where the machine has other work to do, and what the library's own thread does meanwhile counts.
  static func nanoseconds(_ body: () throws -> Void) rethrows -> Double {
    let start = processorTime
    try body()
    return processorTime - start
  }

  private static var processorTime: Double {
    var time = timespec()
    unsafe clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time)
    return Double(time.tv_sec) * 1e9 + Double(time.tv_nsec)
  }

  /// The times of every side by round, in nanoseconds: A B C, A B C, ... A first round, which warms up, does not count.
  static func alternate(_ rounds: Int, _ sides: [() throws -> Void]) throws -> [[Double]] {
    var times: [[Double]] = []
    for round in 0...rounds {
      let row = try sides.map { side in try nanoseconds(side) }
      if round > 0 { times.append(row) }
    }
    return times
  }

  /// The time of one side over the time of another, round by round.
  static func ratio(_ times: [[Double]], _ side: Int, over other: Int) -> Series {
    Series(times.map { $0[side] / $0[other] })
  }
}

/// A small generator with a seed, so that every run does the same work (SplitMix64, Steele, Lea, Flood 2014).
struct SeededGenerator: RandomNumberGenerator {
  private var state: UInt64

  init(seed: UInt64 = 42) { state = seed }

  mutating func next() -> UInt64 {
    state &+= 0x9E37_79B9_7F4A_7C15
    return Self.mix(state)
  }

  static func mix(_ word: UInt64) -> UInt64 {
    var word = word
    word = (word ^ word >> 30) &* 0xBF58_476D_1CE4_E5B9
    word = (word ^ word >> 27) &* 0x94D0_49BB_1331_11EB
    return word ^ word >> 31
  }

  /// A size whose logarithm is uniform.
  mutating func logUniform(_ low: Double, _ high: Double) -> Int {
    let share = Double(next() >> 11) / Double(1 << 53)
    return Int(low * pow(high / low, share))
  }
}
