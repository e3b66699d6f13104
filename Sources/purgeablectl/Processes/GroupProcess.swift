// SPDX-License-Identifier: MIT
// What child processes in a memory group have in common: where they live, when they end.

import Glibc
import Purgeable

enum GroupProcess {
  static let groupOptions = [
    Command.Option("group", value: "DIRECTORY", "The memory group to live in."),
    Command.Option("version", value: "N", "Its version, 1 or 2."),
  ]

  /// The words that tell a child its group.
  static func words(_ group: GroupFiles?) -> [String] {
    group.map { ["--group=\($0.directory)", "--version=\($0.version.rawValue)"] } ?? []
  }

  /// Leaves no core file, and moves into the group. That the parent is gone shows in the pipes.
  /// `seconds`: should it hang, it is ended by then (SIGALRM), and whoever started it says so.
  static func settle(_ arguments: Arguments, seconds: UInt32) throws -> GroupFiles? {
    alarm(seconds)
    var none = rlimit()
    _ = unsafe setrlimit(__rlimit_resource_t(RLIMIT_CORE.rawValue), &none)
    guard let directory = arguments.text("group") else { return nil }
    guard let version = try arguments.number("version").flatMap({ MemoryGroup.Version(rawValue: Int($0)) }) else {
      throw UsageError("--version: 1 or 2")
    }
    let files = GroupFiles(version: version, directory: directory)
    let error = GroupFiles.write("0", to: files.processes)
    guard error == 0 else { throw ToolFailure("\(files.processes): \(SystemError.text(error))") }
    return files
  }
}
