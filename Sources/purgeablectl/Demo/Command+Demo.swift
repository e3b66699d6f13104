// SPDX-License-Identifier: MIT
// `purgeablectl demo`, and the commands by which it starts its child processes.

import Glibc
import Purgeable
import ToolSupport

extension Command {
  package static let demo = Command(
    name: "demo",
    summary: "Cache real files under real memory pressure, and check every byte.",
    description: """
      Reads files of DIRECTORY (default /usr) into a cache by path, then reads them in a skewed, seeded order while memory is
      made short: in a memory group (cgroup) of its own, with a neighbour in it that fills and frees memory, where that is
      allowed; else the kernel is asked to page out what is on offer. Every hit is checked against a digest that was taken
      when the file was read; a miss reads the file again. At the end a process outside of the group compares what is left
      with the files, byte for byte, and the same is tried with a plain dictionary. Under two minutes.

      Only reads: regular files that are not empty, on the directory's own file system. Where there are more than --size
      bytes of them, the seed chooses. The exit status is not 0 when a single byte was wrong.
      """,
    operands: ["[DIRECTORY]"],
    options: [
      Option("seed", value: "N", "Which files and which order; the same number, the same choice (default 1)."),
      Option("size", value: "BYTES", "How much to read at most, as in 64M or 1.5G (default 1G)."),
      Option("limit", value: "BYTES", "The limit of the memory group (default half of what is read)."),
      Option("json", "Print one JSON object."),
      Option("record", value: "FILE", "Write the run, ten samples a second, for `report FILE` to draw."),
      Option(
        "in-room", "Then do the same reads, without pressure, in a cache that always fills the room that the neighbour left."),
    ]
  ) { arguments in
    var demo = Demo(try DemoOptions(arguments))
    return try demo.run()
  }

  /// Commands that `demo` gives to itself: they talk over pipes, and are no use by hand.
  static let demoChildren: [Command] = [
    Command(
      name: DemoCommands.worker, summary: "The demonstration's process with the cache.", description: "Started by demo.",
      options: GroupProcess.groupOptions + [
        Option("seed", value: "N", "The order of reads."), Option("spoil", value: "WHAT", "What to spoil, for a test."),
        Option("log", "Tell when which file was read."),
      ]
    ) { arguments in
      _ = try GroupProcess.settle(arguments, seconds: DemoTimes.childSeconds)
      let spoiling = arguments.text("spoil").flatMap(Spoiling.init)
      var worker = try DemoWorker(seed: try arguments.number("seed") ?? 1, spoiling: spoiling, logs: arguments.has("log"))
      try worker.run()
      // At once: the kernel takes a cache apart faster than the cache does, and all was said through the pipe.
      return withExtendedLifetime(worker) { _exit(0) }
    },
    Command(
      name: DemoCommands.neighbour, summary: "The demonstration's hungry neighbour.", description: "Started by demo.",
      options: GroupProcess.groupOptions + [
        Option("limit", value: "BYTES", "The limit of the group."), Option("log", "Tell when it held how much."),
      ]
    ) { arguments in
      guard let files = try GroupProcess.settle(arguments, seconds: DemoTimes.childSeconds) else {
        throw UsageError("--group is missing")
      }
      var neighbour = Neighbour(files: files, limitBytes: try arguments.bytes("limit") ?? 0, logs: arguments.has("log"))
      neighbour.run()
      let output = WireWriter(descriptor: STDOUT_FILENO)
      try output.write(.result, 0, Frame.bytes(of: neighbour.result.words))
      if let log = neighbour.log { try output.write(.requests, 0, Frame.bytes(of: log)) }
      return 0
    },
    Command(
      name: DemoCommands.dictionary, summary: "The demonstration's plain dictionary.", description: "Started by demo.",
      options: GroupProcess.groupOptions + [
        Option("seed", value: "N", "The order of reads."), Option("reads", value: "N", "How many."),
        Option("address-space", value: "BYTES", "A bound where there is no group."),
      ]
    ) { arguments in
      _ = try GroupProcess.settle(arguments, seconds: DemoTimes.childSeconds)
      if let bytes = try arguments.bytes("address-space") { DictionaryRival.boundAddressSpace(bytes) }
      var rival = DictionaryRival(seed: try arguments.number("seed") ?? 1, readCount: try arguments.number("reads") ?? 0)
      try rival.run()
      return 0
    },
  ]
}

/// The names of the inner commands.
enum DemoCommands {
  static let worker = "demo-worker"
  static let neighbour = "demo-neighbour"
  static let dictionary = "demo-dictionary"
}
