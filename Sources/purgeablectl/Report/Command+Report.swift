// SPDX-License-Identifier: MIT
// `purgeablectl report`.

import ToolSupport

extension Command {
  package static let report = Command(
    name: "report",
    summary: "Draw a run on record: memory and hits over time, as one SVG.",
    description: """
      Reads the file RUN (- for standard input), which `demo`, `replay` or `stress` has written with `--record RUN`, and prints
      a picture of it: what of the cache was in memory and what the kernel took, the group's limit and use, and the share of
      hits, over time. The picture is complete in itself, readable in light and dark, and described in words for those who have
      it read out.
      """,
    operands: ["RUN"],
    options: [Option("output", value: "FILE", "Where to write it (default: standard output).")]
  ) { arguments in
    guard let path = arguments.operands.first else { throw UsageError("a run is missing; name a file") }
    let chart = RunChart(try RunRecord(path: path))
    guard let output = arguments.text("output") else {
      print(chart.svg)
      return 0
    }
    let file = try OutputFile(output)
    if file.isSame(as: path) { throw UsageError("--output: \"\(output)\" is the run; name another file") }
    file.empty()
    try file.write(chart.svg + "\n")
    return 0
  }
}
