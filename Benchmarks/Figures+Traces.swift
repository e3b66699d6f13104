// SPDX-License-Identifier: MIT
// Real requests: traces replayed through the cache by `purgeablectl replay`, against what libCacheSim 0.3.5 computes for
// orders of single entries. `--traces DIR` names a directory with some of the files that are known here.

import Foundation
import Purgeable
import ToolSupport

enum Traces {
  /// A trace, and miss ratios at 1 and 10 % of its footprint.
  private struct Known {
    let file: String
    let s3FIFO: [Double]
    let lru: [Double]
    /// How many entries the smaller of the two caches has, where they are few.
    var isSmall = false
  }

  private static let percents = [1, 10]
  private static let known = [
    Known(file: "arc-oltp.csv", s3FIFO: [0.5354, 0.3234], lru: [0.5837, 0.3348]),
    Known(file: "cache2k-web07.csv", s3FIFO: [0.5625, 0.4178], lru: [0.6085, 0.4434]),
    Known(file: "lirs-2-pools.csv", s3FIFO: [0.5542, 0.4567], lru: [0.7823, 0.4562], isSmall: true),
    Known(file: "adaptsize.csv", s3FIFO: [0.7194, 0.6211], lru: [0.7538, 0.6564]),
    Known(file: "cloudphysics-io.csv", s3FIFO: [0.8235, 0.7542], lru: [0.8339, 0.8097]),
  ]
  /// Of adaptsize, by GDSF.
  private static let gdsf = [0.6685, 0.5798]

  static func figures(_ scale: Scale, in directory: String) throws -> [Figure] {
    var figures: [Figure] = []
    for trace in known {
      let path = "\(directory)/\(trace.file)"
      guard FileManager.default.isReadableFile(atPath: path) else { continue }
      for (i, percent) in percents.enumerated() {
        let name = "\(trace.file), \(percent) %"
        let usual = try replay(path, percent)
        let spare = trace.isSmall && percent == 1 ? 0.01 : 0.005
        figures.append(
          Figure(
            "\(name): misses", .time, try usual.value("missRatio"), .atMost(trace.s3FIFO[i] + spare), "of the requests",
            note: "S3-FIFO over single entries \(trace.s3FIFO[i]); \(Figure.text(try usual.value("nanosecondsPerRequest"))) ns"))
        let lru = try replay(path, percent, ["--order=lru"]).value("missRatio")
        figures.append(
          Figure(
            "\(name): misses of exact LRU, against LRU", .time, abs(lru - trace.lru[i]), .atMost(0.001), "difference",
            note: "\(Figure.text(lru)), LRU \(trace.lru[i])"))
        if trace.file == "arc-oltp.csv", percent == 10 {
          figures.append(
            Figure("\(name): a request", .time, try usual.value("nanosecondsPerRequest"), .atMost(300), "ns"))
          figures += try costs(path, percent, assignments: scale(8, quick: 2))
          figures += try episodes(path, percent)
        }
        if trace.file == "adaptsize.csv" {
          let dear = try replay(path, percent, ["--cost=equal"]).value("missRatio")
          figures.append(
            Figure(
              "\(name): equal recompute cost, from S3-FIFO to GDSF", .time,
              (trace.s3FIFO[i] - dear) / (trace.s3FIFO[i] - gdsf[i]), .atLeast(1 / 3), "of the gap",
              note: "misses \(Figure.text(dear)), GDSF \(gdsf[i])"))
        }
      }
    }
    guard !figures.isEmpty else {
      throw ToolFailure("\(directory) has none of \(known.map(\.file).joined(separator: ", "))")
    }
    return figures
  }

  /// Costs of 1, 10 and 100 for 80, 15 and 5 % of the keys, by a hash, in several ways.
  private static func costs(_ path: String, _ percent: Int, assignments: Int) throws -> [Figure] {
    let keys = try keys(path)
    var (costs, misses): ([Double], [Double]) = ([], [])
    for assignment in 1...assignments {
      let file = try UnnamedFile()
      try FileHandle(fileDescriptor: file.descriptor).write(
        contentsOf: Data(
          keys.reduce(into: "key,cost\n") { text, key in
            let part = SplitMix64.mix(key &* 8 &+ UInt64(assignment)) % 100
            text += "\(key),\(part < 80 ? 1 : part < 95 ? 10 : 100)\n"
          }.utf8))
      let with = try replay(file.path, percent, ["--cost=cost"])
      let without = try replay(file.path, percent, ["--cost=cost", "--without-credit"])
      costs.append(try with.value("missCost") / without.value("missCost"))
      misses.append(try 100 * (with.value("missRatio") - without.value("missRatio")))
    }
    func mean(_ values: [Double]) -> Double { values.reduce(0, +) / Double(values.count) }
    let name = "arc-oltp.csv, \(percent) %, costs of 1, 10, 100"
    return [
      Figure(
        "\(name): cost of all misses, against the same without credit", .time, mean(costs), .atMost(0.85), "times",
        note: "mean of \(assignments) assignments, \(Figure.text(costs.min()!)) to \(Figure.text(costs.max()!))"),
      Figure("\(name): more misses than without credit", .time, mean(misses), .atMost(1.2), "points"),
    ]
  }

  private static func keys(_ path: String) throws -> [UInt64] {
    try String(contentsOfFile: path, encoding: .utf8).split(separator: "\n").dropFirst().compactMap { UInt64($0) }
  }

  /// After each fifth of the requests a quarter of what is resident is taken, and then there is room again.
  private static func episodes(_ path: String, _ percent: Int) throws -> [Figure] {
    typealias Cache = PurgeableCache<UInt64, [UInt8]>
    let keys = try keys(path)
    let (capacity, value) = (Set(keys).count * percent / 100, [UInt8](repeating: 7, count: 64))
    func missRatio(_ take: (Cache) throws -> Void) throws -> Double {
      let cache = try Cache(name: "figures", countLimit: capacity)
      var misses = 0
      for (number, key) in keys.enumerated() {
        if (1...4).contains(where: { number == keys.count * $0 / 5 }) { try take(cache) }
        if cache.withBytes(forKey: key, { _ in true }) != nil { continue }
        misses += 1
        cache.setValue(value, forKey: key)
      }
      return Double(misses) / Double(keys.count)
    }
    let undisturbed = try missRatio { _ in }
    let byLibrary = try missRatio { $0.trim(toFraction: 0.75) }
    var hand = PageOutHand()
    var taken: [Double] = []
    let byKernel = try missRatio { cache in
      cache.offerIdle()
      let resident = cache.statistics.memory.residentBytes ?? 0
      taken.append(Double(try cache.pageOut(resident / 4, hand: &hand)) / Double(max(1, resident)))
    }
    func figure(_ who: String, _ ratio: Double, _ most: Double, _ note: String) -> Figure {
      Figure(
        "arc-oltp.csv, \(percent) %, four times a quarter is taken \(who): more misses", .time, ratio - undisturbed,
        .atMost(most), "of the requests", note: "\(Figure.text(ratio)), undisturbed \(Figure.text(undisturbed))\(note)")
    }
    let shares = taken.map(Figure.text).joined(separator: ", ")
    return [
      figure("by the library", byLibrary, 0.0025, ""),
      figure("by the kernel", byKernel, 0.006, "; it took \(shares) of what was resident"),
    ]
  }

  private static func replay(_ path: String, _ percent: Int, _ words: [String] = []) throws -> Numbers {
    let tool = OwnProgram.beside("purgeablectl")
    guard FileManager.default.isExecutableFile(atPath: tool) else {
      throw ToolFailure("purgeablectl is not built beside this program; swift build -c release builds it")
    }
    let child = try ChildProcess.run(tool, ["replay", path, "--capacity=\(percent)%", "--json"] + words, errors: .nothing)
    guard child.status == 0,
      let report = try? JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any]
    else { throw ToolFailure("replay of \(path) ended with status \(child.status)") }
    return report.compactMapValues { $0 as? Double }
  }
}
