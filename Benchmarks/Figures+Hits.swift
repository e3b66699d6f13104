// SPDX-License-Identifier: MIT
// Hits: what they cost in system calls, offers and allocations, and their time against a dictionary and NSCache.

import BenchmarkSupport
import CPurgeable.Testing
import Foundation
import Purgeable
import ToolSupport

enum Hits {
  static func figures(_ scale: Scale) throws -> [Figure] {
    try counts(scale) + times(scale)
  }

  // MARK: Counts

  private static func counts(_ scale: Scale) throws -> [Figure] {
    let count = scale(1_000_000, quick: 200_000)
    let (numbers, calls) = try ChildRun.runTraced("hit-counts", [count, 1_000_000])
    let hits = try numbers.value("hits")
    let perHit = try Double(calls ?? Int(numbers.value("table-calls"))) / hits
    let allocations = numbers["allocations"].map { $0 / (hits / 2) }
    let (before, after) = (numbers["lazyfree-before"], numbers["lazyfree-after"])
    let lost = before.flatMap { before in after.map { before - $0 } }
    let lostNote = before.map { "of \(Figure.text($0 / 1e6)) MB on offer" } ?? "the kernel does not tell"
    var systemCalls = Figure("system calls per hit", .count, perHit, .atMost(0), "calls", note: unlessTraced(calls))
    systemCalls.condition = try numbers.value("misses") == 0
    return [
      systemCalls,
      Figure("LazyFree lost by a million copying hits", .count, lost, .atMost(0), "bytes", note: lostNote),
      Figure(
        "heap allocations per hit read into a buffer", .count, allocations, .atMost(0), "allocations",
        note: allocations == nil ? "this build does not count them" : nil),
    ]
  }

  static func unlessTraced(_ calls: Int?) -> String? {
    calls == nil ? "strace is missing, or may not trace: only the calls of the core's own table were counted" : nil
  }

  /// Arguments: entries, hits of each kind.
  @Sendable static func count(_ arguments: [Int]) throws -> Numbers {
    let workload = Workload(count: arguments[0])
    let cache = try workload.makeCache()
    let passes = max(1, arguments[1] / arguments[0])
    settle(cache)
    var numbers: Numbers = [:]
    var misses = 0
    // Until after the last mark: an array that is freed in between is a system call, and not the cache's.
    defer { withExtendedLifetime((workload, cache)) {} }
    numbers["lazyfree-before"] = OwnMemory.lazyFreeBytes().map { Double($0) }
    for _ in 0..<passes { misses += readPass(cache, workload.order).misses }
    numbers["lazyfree-after"] = OwnMemory.lazyFreeBytes().map { Double($0) }
    let tableBefore = purgeable_testing_call_count(purgeable_testing_call_any.rawValue)
    let allocationsBefore = benchmark_allocation_count()
    ChildRun.mark()
    for _ in 0..<passes { misses += readPass(cache, workload.order).misses }
    let allocations = benchmark_allocation_count() - allocationsBefore
    for _ in 0..<passes { misses += valuePass(cache, workload.order).misses }
    ChildRun.mark()
    numbers["table-calls"] = Double(purgeable_testing_call_count(purgeable_testing_call_any.rawValue) - tableBefore)
    if benchmark_counts_allocations() { numbers["allocations"] = Double(allocations) }
    numbers["hits"] = Double(2 * passes * arguments[0])
    numbers["misses"] = Double(misses)
    return numbers
  }

  // MARK: Times

  private static func times(_ scale: Scale) throws -> [Figure] {
    let count = scale(1_000_000, quick: 300_000)
    let numbers = try ChildRun.run("hits", [count, scale(7, quick: 3)])
    func note(_ sides: [String]) throws -> String {
      try sides.map { "\($0) \(Figure.text(try numbers.value($0))) ns" }.joined(separator: ", ")
    }
    return [
      Figure(
        "hits read into a buffer, against Dictionary", .time, try Spread(numbers, "read/dictionary"), .atMost(1.0),
        "times its time", note: try note(["read", "dictionary"])),
      Figure(
        "hits read into a buffer, against NSCache", .time, try Spread(numbers, "nscache/read"), .atLeast(4), "times as fast",
        note: try note(["read", "nscache"])),
      Figure(
        "hits as a new array, against NSCache", .time, try Spread(numbers, "nscache/value"), .atLeast(2.5), "times as fast",
        note: try note(["value", "nscache"])),
      Figure(
        "1,000 random keys in one call, against single hits as new arrays", .time, try Spread(numbers, "many/value"),
        .atMost(0.6),
        "times their time", note: try note(["many", "value"])),
    ]
  }

  /// Arguments: entries, rounds.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let workload = Workload(count: arguments[0])
    let cache = try workload.makeCache()
    let dictionary = workload.makeDictionary()
    let nsCache = workload.makeNSCache()
    settle(cache)
    let expected = dictionaryPass(dictionary, workload.order)
    func check(_ pass: Pass) throws {
      guard pass == expected else { throw ToolFailure("\(pass) is not what the dictionary has, \(expected)") }
    }
    let times = try Rounds.alternate(
      arguments[1],
      [
        { try check(readPass(cache, workload.order)) }, { try check(dictionaryPass(dictionary, workload.order)) },
        { try check(nsCachePass(nsCache, workload.order)) }, { try check(valuePass(cache, workload.order)) },
        { try check(manyPass(cache, workload.order)) },
      ])
    var numbers: Numbers = [:]
    for (side, name) in ["read", "dictionary", "nscache", "value", "many"].enumerated() {
      Spread(times.map { $0[side] / Double(arguments[0]) }).write(to: &numbers, name)
    }
    Rounds.ratio(times, 0, over: 1).write(to: &numbers, "read/dictionary")
    Rounds.ratio(times, 2, over: 0).write(to: &numbers, "nscache/read")
    Rounds.ratio(times, 2, over: 3).write(to: &numbers, "nscache/value")
    Rounds.ratio(times, 4, over: 3).write(to: &numbers, "many/value")
    return numbers
  }
}
