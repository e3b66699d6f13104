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
      do {
        guard group.files.enter() == 0 else { throw ToolFailure("the group cannot be entered") }
        for (name, value) in try body() { print(name, value) }
        fflush(nil)
        _exit(0)
      } catch {
        complain("\(error)")
        _exit(1)
      }
    }
    let end = ChildEnd.of(child)
    guard end == .exited(0) else { throw ToolFailure("the process in the group ended: \(end.map { "\($0)" } ?? "unknown")") }
    return [:]
  }

  /// For so many entries of a kibibyte: one and a half times what the cache takes, and room for the program itself.
  static func limit(entries count: Int) -> Int { count * 1800 + 16 << 20 }
}
