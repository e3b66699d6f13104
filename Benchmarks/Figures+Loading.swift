// SPDX-License-Identifier: MIT
// Loading: how often a key is loaded that many tasks ask for, and what a hit costs more than a look-up.

import Foundation
import Purgeable
import Synchronization
import ToolSupport

enum LoadingFigures {
  static func figures(_ scale: Scale) throws -> [Figure] {
    let numbers = try ChildRun.run("loading", [50, 1000, 2])
    var figures = [
      Figure(
        "loads made, 50 tasks that ask for 1,000 keys 100 times each, loads of 1 ms", .count, try numbers.value("loads"),
        .atMost(1000), "loads", note: "took \(Figure.text(try numbers.value("seconds"))) s")
    ]
    for (kind, name) in ["bytes", "objects"].enumerated() {
      let numbers = try ChildRun.run("loading-hits", [kind, scale(100_000, quick: 20_000), scale(15, quick: 3)])
      figures.append(
        Figure(
          "\(name): hits through value(forKey:loading:), against value(forKey:)", .time, try Spread(numbers, "loading/plain"),
          .atMost(1.1), "times their time",
          note: "through \(Figure.text(try numbers.value("loading"))) ns, plain \(Figure.text(try numbers.value("plain"))) ns"))
    }
    return figures
  }

  private final class Tally: Sendable {
    let loads = Atomic<Int>(0)
    let wrong = Atomic<Int>(0)
  }

  /// Arguments: tasks, keys, how often each task asks for each key.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    let (tasks, keys, times) = (arguments[0], arguments[1], arguments[2])
    let cache = try ObjectCache<Int, Thing>()
    let tally = Tally()
    let ended = DispatchSemaphore(value: 0)
    let start = ContinuousClock.now
    Task {
      await withTaskGroup { group in
        for task in 0..<tasks {
          group.addTask {
            for at in 0..<keys * times {
              // The tasks come to each key at different times, and some at once.
              let key = (at + task % 10 * (keys / 10)) % keys
              let thing = await cache.value(forKey: key) {
                tally.loads.add(1, ordering: .relaxed)
                try? await Task.sleep(for: .milliseconds(1))
                return Thing(key)
              }
              if thing.number != key { tally.wrong.add(1, ordering: .relaxed) }
            }
          }
        }
      }
      ended.signal()
    }
    ended.wait()
    guard tally.wrong.load(ordering: .relaxed) == 0 else { throw ToolFailure("a task got the value of another key") }
    let (seconds, attoseconds) = (ContinuousClock.now - start).components
    return ["loads": Double(tally.loads.load(ordering: .relaxed)), "seconds": Double(seconds) + Double(attoseconds) / 1e18]
  }

  /// Arguments: bytes or objects, entries, rounds.
  @Sendable static func measureHits(_ arguments: [Int]) throws -> Numbers {
    let (entries, rounds) = (arguments[1], arguments[2])
    let workload = ObjectWorkload(.hits, entries: entries) { Int(number: $0) }
    let times: [[Double]]
    if arguments[0] == 0 {
      let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
      for key in workload.asked { cache.setValue(Workload.value(of: key), forKey: key) }
      settle(cache)
      times = try Rounds.alternate(rounds, [{ try pass(cache, workload.asked) }, { try loadingPass(cache, workload.asked) }])
    } else {
      let cache = try ObjectCache<Int, Thing>()
      workload.fill(cache)
      times = try Rounds.alternate(rounds, [{ try pass(cache, workload.asked) }, { try loadingPass(cache, workload.asked) }])
    }
    var numbers: Numbers = [:]
    for (side, name) in ["plain", "loading"].enumerated() {
      numbers[name] = Spread(times.map { $0[side] / Double(entries) }).median
    }
    Rounds.ratio(times, 1, over: 0).write(to: &numbers, "loading/plain")
    return numbers
  }

  // MARK: Passes

  private struct Missing: Error {}

  @inline(never)
  private static func pass(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: [Int]) throws {
    for key in keys where cache.value(forKey: key) == nil { throw Missing() }
  }

  @inline(never)
  private static func loadingPass(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: [Int]) throws {
    for key in keys { _ = try cache.value(forKey: key) { () throws(Missing) -> [UInt8] in throw Missing() } }
  }

  @inline(never)
  private static func pass(_ cache: ObjectCache<Int, Thing>, _ keys: [Int]) throws {
    for key in keys where cache.value(forKey: key) == nil { throw Missing() }
  }

  @inline(never)
  private static func loadingPass(_ cache: ObjectCache<Int, Thing>, _ keys: [Int]) throws {
    for key in keys { _ = try cache.value(forKey: key) { () throws(Missing) -> Thing in throw Missing() } }
  }
}
