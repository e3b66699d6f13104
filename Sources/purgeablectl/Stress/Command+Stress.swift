// SPDX-License-Identifier: MIT
// `purgeablectl stress`, and the commands by which it starts its child processes.

import Glibc
import Purgeable
import ToolSupport

extension Command {
  package static let stress = Command(
    name: "stress",
    summary: "Put a cache under real memory pressure until something breaks.",
    description: """
      Runs SCENARIO, or all of them, in a memory group (cgroup) of its own with a limit. Every byte that the cache answers is
      checked, every process watched: the exit status is not 0 when a byte was wrong, somebody was killed who must not be, or
      something hung. What this machine does not allow is skipped, with the reason.

      \(Scenarios.all.map { "  \($0.name.padded(to: 10))  \($0.shows)" }.joined(separator: "\n"))
      """,
    operands: ["[SCENARIO]"],
    options: [
      Option("all", "Every scenario, one after the other."),
      Option("repeat", value: "N", "So many times, each with the next seed (default 1)."),
      Option("seed", value: "N", "What decides keys, contents and order (default 1)."),
      Option("limit", value: "BYTES", "The limit of the memory group (default 512M; with --short \(shortLimit))."),
      Option("seconds", value: "N", "How long a scenario's main part takes (default: its own length, minutes at most)."),
      Option("short", "Some seconds for each scenario."),
      Option("swap", "Let the group swap, to the machine's swap or to a temporary file, where that is allowed."),
      Option("record", value: "FILE", "Write the run of one scenario, for `report FILE` to draw."),
      Option("json", "Print one JSON object a line, for each scenario that was run."),
    ]
  ) { arguments in
    do {
      return try Stress(options: try StressOptions(arguments)).run()
    } catch let interruption as Stress.Interruption {
      return try Children.exitStatus(of: "stress", after: interruption)
    }
  }

  private static let shortLimit = "\(StressOptions.shortLimitBytes >> 20)M"

  static let stressChildren: [Command] = [
    Command(
      name: StressRole.cache.command, summary: "The process with the cache.", description: "Started by stress.",
      options: GroupProcess.groupOptions + StressContent.options + [
        Option("spoil", value: "WHAT", "What to spoil, for a test."),
        Option("share", value: "PERCENT", "The cache's share of the memory."),
        Option("core", value: "PERCENT", "What of it stays off offer."),
        Option("samples", "Tell the cache's bytes, hits and misses ten times a second."),
      ]
    ) { arguments in
      _ = try GroupProcess.settle(arguments, seconds: StressTimes.childSeconds)
      var options = CacheOptions(name: "stress")
      func share(_ name: String) throws -> Double? {
        try arguments.number(name).flatMap { $0 == 0 ? nil : Double($0) / 100 }
      }
      options.memoryShare = try share("share")
      options.core = try share("core").map { .share($0) }
      var child = try CacheChild(
        try StressContent(arguments), options, spoils: arguments.text("spoil") == "hits", tellsSamples: arguments.has("samples"))
      try child.run()
      // At once: the kernel takes a cache apart faster than the cache does, and all was said through the pipe.
      return withExtendedLifetime(child) { _exit(0) }
    },
    Command(
      name: StressRole.memory.command, summary: "A process that takes memory.", description: "Started by stress.",
      options: GroupProcess.groupOptions + [Option("file", value: "PATH", "What to read.")]
    ) { arguments in
      _ = try GroupProcess.settle(arguments, seconds: StressTimes.childSeconds)
      var child = MemoryChild(filePath: arguments.text("file"))
      try child.run()
      return 0
    },
    Command(
      name: StressRole.rival.command, summary: "What the cache is compared with.", description: "Started by stress.",
      options: GroupProcess.groupOptions + StressContent.options + [
        Option("kind", value: "NAME", "Which one."), Option("count", value: "N", "Its limit, where it has one."),
      ]
    ) { arguments in
      _ = try GroupProcess.settle(arguments, seconds: StressTimes.childSeconds)
      guard let kind = arguments.text("kind").flatMap(RivalKind.init) else { throw UsageError("--kind is missing") }
      try RivalChild.run(kind, try StressContent(arguments), countLimit: Int(try arguments.number("count") ?? 0))
      // At once, as the cache.
      _exit(0)
    },
  ]
}

enum StressTimes {
  /// For one child process: a day and more. A process that hangs is found long before; this limit ends forgotten ones.
  static let childSeconds: UInt32 = 100_000
}
