// SPDX-License-Identifier: MIT
// Reaction to pressure: how soon everything is on offer, how long giving back takes and what readers see of it, what is kept, and
// what the library's thread costs while nothing happens. Without a memory group; `purgeablectl stress` measures with one.

import Foundation
import Purgeable
import Synchronization
import ToolSupport

enum Pressure {
  static func figures(_ scale: Scale) throws -> [Figure] {
    let reaction = try ChildRun.run("reaction", [scale(1 << 30, quick: 256 << 20), scale(5, quick: 3)])
    let giving = try ChildRun.run("giving", [scale(2 << 30, quick: 512 << 20)])
    let idle = try ChildRun.run("idle-wake-ups", [scale(10, quick: 4)])
    var figures = [
      Figure(
        "from pressure event to everything idle on offer, \(scale(1024, quick: 256)) MiB", .time,
        try Spread(reaction, "milliseconds"), .atMost(50), "ms"),
      Figure(
        "giving back \(scale(1024, quick: 256)) MiB in the library's order, copying included", .time,
        try giving.value("milliseconds"), .atMost(500), "ms",
        note: "\(Figure.text(try giving.value("given") / 1e6)) MB, \(Int(try giving.value("copies"))) entries copied"),
      Figure(
        "a reader's p99.99 meanwhile", .time, try giving.value("p9999"), .atMost(1), "ms",
        note: "\(Int(try giving.value("reads"))) reads; before, \(Figure.text(try giving.value("before"))) ms"),
      Figure(
        "wake-ups a second, nothing to do, events", .count, try idle.value("events"), .atMost(0), "wake-ups",
        note: "by source \"\(PressureNames.best)\""),
      Figure("wake-ups a second, nothing to do, polling", .count, try idle.value("polling"), .atMost(1.2), "wake-ups"),
    ]
    for size in [4096, 100] {
      let numbers = try ChildRun.run("kept", [size, scale(256 << 20, quick: 64 << 20)])
      figures.append(
        Figure(
          "reads still answered after the library gave half back, Zipf 0.99, \(size)-byte entries, against an ideal LRU", .time,
          try numbers.value("share"), .atLeast(size == 100 ? 0.95 : 0.97), "ratio",
          note: "\(Figure.text(try numbers.value("answered") * 100)) % answered, \(Int(try numbers.value("left"))) of "
            + "\(Int(try numbers.value("count"))) entries left"))
    }
    return figures
  }

  private enum PressureNames {
    static let best = SystemPressureSource().name
  }

  // MARK: Reaction

  /// Reports the level that the measurement sets, immediately.
  private final class Bell: PressureSource {
    let name = "bell"
    private let pipeEnds: (Int32, Int32)
    private let level = Atomic<Int32>(0)

    init() {
      var ends: [Int32] = [0, 0]
      _ = unsafe pipe(&ends)
      pipeEnds = (ends[0], ends[1])
    }

    var descriptors: [PressureDescriptor] { [PressureDescriptor(descriptor: pipeEnds.0, events: Int16(POLLIN))] }

    func level(ready: [PressureDescriptor]) -> PressureLevel {
      var byte: UInt8 = 0
      if !ready.isEmpty { _ = unsafe read(pipeEnds.0, &byte, 1) }
      return PressureLevel(rawValue: level.load(ordering: .relaxed)) ?? .normal
    }

    func ring(_ new: PressureLevel) {
      level.store(new.rawValue, ordering: .relaxed)
      var byte: UInt8 = 1
      _ = unsafe write(pipeEnds.1, &byte, 1)
    }
  }

  /// Arguments: bytes, rounds. Everything is locked and unlocked before each round, which takes it off offer.
  @Sendable static func measureReaction(_ arguments: [Int]) throws -> Numbers {
    let bell = Bell()
    PurgeableMemory.pressureSource = bell
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    let value = [UInt8](repeating: 0x5A, count: 4000)
    let count = arguments[0] / value.count
    for key in 0..<count { cache.setValue(value, forKey: key) }
    var times: [Double] = []
    for _ in 0..<arguments[1] {
      bell.ring(.normal)
      while PurgeableMemory.pressureLevel != .normal { usleep(10_000) }
      for key in 0..<count { cache.withBytes(forKey: key) { _ in } }
      let before = PurgeableMemory.pressureStatistics.reactionCount
      bell.ring(.warning)
      while PurgeableMemory.pressureStatistics.reactionCount == before { usleep(1000) }
      times.append(Double(PurgeableMemory.pressureStatistics.lastOfferNanoseconds ?? 0) / 1e6)
      // Stores again what the slice gave back.
      for key in 0..<count where !cache.containsValue(forKey: key) { cache.setValue(value, forKey: key) }
    }
    var numbers: Numbers = [:]
    Spread(times).write(to: &numbers, "milliseconds")
    return numbers
  }

  // MARK: Giving back

  /// Arguments: bytes, half of which are given back. A fifth of the entries was read twice.
  @Sendable static func measureGiving(_ arguments: [Int]) throws -> Numbers {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    var generator = SplitMix64()
    let bytes = [UInt8](repeating: 0x5A, count: 4096)
    var (stored, count) = (0, 0)
    while stored < arguments[0] {
      let value = [UInt8](bytes[..<generator.logUniform(100, 4096)])
      cache.setValue(value, forKey: count)
      (stored, count) = (stored + value.count, count + 1)
    }
    for key in stride(from: 0, to: count, by: 5) { for _ in 0..<2 { _ = cache.value(forKey: key) } }
    let reader = Reader(cache, count)
    reader.start()
    usleep(1_000_000)
    let before = reader.takeLatencies()
    let held = cache.statistics
    let time = ContinuousClock().measure { cache.trim(toFraction: 0.5) }
    let during = reader.takeLatencies()
    reader.stop()
    let after = cache.statistics
    return [
      "milliseconds": time / .milliseconds(1), "given": Double(held.memory.heldBytes - after.memory.heldBytes),
      "copies": Double(after.copyCount), "reads": Double(during.count), "p9999": percentile(during), "before": percentile(before),
    ]
  }

  private static func percentile(_ latencies: [UInt32]) -> Double {
    let sorted = latencies.sorted()
    return sorted.isEmpty ? 0 : Double(sorted[Int(Double(sorted.count - 1) * 0.9999)]) / 1e6
  }

  /// A thread that reads at random and notes how long each read takes.
  private final class Reader: Sendable {
    private let latencies = Mutex<[UInt32]>([])
    private let isDone = Atomic<Bool>(false)
    private let cache: PurgeableCache<Int, [UInt8]>
    private let count: Int

    init(_ cache: PurgeableCache<Int, [UInt8]>, _ count: Int) { (self.cache, self.count) = (cache, count) }

    func start() {
      let thread = Thread { [self] in
        var generator = SplitMix64(seed: 7)
        let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 4096, alignment: 16)
        var own: [UInt32] = []
        own.reserveCapacity(1 << 20)
        while !isDone.load(ordering: .relaxed) {
          let start = DispatchTime.now().uptimeNanoseconds
          // Reads only entries that were read before, so that no more entries become worth copying.
          _ = unsafe cache.read(forKey: Int.random(in: 0..<count / 5, using: &generator) * 5, into: buffer)
          own.append(UInt32(clamping: DispatchTime.now().uptimeNanoseconds - start))
          if own.count % 256 == 0 {
            latencies.withLock { $0.append(contentsOf: own) }
            own.removeAll(keepingCapacity: true)
          }
        }
        unsafe buffer.deallocate()
      }
      thread.start()
    }

    func takeLatencies() -> [UInt32] {
      latencies.withLock { all in
        defer { all = [] }
        return all
      }
    }

    func stop() { isDone.store(true, ordering: .relaxed) }
  }

  // MARK: What is kept

  /// Arguments: bytes of an entry, bytes of all. Stored in one order, popular in another; read four times as often as there are
  /// entries; then half is given back, and it is read on.
  @Sendable static func measureKept(_ arguments: [Int]) throws -> Numbers {
    let count = arguments[1] / arguments[0]
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    var generator = SplitMix64()
    let byRank = (0..<count).shuffled(using: &generator)
    var sums = [Double](repeating: 0, count: count)
    var sum = 0.0
    for rank in 0..<count {
      sum += pow(Double(rank + 1), -0.99)
      sums[rank] = sum
    }
    func next() -> Int {
      let wanted = Double.random(in: 0..<sum, using: &generator)
      var (low, high) = (0, count - 1)
      while low < high {
        let middle = (low + high) / 2
        if sums[middle] <= wanted { low = middle + 1 } else { high = middle }
      }
      return byRank[low]
    }
    let value = [UInt8](repeating: 0x5A, count: arguments[0])
    for key in 0..<count { cache.setValue(value, forKey: key) }
    var lastUse = Array(0..<count)
    var moment = count
    for _ in 0..<4 * count {
      let key = next()
      guard cache.value(forKey: key) != nil else { throw ToolFailure("an entry is gone") }
      lastUse[key] = moment
      moment += 1
    }
    cache.trim(toFraction: 0.5)
    let left = cache.count
    // An ideal LRU of the size that the memory left has room for.
    let size = Int(Double(count) * 0.5)
    let oldestKept = lastUse.sorted(by: >)[size - 1]
    var (answered, ideal) = (0, 0)
    for _ in 0..<count {
      let key = next()
      if cache.peekValue(forKey: key) != nil { answered += 1 }
      if lastUse[key] >= oldestKept { ideal += 1 }
    }
    return [
      "share": Double(answered) / Double(ideal), "answered": Double(answered) / Double(count), "left": Double(left),
      "count": Double(count),
    ]
  }

  // MARK: Doing nothing

  private final class Polling: PressureSource {
    let name = "polling"
    let pollingInterval: Duration? = .seconds(1)
    func level(ready: [PressureDescriptor]) -> PressureLevel { .normal }
  }

  /// Arguments: seconds for each way.
  @Sendable static func measureIdle(_ arguments: [Int]) throws -> Numbers {
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    for key in 0..<10_000 { cache.setValue([UInt8](repeating: 1, count: 1000), forKey: key) }
    func wakeUps() -> Double {
      settle(cache)
      usleep(3_000_000)
      let before = PurgeableMemory.pressureStatistics.wakeUpCount
      usleep(UInt32(arguments[0]) * 1_000_000)
      return Double(PurgeableMemory.pressureStatistics.wakeUpCount - before) / Double(arguments[0])
    }
    let events = wakeUps()
    PurgeableMemory.pressureSource = Polling()
    let polling = wakeUps()
    return ["events": events, "polling": polling, "held": Double(cache.byteCount)]
  }
}
