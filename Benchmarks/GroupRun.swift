// SPDX-License-Identifier: MIT
// Numbers of a process in a memory group of its own.

import Glibc
import Purgeable
import ToolSupport

enum GroupRun {
  /// Runs `body` in a process of its own, in a group that may have so many bytes, and prints what it found; nothing where no
  /// group can be made.
  static func run(limit: Int, _ body: () throws -> Numbers) throws -> Numbers {
    guard let group = try? PressureGroup(inside: MemoryGroup.current(), for: "figures") else { return [:] }
    defer { group.remove() }
    guard group.files.setLimit(UInt64(limit)) == 0 else { return [:] }
    let child = fork()
    if child == 0 {
      guard group.files.enter() == 0, let numbers = try? body() else { _exit(1) }
      for (name, value) in numbers { print(name, value) }
      fflush(nil)
      _exit(0)
    }
    guard case .exited(0) = ChildEnd.of(child) else { throw ToolFailure("the process in the group failed") }
    return [:]
  }

  /// For so many entries of a kibibyte: one and a half times what the cache takes, and room for the program itself.
  static func limit(entries count: Int) -> Int { count * 1800 + 16 << 20 }
}
