// SPDX-License-Identifier: MIT
// `purgeablectl stress`: runs scenarios one after the other, and judges.

import Glibc
import Purgeable
import ToolSupport

struct Stress {
  let options: StressOptions

  /// Runs what was asked for and prints a report for each. Leaves no child and no group behind, however it ends.
  func run() throws -> Int32 {
    // Before signals are watched: to open a pipe waits for its reader.
    let recorder = try options.recordPath.map { path throws(ToolFailure) in try RunRecorder(path) }
    try Children.watchSignals()
    defer { Children.endAll() }
    let swap = SwapSpace(options.wantsSwap ? max(options.limitBytes, 64 << 20) : nil)
    defer { swap.remove() }
    var verdicts: [String] = []
    var hasFailed = false
    for round in 0..<options.repeatCount {
      for scenario in Scenarios.all where options.scenarios.contains(scenario.name) {
        let start = Clock.now
        let seed = options.seed &+ round
        recorder?.begin(
          RunHeader(
            run: "stress", format: RunHeader.format, about: "\(scenario.name), seed \(seed)", limitBytes: options.limitBytes))
        let (outcome, kind, swapped) = try run(scenario, seed: seed, swap, recorder)
        hasFailed = hasFailed || outcome.hasFailed
        let report = StressReport(
          scenario: scenario, options: options, seed: seed, pressure: kind, swap: swapped, outcome: outcome,
          nanoseconds: Clock.now - start)
        try recorder?.end(report.json)
        verdicts.append(report.verdict)
        print(options.isJSON ? report.json.text : report.table)
        try Program.writeOut()
      }
    }
    // All together once more, where they are not all on one screen.
    if verdicts.count > 1, !options.isJSON { print(verdicts.joined(separator: "\n")) }
    return hasFailed ? 1 : 0
  }

  /// Answers what came of it, what made the pressure, and what of it could go to swap.
  private func run(
    _ scenario: Scenario, seed: UInt64, _ swap: SwapSpace, _ recorder: RunRecorder?
  ) throws -> (StressOutcome, pressure: String, swap: String) {
    let stage: StressStage
    do throws(StressFailure) {
      stage = try StressStage(scenario.name, options: options, seed: seed, allowsSwap: swap.isOn, recorder: recorder)
    } catch {
      guard case .impossible(let reason) = error else { throw error }
      return (StressOutcome(skipped: reason), "none", swap.description)
    }
    let pressure = "cgroup v\(stage.group.files.version.rawValue), limit \(ByteSize(stage.limitBytes))"
    let swapped = swap.description(in: stage.group.files)
    var outcome = StressOutcome()
    do {
      outcome = try scenario.run(stage)
    } catch let failure as StressFailure {
      switch failure {
      case .interrupted:
        _ = stage.end()
        throw Interruption()
      case .impossible(let reason): outcome.skipped = reason
      case .hung(let name, let what): outcome.failures = ["\(name) hangs: \(what)"]
      case .died(let name, .killed(let signal)):
        outcome.failures = ["\(name) was ended by signal \(signal)" + (signal == SIGKILL ? stage.killNote : "")]
      case .died(let name, .exited(let status)): outcome.failures = ["\(name) failed with status \(status)"]
      }
    } catch {
      _ = stage.end()
      throw error
    }
    let kills = stage.killCount
    if kills > 0 { outcome.failures.append("the kernel killed \(kills) for want of memory") }
    outcome.facts.insert(("kills", .unsigned(kills)), at: 0)
    if !stage.end() { outcome.failures.append("could not remove \(stage.group.files.directory)") }
    return (outcome, pressure, swapped)
  }

  /// Ended by a signal.
  struct Interruption: Error {}
}

extension StressStage {
  /// What the group's memory was when somebody in it was killed.
  var killNote: String {
    let stat = SmallFile.text(group.files.file("memory.stat")) ?? ""
    let facts = ["rss", "anon", "inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"].compactMap {
      name in
      SmallFile.number(after: name, in: stat).map { "\(name) \(ByteSize($0))" }
    }
    return " (what is left in the group: \(facts.joined(separator: ", ")))"
  }
}
