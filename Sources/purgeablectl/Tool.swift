// SPDX-License-Identifier: MIT
// The command-line tool: finds the command, gives it its arguments, and turns errors into messages and exit statuses.
//
//   0  done            1  the command failed            2  called wrongly; the message names what was wrong

import ToolSupport

@main
package enum Tool {
  package static let name = "purgeablectl"

  static func main() { Program.run(name) { run(Array(CommandLine.arguments.dropFirst())) } }

  /// Runs one command line, without the tool's own name, and answers the exit status. `inner`: commands that no help lists.
  package static func run(_ words: [String], commands: [Command] = Command.all, inner: [Command] = Command.inner) -> Int32 {
    do {
      guard let first = words.first else { throw UsageError("a command is missing") }
      if first == "--help" || first == "-h" || words == ["help"] {
        print(help(commands))
        return 0
      }
      if first == "help" { return run([words[1], "--help"], commands: commands, inner: inner) }
      guard let command = (commands + inner).first(where: { $0.name == first }) else {
        throw UsageError("unknown \(first.hasPrefix("-") ? "option" : "command") \"\(first)\"")
      }
      return try run(command, Array(words.dropFirst()))
    } catch let error as UsageError {
      complain("\(name): \(error.message)")
      complain("Try \"\(name) --help\".")
      return 2
    } catch {
      complain("\(name): \(error)")
      return 1
    }
  }

  private static func run(_ command: Command, _ words: [String]) throws -> Int32 {
    do {
      // Help goes before everything else, also where the rest of the line is wrong.
      if words.prefix(while: { $0 != "--" }).contains(where: { $0 == "--help" || $0 == "-h" }) {
        print(command.help)
        return 0
      }
      return try command.run(Arguments(words, options: command.options, operandCount: command.operands.count))
    } catch let error as UsageError {
      complain("\(name) \(command.name): \(error.message)")
      complain("Try \"\(name) \(command.name) --help\".")
      return 2
    } catch {
      complain("\(name) \(command.name): \(error)")
      return 1
    }
  }

  /// What `--help` prints.
  package static func help(_ commands: [Command]) -> String {
    let width = commands.map(\.name.count).max() ?? 0
    let rows = commands.map { "  \($0.name.padded(to: width))  \($0.summary)" }
    return """
      Purgeable memory for Linux: a look at what it does, and at what this machine allows.

      usage: \(name) COMMAND [OPTIONS]

      \(rows.joined(separator: "\n"))

      "\(name) help COMMAND" tells more about a command.
      """
  }
}
