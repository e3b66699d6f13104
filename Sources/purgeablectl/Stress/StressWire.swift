// SPDX-License-Identifier: MIT
// What the stress processes are told, and how they answer.

import Glibc
import Purgeable
import ToolSupport

/// What a process is told to do; the number of an `.order` frame.
enum StressOrder: UInt64 {
  /// Ends what goes on. The result follows.
  case stop = 1
  // To the cache and to rivals.
  /// Stores every key, in an order that has nothing to do with how popular they are.
  case fill
  /// Waits until everything idle is on offer.
  case settle
  /// Reads for `milliseconds` or `reads`, on `threads`, with a row every `interval` milliseconds; `refills` what is missed.
  case run
  /// Ends a row while `run` goes on.
  case mark
  /// Reads each key below `keys` once.
  case check
  /// Holds up to `bytes` locked on `threads` for `milliseconds`.
  case hold
  /// Forks for `milliseconds`.
  case fork
  /// Switches the library's own reaction to pressure off.
  case leaveItToTheKernel
  // To processes that take memory.
  /// Touches `bytes` and keeps them.
  case take
  /// Gives everything back.
  case release
  /// Takes up to `bytes`, frees them, and so on.
  case cycle
  /// Fills `bytes` and calls MADV_FREE on them.
  case offer
  /// Calls MADV_DONTNEED on `bytes` of what was offered.
  case giveUp
  /// Reads the file to the end, once or (`repeats`) until stopped.
  case readFile
}

extension StressOrder {
  /// What a record calls the time from here on.
  var phase: String? {
    switch self {
    case .fill: "filling"
    case .settle: "putting on offer"
    case .run: "reading"
    case .check: "checking"
    case .hold: "holding"
    case .fork: "forking"
    default: nil
    }
  }

  /// What a record says about this moment.
  var event: String? {
    switch self {
    case .take: "memory is taken"
    case .release: "memory is given back"
    case .cycle: "memory is taken in waves"
    case .readFile: "files are read"
    default: nil
    }
  }
}

/// The number of a `.progress` frame.
enum StressBeat {
  static let alive: UInt64 = 0
  static let row: UInt64 = 1
}

/// The tool's own commands for them.
enum StressRole: String, CaseIterable {
  case cache, memory, rival

  var command: String { "stress-" + rawValue }
}

/// What a load stores, in words for a child.
struct StressContent: Equatable, Sendable {
  var seed: UInt64
  var keyCount: UInt64
  var sizes: ClosedRange<Int>

  static let options = [
    Command.Option("seed", value: "N", "What decides keys, contents and order."),
    Command.Option("keys", value: "N", "How many keys there are."),
    Command.Option("least", value: "BYTES", "The smallest content."),
    Command.Option("most", value: "BYTES", "The largest content."),
  ]

  /// As many keys as make up so many bytes of keys and contents.
  init(seed: UInt64, totalBytes: UInt64, sizes: ClosedRange<Int>) {
    self.seed = seed
    self.sizes = sizes
    keyCount = max(1, totalBytes / UInt64(8 + (sizes.lowerBound + sizes.upperBound) / 2))
  }

  init(_ arguments: Arguments) throws {
    guard let seed = try arguments.number("seed"), let keys = try arguments.number("keys"), keys > 0,
      let least = try arguments.number("least"), let most = try arguments.number("most"), least >= 8, most >= least
    else { throw UsageError("--seed, --keys, --least or --most is missing") }
    self.seed = seed
    keyCount = keys
    sizes = Int(least)...Int(most)
  }

  var words: [String] {
    ["--seed=\(seed)", "--keys=\(keyCount)", "--least=\(sizes.lowerBound)", "--most=\(sizes.upperBound)"]
  }

  /// The keys' numbers in the order in which they are stored.
  var birthOrder: some Sequence<UInt64> {
    // Steps of the golden ratio's share, or a little more, so that every number comes once.
    var step = max(1, UInt64(Double(keyCount) * 0.6180339887))
    while Self.commonDivisor(step, keyCount) != 1 { step += 1 }
    let (step64, count) = (step, keyCount)
    return (0..<count).lazy.map { $0.multipliedFullWidth(by: step64) }.map { count.dividingFullWidth($0).remainder }
  }

  private static func commonDivisor(_ left: UInt64, _ right: UInt64) -> UInt64 {
    var (left, right) = (left, right)
    while right != 0 { (left, right) = (right, left % right) }
    return left
  }

  var content: Content { Content(seed: seed, sizes: sizes) }
}

/// A child's end of the pipes.
struct StressPort {
  private let input = WireReader(descriptor: STDIN_FILENO)
  private let output = WireWriter(descriptor: STDOUT_FILENO)
  private var lastBeat: UInt64 = 0
  var interval: UInt64 = 500_000_000
  var isDue: Bool { Clock.now - lastBeat >= interval }

  /// Waits for the next order; nil when the input has ended.
  func next() throws -> (StressOrder, Tally)? {
    guard let frame = try input.next() else { return nil }
    guard frame.tag == .order, let order = StressOrder(rawValue: frame.number) else { throw WireFailure() }
    return (order, Tally(frame.bytes))
  }

  /// The next order, if one comes in time. Throws when the input has ended: the parent no longer wants results.
  func next(within milliseconds: Int32) throws -> (StressOrder, Tally)? {
    var watched = pollfd(fd: STDIN_FILENO, events: Int16(POLLIN), revents: 0)
    guard unsafe poll(&watched, 1, milliseconds) > 0 else { return nil }
    guard let order = try next() else { throw WireFailure() }
    return order
  }

  func finish(_ result: Tally) throws { try output.write(.result, 0, result.bytes) }

  func row(_ row: Tally) throws { try output.write(.progress, StressBeat.row, row.bytes) }

  /// Reports, once in the interval at most, that the process makes progress.
  mutating func beat(_ numbers: @autoclosure () -> Tally = [:]) throws {
    guard isDue else { return }
    lastBeat = Clock.now
    try output.write(.progress, StressBeat.alive, numbers().bytes)
  }
}
