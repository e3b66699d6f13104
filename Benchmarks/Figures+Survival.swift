// SPDX-License-Identifier: MIT
// Survival under real pressure, in short form: `purgeablectl stress`, run from here where it has been built beside this program
// (`swift build -c release`), and where a memory group can be made.

import Foundation
import Purgeable
import ToolSupport

enum Survival {
  /// What one scenario reported.
  private typealias Report = [String: Any]

  static func figures(_ scale: Scale) throws -> [Figure] {
    // In full every scenario once; else only those that are measured. The core's in a small group besides.
    let words = (scale.isQuick ? [["neighbour"], ["hot"]] : [["--all"]]) + [["core", "--limit", "128M"]]
    var reports: [String: Report] = [:]
    var all: [Report] = []
    // Ended otherwise than its reports say: by a crash, or before it had run everything.
    var unexplained = 0
    var missing: String?
    for words in words {
      do {
        let (its, status) = try run(words)
        for report in its { reports[report["scenario"] as? String ?? ""] = report }
        all += its
        if status != 0, its.allSatisfy({ $0["passed"] as? Bool ?? ($0["skipped"] != nil) }) { unexplained += 1 }
      } catch let error as Unavailable {
        missing = error.reason
      }
    }
    func figure(
      _ name: String, _ kind: Figure.Kind, _ value: Double?, _ reach: Figure.Reach, _ unit: String, _ scenario: String
    ) -> Figure {
      let reason = missing ?? reports[scenario]?["skipped"] as? String
      return Figure(name, kind, reason == nil ? value : nil, reach, unit, note: reason.map { "not measured: \($0)" })
    }
    func median(_ scenario: String, _ fact: String) -> Double? {
      ((reports[scenario]?[fact] as? Report)?["median"] as? NSNumber)?.doubleValue
    }
    func share(_ size: Int, alone: Bool) -> Double? {
      let variants = reports["hot"]?["variants"] as? [Report] ?? []
      return variants.first { $0["entryBytes"] as? Int == size && $0["kernelAlone"] as? Bool == alone }
        .flatMap { ($0["shareOfIdeal"] as? NSNumber)?.doubleValue }
    }
    let ran = all.filter { $0["skipped"] == nil }
    let faults = ran.reduce(unexplained) { sum, report in
      sum + (report["wrongBytes"] as? Int ?? 1) + (report["kills"] as? Int ?? 0) + ((report["passed"] as? Bool ?? false) ? 0 : 1)
    }
    let names = reports.keys.sorted().joined(separator: ", ")
    var survived = figure(
      "kills, wrong bytes, hangs and failures", .count, ran.isEmpty ? nil : Double(faults), .atMost(0), "cases", "")
    if missing == nil { survived.note = names }
    var figures = [
      survived,
      figure(
        "a neighbour's rate into memory the cache holds, kernel alone, against bare MADV_FREE", .time,
        median("neighbour", "aloneToBare"), .atLeast(0.95), "times", "neighbour"),
      figure(
        "a neighbour's rate into memory the cache holds, with the reaction, against clean page cache", .time,
        median("neighbour", "reactingToFiles"), .atLeast(0.9), "times", "neighbour"),
      figure(
        "hit p99.9 during the sudden neighbour, against before", .time, median("neighbour", "slowdownReacting"), .atMost(10),
        "times", "neighbour"),
    ]
    // A count, but one that the kernel's choices and the machine's speed decide.
    figures.append(
      figure(
        "entries lost to the kernel beside 5 s of files read once, half of 128 MiB, all of it in the core", .time,
        (reports["core"]?["core100Lost"] as? NSNumber)?.doubleValue, .atMost(500), "entries", "core"))
    for (size, name, reaches) in [(4096, "4 KiB", [true: 0.9, false: 0.97]), (100, "100-byte", [true: 0, false: 0.95])] {
      for isAlone in [true, false] {
        let who = isAlone ? "kernel alone" : "with the reaction"
        figures.append(
          figure(
            "reads still answered, half taken, \(name) entries, \(who), against an ideal LRU", .time,
            share(size, alone: isAlone), .atLeast(reaches[isAlone]!), "ratio", "hot"))
      }
    }
    return figures
  }

  private struct Unavailable: Error { var reason: String }

  private static func run(_ words: [String]) throws -> ([Report], status: Int32) {
    let tool = OwnProgram.beside("purgeablectl")
    guard FileManager.default.isExecutableFile(atPath: tool) else {
      throw Unavailable(reason: "purgeablectl is not built beside this program; swift build -c release builds it")
    }
    let command = ["stress"] + words + ["--short", "--json"]
    // A scenario that failed is told in its report.
    let child = try ChildProcess.run(tool, command, errors: .nothing)
    let reports = child.output.split(separator: "\n").compactMap { line in
      (try? JSONSerialization.jsonObject(with: Data(line.utf8))) as? Report
    }
    guard !reports.isEmpty else {
      throw ToolFailure("\(([tool] + command).joined(separator: " ")) reported nothing, status \(child.status)")
    }
    return (reports, child.status)
  }
}
