// SPDX-License-Identifier: MIT
// The command line: which figures, and in what form.
//
//   0  all counts hold          1  a count does not hold, or something could not be measured          2  called wrongly

import Foundation
import Purgeable

/// How much work: full figures, or smaller ones that take less than a minute.
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
    Measurement(name: "regions", figures: Regions.figures), Measurement(name: "density", figures: Density.figures),
    Measurement(name: "memory", figures: Memory.figures), Measurement(name: "upkeep", figures: Upkeep.figures),
    Measurement(name: "pressure", figures: Pressure.figures), Measurement(name: "survival", figures: Survival.figures),
  ]

  static let usage = """
    usage: purgeable-bench figures [--json] [--quick] [--only NAME]

      --json       One JSON object on standard output, nothing else.
      --quick      Smaller sizes, less than a minute; ratios are noisier.
      --only NAME  One group: \(measurements.map(\.name).joined(separator: ", ")).

    Exit status 1 when a count does not hold. Times are reported and never decide it.
    """

  static func run(_ words: [String]) -> Int32 {
    if words.first == "child" {
      do {
        try ChildRun.perform(Array(words.dropFirst()))
        return 0
      } catch {
        say("\(error)")
        return 1
      }
    }
    if words.contains("--help") || words.contains("-h") {
      print(usage)
      return 0
    }
    guard words.first == "figures", let options = Options(Array(words.dropFirst())) else {
      say(usage)
      return 2
    }
    return figures(options)
  }

  private struct Options {
    var isQuick = false
    var isJSON = false
    var only: String?

    init?(_ words: [String]) {
      var rest = words[...]
      while let word = rest.popFirst() {
        switch word {
        case "--quick": isQuick = true
        case "--json": isJSON = true
        case "--only":
          guard let name = rest.popFirst(), measurements.contains(where: { $0.name == name }) else { return nil }
          only = name
        default: return nil
        }
      }
    }
  }

  private static func figures(_ options: Options) -> Int32 {
    let machine = Machine.current()
    let start = ContinuousClock.now
    var figures: [Figure] = []
    var hasFailed = false
    for measurement in measurements where options.only == nil || options.only == measurement.name {
      say("measuring \(measurement.name)")
      do {
        figures += try measurement.figures(Scale(isQuick: options.isQuick))
      } catch {
        say("\(measurement.name): \(error)")
        hasFailed = true
      }
    }
    if options.isJSON {
      print(JSON.object([("figures", .array(figures.map(\.json))), ("machine", machine.json)]).text)
    } else {
      print(machine.text)
      print(Figure.table(figures))
    }
    say("took \((ContinuousClock.now - start).components.seconds) s")
    let broken = figures.filter(\.isBroken)
    if !broken.isEmpty { say("counts that do not hold: " + broken.map(\.name).joined(separator: "; ")) }
    return broken.isEmpty && !hasFailed ? 0 : 1
  }

  /// A line on standard error.
  static func say(_ line: String) { FileHandle.standardError.write(Data((line + "\n").utf8)) }
}
