// SPDX-License-Identifier: MIT
// Memory groups that runs of the tool left behind.

import Glibc
import ToolSupport

@testable import Purgeable

/// The groups of one command whose processes are gone. Made before a run: those that an earlier one left, because it was killed,
/// are not held against this one.
struct GroupsOfTheDead {
  private let prefix: String
  private let before: Set<String>

  init(of command: String) {
    prefix = "purgeable-\(command)-"
    before = Self.all(prefix)
  }

  /// The groups that came since.
  var added: Set<String> { Self.all(prefix).subtracting(before) }

  private static func all(_ prefix: String) -> Set<String> {
    guard let own = OwnGroup.directory else { return [] }
    let names = (DiskFile.names(in: own) ?? []).map(\.name)
    return Set(
      names.filter { name in
        guard name.hasPrefix(prefix), let process = Int32(name.split(separator: "-")[2]) else { return false }
        return kill(process, 0) != 0
      })
  }
}

enum OwnGroup {
  /// Where the tool makes its groups, as a rule; nil where no group is visible.
  static var directory: String? { MemoryGroup.current()?.directories[0] }
}
