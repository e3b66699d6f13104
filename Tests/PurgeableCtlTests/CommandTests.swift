// SPDX-License-Identifier: MIT
// Commands: their exit statuses, and their help.

import Testing

@testable import purgeablectl

@Suite("commands")
struct CommandTests {
  static let command = Command(
    name: "try", summary: "Tries.", description: "Tries it.", operands: ["DIRECTORY"], options: [.init("json", "Print JSON.")]
  ) { _ in 0 }

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
    #expect(Tool.run(["help"], commands: commands) == 0)
    #expect(Tool.run(["help", "fail"], commands: commands) == 0)
    #expect(Tool.run(["help", "nothing"], commands: commands) == 2)
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

  @Test("the database behind a cache: what is missing is named, and so is what a build without SQLite needs")
  func store() {
    #expect(Tool.run(["store"]) == 2)
    #expect(Tool.run(["store", "/nothing", "--trim", "much"]) == 2)
    #expect(Tool.run(["store", "/nothing", "--list", "-1"]) == 2)
    #expect(Tool.run(["store", "/nothing"]) == 1)
  }
}
