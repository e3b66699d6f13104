// SPDX-License-Identifier: MIT
// `purgeablectl doctor`: collects facts, judges them, prints the findings.

import Purgeable
import ToolSupport

extension Command {
  package static let doctor = Command(
    name: "doctor",
    summary: "Say what this machine and container allow, what it means, and what to change.",
    description: """
      Looks at the kernel, at containers and filters in front of it, the memory group, pressure signals and settings that
      purgeable memory depends on. Each finding says what it means and, unless it is good, what to type or change. It is good,
      limited (works, with less than it could have) or bad. Changes nothing. The exit status says only whether it could
      look: 0, whatever it found.
      """,
    options: [Option("json", "Print one JSON object: findings, kernelClass, pageSize, environment, verdict.")]
  ) { arguments in
    let facts = MachineFacts.current()
    let findings = Doctor.findings(facts)
    print(arguments.has("json") ? Doctor.json(facts, findings).text : Doctor.report(facts, findings))
    return 0
  }
}

/// The doctor's judgement of the facts. Pure functions: the same facts give the same findings.
package enum Doctor {
  package static func json(_ facts: MachineFacts, _ findings: [Finding]) -> JSON {
    [
      "findings": .array(findings.map(\.json)),
      "kernelClass": .string(facts.kernelClass),
      "pageSize": .unsigned(facts.pageSizeBytes),
      "environment": .string(facts.environment.name),
      "verdict": .string(verdict(facts, findings)),
    ]
  }

  package static func report(_ facts: MachineFacts, _ findings: [Finding], lineWidth: Int = 100) -> String {
    let nameWidth = findings.map(\.name.count).max() ?? 0
    let counts = Finding.State.allCases.map { state in "\(findings.count { $0.state == state }) \(state.rawValue)" }
    let head = "Linux \(facts.kernelRelease) on \(facts.architecture)"
    let body = findings.flatMap { $0.lines(nameWidth: nameWidth, lineWidth: lineWidth) + [""] }
    let end = Finding.wrap(verdict(facts, findings), width: lineWidth) + [counts.joined(separator: ", ")]
    return ([head, ""] + body + end).joined(separator: "\n")
  }

  /// One sentence: whether it works here, and what is in the way.
  package static func verdict(_ facts: MachineFacts, _ findings: [Finding]) -> String {
    func names(_ state: Finding.State) -> String { findings.filter { $0.state == state }.map(\.name).joined(separator: ", ") }
    let place = facts.environment.layers.isEmpty ? "here" : "here (\(facts.environment.name))"
    let (bad, limited) = (names(.bad), names(.limited))
    if !bad.isEmpty { return "Purgeable memory does not work as it should \(place): \(bad)." }
    return limited.isEmpty
      ? "Purgeable memory works \(place)." : "Purgeable memory works \(place), with less than it could have: \(limited)."
  }
}
