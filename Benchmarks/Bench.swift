// SPDX-License-Identifier: MIT
// The command line: which figures, and in what form.
//
//   0  all counts hold     1  a count does not hold, a measurement failed, or the output cannot be written     2  called wrongly
//
// What cannot be measured on a machine ("not measured", with the reason) decides nothing.

import Foundation
import Purgeable
import ToolSupport

/// How much work: full figures, or smaller ones that take about two minutes.
struct Scale {
  let isQuick: Bool
  func callAsFunction(_ full: Int, quick: Int) -> Int { isQuick ? quick : full }
}

/// A group of figures that are measured together.
struct Measurement: Sendable {
  let name: String
  let figures: @Sendable (Scale) throws -> [Figure]
}

enum Bench {
  static let measurements = [
    Measurement(name: "hits", figures: Hits.figures), Measurement(name: "stores", figures: Stores.figures),
    Measurement(name: "full", figures: Full.figures),
    Measurement(name: "lru", figures: ExactLRU.figures),
    Measurement(name: "expiry", figures: ExpiryFigures.figures),
    Measurement(name: "objects", figures: Objects.figures), Measurement(name: "shape", figures: NSCacheShape.figures),
    Measurement(name: "loading", figures: LoadingFigures.figures),
    Measurement(name: "threads", figures: Threads.figures),
    Measurement(name: "pauses", figures: Pauses.figures),
    Measurement(name: "core", figures: Core.figures),
    Measurement(name: "regions", figures: Regions.figures), Measurement(name: "density", figures: Density.figures),
    Measurement(name: "memory", figures: Memory.figures), Measurement(name: "upkeep", figures: Upkeep.figures),
    Measurement(name: "small", figures: Small.figures), Measurement(name: "pressure", figures: Pressure.figures),
    Measurement(name: "walks", figures: Walks.figures),
    Measurement(name: "files", figures: Files.figures), Measurement(name: "database", figures: DatabaseFigures.figures),
    Measurement(name: "survival", figures: Survival.figures),
    Measurement(name: "growing", figures: Growing.figures),
  ]

  private static let options = [
    Arguments.Option("json", "One JSON object on standard output, nothing else."),
    Arguments.Option("quick", "Smaller sizes, about two minutes; ratios are noisier."),
    Arguments.Option("traces", value: "DIR", "Also replays the traces in a directory: Figures+Traces.swift names them."),
    Arguments.Option(
      "only", value: "NAME", "One group: \(measurements.map(\.name).joined(separator: ", ")); traces with --traces."),
  ]

  static let usage = """
    usage: purgeable-bench figures [--json] [--quick] [--traces DIR] [--only NAME]

    \(Arguments.Option.help(options))

    Exit status 1 when a count does not hold or a measurement fails. Times are reported and never decide it.
    """

  static func run(_ words: [String]) -> Int32 {
    if words.first == "child" {
      do {
        try ChildRun.perform(Array(words.dropFirst()))
        return 0
      } catch {
        complain("\(error)")
        return 1
      }
    }
    if words.contains("--help") || words.contains("-h") {
      print(usage)
      return 0
    }
    do throws(UsageError) {
      guard words.first == "figures" else { throw UsageError(words.first.map { "\"\($0)\" is unknown" } ?? "nothing to do") }
      let arguments = try Arguments(Array(words.dropFirst()), options: options)
      let chosen = try measurements(arguments.text("only"), traces: arguments.text("traces"))
      return figures(of: chosen, isQuick: arguments.has("quick"), isJSON: arguments.has("json"))
    } catch {
      complain("\(error.message)\n\n\(usage)")
      return 2
    }
  }

  /// The group of that name, all for nil.
  private static func measurements(_ name: String?, traces directory: String?) throws(UsageError) -> [Measurement] {
    let traces = directory.map { directory in
      Measurement(name: "traces") { try Traces.figures($0, in: directory) }
    }
    let all = measurements + (traces.map { [$0] } ?? [])
    guard let name else { return all }
    if name == "traces", directory == nil { throw UsageError("--only traces: say where they are, with --traces DIR") }
    guard let one = all.first(where: { $0.name == name }) else { throw UsageError("--only: there is no group \"\(name)\"") }
    return [one]
  }

  private static func figures(of chosen: [Measurement], isQuick: Bool, isJSON: Bool) -> Int32 {
    let machine = Machine.current()
    let start = ContinuousClock.now
    var figures: [Figure] = []
    var hasFailed = false
    for measurement in chosen {
      complain("measuring \(measurement.name)")
      do {
        figures += try measurement.figures(Scale(isQuick: isQuick))
      } catch {
        complain("\(measurement.name): \(error)")
        hasFailed = true
      }
    }
    if isJSON {
      print(JSON.object([("figures", .array(figures.map(\.json))), ("machine", machine.json)]).text)
    } else {
      print(machine.text)
      print(Figure.table(figures))
    }
    complain("took \((ContinuousClock.now - start).components.seconds) s")
    let broken = figures.filter(\.isBroken)
    if !broken.isEmpty { complain("counts that do not hold: " + broken.map(\.name).joined(separator: "; ")) }
    return broken.isEmpty && !hasFailed ? 0 : 1
  }
}
