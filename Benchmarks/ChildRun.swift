// SPDX-License-Identifier: MIT
// Every measurement runs in a process of its own: memory figures are clean, and no measurement disturbs the next. The child
// prints "name number" lines. Under strace, what it does between two marks is counted from outside.

import Glibc
import Purgeable
import ToolSupport

typealias Numbers = [String: Double]

extension Numbers {
  func value(_ name: String) throws -> Double {
    guard let value = self[name] else { throw ToolFailure("the child did not tell \"\(name)\"") }
    return value
  }
}

enum ChildRun {
  /// What a child can be asked to do. Numbers in, numbers out.
  typealias Job = @Sendable ([Int]) throws -> Numbers

  static let jobs: [String: Job] = [
    "hits": Hits.measure, "hit-counts": Hits.count, "stores": Stores.measure, "store-counts": Stores.count,
    "full-stores": Full.measureStores, "full-hits": Full.measureHits, "full-allocations": Full.countAllocations,
    "exact-lru": ExactLRU.measure, "exact-lru-memory": ExactLRU.measureMemory, "expiry": ExpiryFigures.measure,
    "expiry-flood": ExpiryFigures.measureFlood,
    "threads": Threads.measure, "read-beside-writer": Threads.measureBesideWriter,
    "pauses-filling": Pauses.measureFilling, "pauses-hot": Pauses.measureHot, "pauses-removing": Pauses.measureRemoving,
    "pauses-costless": Pauses.measureCostless, "pauses-lost": Pauses.measureLost,
    "core-streams": Core.measureStreams, "core-compaction": Core.measureCompaction, "core-holes": Core.measureHoles,
    "core-neighbours": Core.measureNeighbours, "core-sparse": Core.measureSparse, "core-queue": Core.measureQueue,
    "regions": Regions.measure, "density-mix": Density.measureMix, "density-files": Density.measureFiles,
    "density-shift": Density.measureShift, "heap-memory": Memory.measureHeap, "entry-memory": Memory.measureEntries,
    "eviction": Upkeep.measureEviction, "sweep": Upkeep.measureSweep,
    "reaction": Pressure.measureReaction, "giving": Pressure.measureGiving, "kept": Pressure.measureKept,
    "objects": Objects.measure, "object-threads": Objects.measureThreads, "nscache-shape": NSCacheShape.measure,
    "loading": LoadingFigures.measure, "loading-hits": LoadingFigures.measureHits,
    "loading-misses": LoadingFigures.measureMisses,
    "walks": Walks.measure, "files": Files.measure, "file-losses": Files.measureLosses,
    "idle-wake-ups": Pressure.measureIdle, "small-caches": Small.measure, "cache-life": Small.measureLife,
  ]

  /// In the child: does a job, and prints what came of it.
  static func perform(_ words: [String]) throws {
    guard let name = words.first, let job = jobs[name] ?? DatabaseFigures.jobs[name] else { throw ToolFailure("unknown job") }
    for (name, value) in try job(words.dropFirst().compactMap { Int($0) }).sorted(by: { $0.key < $1.key }) {
      print(name, value)
    }
  }

  /// A child's numbers.
  static func run(_ name: String, _ arguments: [Int]) throws -> Numbers {
    try run(command(name, arguments))
  }

  /// A child's numbers, and how many system calls all of its threads began between its two marks; nil calls without strace.
  static func runTraced(_ name: String, _ arguments: [Int]) throws -> (numbers: Numbers, calls: Int?) {
    let log = try UnnamedFile()
    let command = command(name, arguments)
    guard let numbers = try? run(["/usr/bin/env", "strace", "-f", "-qq", "-o", log.path] + command) else {
      return (try run(command), nil)
    }
    return (numbers, try calls(in: try log.text(limit: .max)))
  }

  private static func command(_ name: String, _ arguments: [Int]) -> [String] {
    [OwnProgram.path, "child", name] + arguments.map { String($0) }
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
    guard marks == 2 else { throw ToolFailure("\(marks) marks in the trace, not 2") }
    return calls
  }

  private static func run(_ words: [String]) throws -> Numbers {
    let child = try ChildProcess.run(words[0], Array(words.dropFirst()), errors: .own)
    guard child.end == .exited(0) else { throw ToolFailure("\(words.joined(separator: " ")) ended with status \(child.status)") }
    var numbers: Numbers = [:]
    for line in child.output.split(separator: "\n") {
      let parts = line.split(separator: " ")
      if parts.count == 2, let number = Double(parts[1]) { numbers[String(parts[0])] = number }
    }
    return numbers
  }
}
