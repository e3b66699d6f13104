// SPDX-License-Identifier: MIT
// Growing back beside a neighbour that comes and goes: `purgeablectl demo`, run from here where it has been built beside this
// program, and where a memory group can be made.

import Foundation
import ToolSupport

enum Growing {
  static func figures(_ scale: Scale) throws -> [Figure] {
    let name = "demo: hits, against the same reads in a cache that always fills the room that the neighbour leaves"
    let unknownName = "demo: misses that say unknown"
    let tool = OwnProgram.beside("purgeablectl")
    let words = ["demo", "--json", "--in-room"] + (scale.isQuick ? ["--size", "256M"] : [])
    var reason: String?
    var (shares, unknown): ([Double], [Double]) = ([], [])
    if !FileManager.default.isExecutableFile(atPath: tool) {
      reason = "purgeablectl is not built beside this program; swift build -c release builds it"
    }
    for seed in 1...scale(5, quick: 1) where reason == nil {
      let child = try ChildProcess.run(tool, words + ["--seed", "\(seed)"], errors: .nothing)
      guard child.end == .exited(0),
        let report = try? JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any],
        let hits = report["hits"] as? Int, let misses = report["misses"] as? [String: Int]
      else { throw ToolFailure("\(tool) demo --seed \(seed) ended with status \(child.status)") }
      guard let inRoom = report["hitsInRoom"] as? Int, inRoom > 0 else {
        reason = report["pressure"] as? String ?? "no neighbour"
        break
      }
      shares.append(Double(hits) / Double(inRoom))
      unknown.append(Double(misses["unknown"] ?? 0) / Double(max(1, misses.values.reduce(0, +))))
    }
    func figure(_ name: String, _ values: [Double], _ reach: Figure.Reach) -> Figure {
      // What the kernel takes is its own choice.
      guard reason == nil else { return Figure(name, .time, nil, reach, "ratio", note: "not measured: \(reason!)") }
      return Figure(
        name, .time, Spread(values), reach, "ratio", note: "by seed: \(values.map(Figure.text).joined(separator: ", "))")
    }
    return [figure(name, shares, .atLeast(0.93)), figure(unknownName, unknown, .atMost(0.1))]
  }
}
