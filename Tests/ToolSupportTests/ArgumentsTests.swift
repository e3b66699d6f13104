// SPDX-License-Identifier: MIT
// How the words of a command line are read, and sizes.

import Testing
import ToolSupport

@Suite("arguments")
struct ArgumentsTests {
  static let options: [Arguments.Option] = [
    .init("json", "Print JSON."), .init("size", value: "BYTES", "How much."), .init("seed", value: "N", "Which."),
  ]

  @Test("options, values in both forms, operands in any order")
  func accepted() throws {
    let arguments = try Arguments(["--json", "--size", "64K", "/usr", "--seed=7"], options: Self.options, operandCount: 1)
    #expect(arguments.has("json"))
    #expect(try arguments.bytes("size") == 65536)
    #expect(try arguments.number("seed") == 7)
    #expect(arguments.operands == ["/usr"])
    let none = try Arguments([], options: Self.options, operandCount: 1)
    #expect(!none.has("json"))
    #expect(try none.bytes("size") == nil)
    #expect(none.operands.isEmpty)
    #expect(try Arguments(["--", "--json"], options: Self.options, operandCount: 1).operands == ["--json"])
    #expect(try Arguments(["-"], options: Self.options, operandCount: 1).operands == ["-"])
    #expect(try Arguments(["--seed", "-1"], options: Self.options, operandCount: 1).text("seed") == "-1")
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
    let error = #expect(throws: UsageError.self) { try Arguments(words, options: Self.options, operandCount: 1) }
    #expect(error?.message.contains(message) == true)
  }

  @Test(
    "values that are no numbers or sizes",
    arguments: ["", "x", "1.5", "-1", "1Q", "99999999999999999999", "0x10", "1..5G", ".5G"])
  func badValues(text: String) throws {
    #expect(throws: UsageError.self) { try Arguments(["--seed", text], options: Self.options, operandCount: 1).number("seed") }
    if text != "1.5" || text.isEmpty {
      #expect(throws: UsageError.self) { try Arguments(["--size", text], options: Self.options, operandCount: 1).bytes("size") }
    }
  }

  @Test(
    "sizes are read",
    arguments: [
      ("0", 0), ("4096", 4096), ("64K", 65536), ("64KiB", 65536), ("1.5m", 1_572_864), ("2G", 2_147_483_648), ("1T", 1 << 40),
      ("7B", 7), ("10kB", 10_000), ("1.5MB", 1_500_000), ("2GB", 2_000_000_000), ("1TB", 1_000_000_000_000),
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

  @Test("help has a line for each option, the meanings in one column")
  func help() {
    #expect(
      Arguments.Option.help(Self.options) == """
          --json        Print JSON.
          --size BYTES  How much.
          --seed N      Which.
        """)
    #expect(Arguments.Option.help([]) == "")
  }
}
