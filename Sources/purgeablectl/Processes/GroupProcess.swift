// SPDX-License-Identifier: MIT
// The common part of child processes in a memory group: entering the group, without the library's reaction, and ending.

import Glibc
import Purgeable
import ToolSupport

enum GroupProcess {
  static let groupOptions = [
    Command.Option("group", value: "DIRECTORY", "The memory group to live in."),
    Command.Option("version", value: "N", "Its version, 1 or 2."),
  ]

  /// The words that tell a child its group.
  static func words(_ group: GroupFiles?) -> [String] {
    group.map { ["--group=\($0.directory)", "--version=\($0.version.rawValue)"] } ?? []
  }

  /// Leaves no core file, and moves into the group. The end of the parent shows in the pipes. `seconds`: a process that hangs
  /// is ended by then (SIGALRM), and its starter reports it; 0 for none.
  static func settle(_ arguments: Arguments, seconds: UInt32) throws -> GroupFiles? {
    alarm(seconds)
    var none = rlimit()
    _ = unsafe setrlimit(__rlimit_resource_t(RLIMIT_CORE.rawValue), &none)
    guard let directory = arguments.text("group") else { return nil }
    guard let version = try arguments.number("version").flatMap({ MemoryGroup.Version(rawValue: Int($0)) }) else {
      throw UsageError("--version: 1 or 2")
    }
    let files = GroupFiles(version: version, directory: directory)
    let error = files.enter()
    guard error == 0 else { throw ToolFailure("\(files.processes): \(SystemError.text(error))") }
    return files
  }

  /// The library receives no more pressure: the kernel alone chooses the pages to take.
  static func leaveItToTheKernel() { PurgeableMemory.pressureSource = Silence() }

  /// The failure of a process that did not end as it should have.
  static func failure(of name: String, _ end: ChildEnd, in group: GroupFiles?) -> ToolFailure {
    let how: String =
      switch end {
      case .killed(let signal): "was ended by signal \(signal)"
      case .exited(let status): "failed with status \(status)"
      }
    let killed = group?.killCount ?? 0
    return ToolFailure("\(name) \(how)" + (killed > 0 ? "; the kernel had to kill \(killed) in its group" : ""))
  }
}

/// A source that never reports pressure.
private final class Silence: PressureSource {
  let name = "silence"
  func level(ready: [PressureDescriptor]) -> PressureLevel { .normal }
}
