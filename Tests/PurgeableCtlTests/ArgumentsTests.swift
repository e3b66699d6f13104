// SPDX-License-Identifier: MIT
// How a command line is read, and how the tool complains about one.

import Testing

@testable import purgeablectl

@Suite("arguments")
struct ArgumentsTests {
  static let command = Command(
    name: "try", summary: "Tries.", description: "Tries it.", operands: ["DIRECTORY"],
    options: [.init("json", "Print JSON."), .init("size", value: "BYTES", "How much."), .init("seed", value: "N", "Which.")]
  ) { _ in 0 }

  @Test("options, values in both forms, operands in any order")
  func accepted() throws {
    let arguments = try Arguments(["--json", "--size", "64K", "/usr", "--seed=7"], of: Self.command)
    #expect(arguments.has("json"))
    #expect(try arguments.bytes("size") == 65536)
    #expect(try arguments.number("seed") == 7)
    #expect(arguments.operands == ["/usr"])
    let none = try Arguments([], of: Self.command)
    #expect(!none.has("json"))
    #expect(try none.bytes("size") == nil)
    #expect(none.operands.isEmpty)
    #expect(try Arguments(["--", "--json"], of: Self.command).operands == ["--json"])
    #expect(try Arguments(["-"], of: Self.command).operands == ["-"])
    #expect(try Arguments(["--seed", "-1"], of: Self.command).text("seed") == "-1")
  }

  @Test(
    "what is refused, and what is named in the message",
    arguments: [
      (["--jsom"], "unknown option \"--jsom\""), (["-j"], "unknown option \"-j\""), (["--json=yes"], "--json takes no value"),
      (["--json", "--json"], "--json is given twice"), (["--seed=1", "--seed", "2"], "--seed is given twice"),
      (["--size"], "--size needs a value: --size BYTES"), (["--size="], "--size needs a value"),
      (["/usr", "/etc"], "unexpected argument \"/etc\""), (["--", "a", "b"], "unexpected argument \"b\""),
    ])
  func refused(words: [String], message: String) {
    let error = #expect(throws: UsageError.self) { try Arguments(words, of: Self.command) }
    #expect(error?.message.contains(message) == true)
  }

  @Test(
    "values that are no numbers or sizes",
    arguments: ["", "x", "1.5", "-1", "1Q", "99999999999999999999", "0x10", "1..5G", ".5G"])
  func badValues(text: String) throws {
    #expect(throws: UsageError.self) { try Arguments(["--seed", text], of: Self.command).number("seed") }
    if text != "1.5" || text.isEmpty {
      #expect(throws: UsageError.self) { try Arguments(["--size", text], of: Self.command).bytes("size") }
    }
  }

  @Test(
    "sizes are read",
    arguments: [
      ("0", 0), ("4096", 4096), ("64K", 65536), ("64KiB", 65536), ("1.5m", 1_572_864), ("2G", 2_147_483_648), ("1T", 1 << 40),
      ("7B", 7),
    ] as [(String, UInt64)])
  func sizes(text: String, bytes: UInt64) {
    #expect(ByteSize(text)?.count == bytes)
  }

  @Test(
    "sizes are written",
    arguments: [
      (0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 20, "1 MiB"),
      ((1 << 20) - 1, "1 MiB"), (1 << 30, "1 GiB"), (.max, "16 EiB"),
    ] as [(UInt64, String)])
  func writtenSizes(bytes: UInt64, text: String) {
    #expect(ByteSize(bytes).description == text)
  }

  @Test("exit statuses: 0 for help, 2 for bad usage, 1 for failures, else the command's own")
  func statuses() {
    struct Broken: Error {}
    let commands = [
      Self.command,
      Command(name: "fail", summary: "", description: "") { _ in throw Broken() },
      Command(name: "seven", summary: "", description: "") { _ in 7 },
    ]
    #expect(Tool.run([], commands: commands) == 2)
    #expect(Tool.run(["--help"], commands: commands) == 0)
    #expect(Tool.run(["try", "--wrong", "--help"], commands: commands) == 0)
    #expect(Tool.run(["--wrong"], commands: commands) == 2)
    #expect(Tool.run(["nothing"], commands: commands) == 2)
    #expect(Tool.run(["try", "--wrong"], commands: commands) == 2)
    #expect(Tool.run(["try", "--json"], commands: commands) == 0)
    #expect(Tool.run(["fail"], commands: commands) == 1)
    #expect(Tool.run(["seven"], commands: commands) == 7)
  }

  @Test("help names every command and every option")
  func help() {
    let text = Tool.help(Command.all)
    for command in Command.all {
      #expect(text.contains("  \(command.name) "))
      for option in command.options { #expect(command.help.contains("--\(option.name)")) }
      #expect(command.help.contains("--help"))
      #expect(command.help.split(separator: "\n").allSatisfy { $0.count <= 130 })
    }
  }
}
