// SPDX-License-Identifier: MIT
// Loading: how often a key is loaded that many tasks ask for, what a hit costs more than a look-up, and a load more than the same
// by hand.

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
    for (kind, name) in ["bytes", "objects"].enumerated() {
      let numbers = try ChildRun.run("loading-misses", [kind, scale(100_000, quick: 20_000), scale(15, quick: 3)])
      figures.append(
        Figure(
          "\(name): misses through value(forKey:loading:), against a look-up and a store by hand", .time,
          try Spread(numbers, "loading/manual"), .atMost(2), "times their time",
          note: "through \(Figure.text(try numbers.value("loading"))) ns, by hand \(Figure.text(try numbers.value("manual"))) ns"
        ))
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
    return numbers(times, entries, "plain")
  }

  /// Arguments: bytes or objects, keys a pass, rounds. Every key is asked for once, in a full cache: an entry goes for each.
  @Sendable static func measureMisses(_ arguments: [Int]) throws -> Numbers {
    let (count, rounds) = (arguments[1], arguments[2])
    var asked = 0
    func newKeys() -> Range<Int> {
      asked += count
      return asked - count..<asked
    }
    let times: [[Double]]
    if arguments[0] == 0 {
      let cache = try PurgeableCache<Int, [UInt8]>(name: "figures", byteLimit: 4 << 20)
      times = try Rounds.alternate(rounds, [{ fillByHand(cache, newKeys()) }, { fillByLoading(cache, newKeys()) }])
    } else {
      let cache = try ObjectCache<Int, Thing>(countLimit: 10_000)
      times = try Rounds.alternate(rounds, [{ fillByHand(cache, newKeys()) }, { fillByLoading(cache, newKeys()) }])
    }
    return numbers(times, count, "manual")
  }

  /// Of two sides' times, the other one's and a load's.
  private static func numbers(_ times: [[Double]], _ count: Int, _ other: String) -> Numbers {
    var numbers: Numbers = [:]
    for (side, name) in [other, "loading"].enumerated() {
      numbers[name] = Spread(times.map { $0[side] / Double(count) }).median
    }
    Rounds.ratio(times, 1, over: 0).write(to: &numbers, "loading/\(other)")
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

  @inline(never)
  private static func fillByHand(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: Range<Int>) {
    for key in keys where cache.value(forKey: key) == nil { cache.setValue(Workload.value(of: key), forKey: key) }
  }

  @inline(never)
  private static func fillByLoading(_ cache: PurgeableCache<Int, [UInt8]>, _ keys: Range<Int>) {
    for key in keys { _ = cache.value(forKey: key) { Workload.value(of: key) } }
  }

  @inline(never)
  private static func fillByHand(_ cache: ObjectCache<Int, Thing>, _ keys: Range<Int>) {
    for key in keys where cache.value(forKey: key) == nil { cache.setValue(Thing(key), forKey: key) }
  }

  @inline(never)
  private static func fillByLoading(_ cache: ObjectCache<Int, Thing>, _ keys: Range<Int>) {
    for key in keys { _ = cache.value(forKey: key) { Thing(key) } }
  }
}
