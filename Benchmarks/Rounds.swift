// SPDX-License-Identifier: MIT
// Times: the sides of a comparison in alternation, so that what else the machine does falls on all of them; ratios by round.

import Glibc
import ToolSupport

extension Spread {
  /// From a child's numbers.
  init(_ numbers: Numbers, _ name: String) throws {
    self.init(
      median: try numbers.value(name), least: try numbers.value(name + ".min"), most: try numbers.value(name + ".max"),
      count: Int(try numbers.value(name + ".rounds")))
  }

  /// Into a child's numbers.
  func write(to numbers: inout Numbers, _ name: String) {
    precondition(count > 0, "a figure of no rounds")
    numbers[name] = median
    numbers[name + ".min"] = least
    numbers[name + ".max"] = most
    numbers[name + ".rounds"] = Double(count)
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

  private static var processorTime: Double { time(CLOCK_PROCESS_CPUTIME_ID) }

  private static func time(_ clock: clockid_t) -> Double {
    var time = timespec()
    unsafe clock_gettime(clock, &time)
    return Double(time.tv_sec) * 1e9 + Double(time.tv_nsec)
  }

  /// The same, on this thread alone.
  static func threadNanoseconds(_ body: () throws -> Void) rethrows -> Double {
    let start = time(CLOCK_THREAD_CPUTIME_ID)
    try body()
    return time(CLOCK_THREAD_CPUTIME_ID) - start
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
  static func ratio(_ times: [[Double]], _ side: Int, over other: Int) -> Spread {
    Spread(times.map { $0[side] / $0[other] })
  }
}

extension SplitMix64 {
  /// With a seed of its own, so that every run does the same work.
  init() { self.init(seed: 42) }

  /// A size whose logarithm is uniform.
  mutating func logUniform(_ low: Double, _ high: Double) -> Int { Int(low * pow(high / low, fraction())) }
}
