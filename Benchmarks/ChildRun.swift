// SPDX-License-Identifier: MIT
// Every measurement runs in a process of its own: memory figures are clean, and no measurement disturbs the next. The child
// prints "name number" lines. Under strace, what it does between two marks is counted from outside.

import Foundation
import Purgeable

typealias Numbers = [String: Double]

extension Numbers {
  func value(_ name: String) throws -> Double {
    guard let value = self[name] else { throw BenchError("the child did not tell \"\(name)\"") }
    return value
  }
}

struct BenchError: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}

enum ChildRun {
  /// What a child can be asked to do. Numbers in, numbers out.
  typealias Job = @Sendable ([Int]) throws -> Numbers

  static let jobs: [String: Job] = [
    "hits": Hits.measure, "hit-counts": Hits.count, "stores": Stores.measure, "store-counts": Stores.count,
    "regions": Regions.measure, "density-mix": Density.measureMix, "density-files": Density.measureFiles,
    "density-shift": Density.measureShift, "heap-memory": Memory.measureHeap, "entry-memory": Memory.measureEntries,
    "eviction": Upkeep.measureEviction, "sweep": Upkeep.measureSweep,
    "reaction": Pressure.measureReaction, "giving": Pressure.measureGiving, "kept": Pressure.measureKept,
    "idle-wake-ups": Pressure.measureIdle,
  ]

  /// In the child: does a job, and prints what came of it.
  static func perform(_ words: [String]) throws {
    guard let name = words.first, let job = jobs[name] else { throw BenchError("unknown job") }
    for (name, value) in try job(words.dropFirst().compactMap { Int($0) }).sorted(by: { $0.key < $1.key }) {
      print(name, value)
    }
  }

  /// A child's numbers.
  static func run(_ name: String, _ arguments: [Int]) throws -> Numbers {
    try run([try ownPath(), "child", name] + arguments.map { String($0) })
  }

  /// A child's numbers, and how many system calls all of its threads began between its two marks; nil calls without strace.
  static func runTraced(_ name: String, _ arguments: [Int]) throws -> (numbers: Numbers, calls: Int?) {
    let log = FileManager.default.temporaryDirectory.appendingPathComponent("purgeable-bench-\(UUID().uuidString)")
    defer { try? FileManager.default.removeItem(at: log) }
    let command = [try ownPath(), "child", name] + arguments.map { String($0) }
    guard let numbers = try? run(["/usr/bin/env", "strace", "-f", "-qq", "-o", log.path] + command),
      let text = try? String(contentsOf: log, encoding: .utf8)
    else { return (try run(command), nil) }
    return (numbers, try calls(in: text))
  }

  /// The mark: a call that nothing else makes.
  static func mark() { _ = getppid() }

  private static func calls(in log: String) throws -> Int {
    var marks = 0
    var calls = 0
    for line in log.split(separator: "\n") {
      // "PID call(...". Ends of calls that were cut in two, signals and exits are no beginnings.
      let call = line.drop { $0.isNumber }.drop { $0 == " " }
      if call.hasPrefix("getppid(") {
        marks += 1
      } else if marks == 1, let first = call.first, first.isLetter || first == "_" {
        calls += 1
      }
    }
    guard marks == 2 else { throw BenchError("\(marks) marks in the trace, not 2") }
    return calls
  }

  static func ownPath() throws -> String {
    try FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe")
  }

  /// Runs a program by its path and waits for its end: what it printed, and whether it ended with 0 or else with what.
  static func output(of words: [String], hidesErrors: Bool = false) throws -> (data: Data, failure: Int32?) {
    let process = Process()
    let output = Pipe()
    process.executableURL = URL(fileURLWithPath: words[0])
    process.arguments = Array(words.dropFirst())
    process.standardOutput = output
    if hidesErrors { process.standardError = FileHandle.nullDevice }
    try process.run()
    let data = output.fileHandleForReading.readDataToEndOfFile()
    process.waitUntilExit()
    let isWell = process.terminationReason == .exit && process.terminationStatus == 0
    return (data, isWell ? nil : process.terminationStatus)
  }

  private static func run(_ words: [String]) throws -> Numbers {
    let (data, failure) = try output(of: words)
    if let failure { throw BenchError("\(words.joined(separator: " ")) ended with status \(failure)") }
    var numbers: Numbers = [:]
    for line in String(decoding: data, as: UTF8.self).split(separator: "\n") {
      let parts = line.split(separator: " ")
      if parts.count == 2, let number = Double(parts[1]) { numbers[String(parts[0])] = number }
    }
    return numbers
  }
}
