// SPDX-License-Identifier: MIT
// Where figures of files and of the database are measured.

import Foundation
import ToolSupport

enum FigureFolder {
  // Not /tmp, which is memory on many machines.
  private static let place = "/var/tmp"
  private static let namePrefix = "purgeable-figures."

  /// Runs `body` with a folder of this process on a disk, which is gone afterwards. Before that, those that killed runs have left
  /// go too.
  static func with<R>(_ body: (String) throws -> R) throws -> R {
    for (name, _) in DiskFile.names(in: place) ?? [] where name.hasPrefix(namePrefix) {
      guard let process = Int32(name.dropFirst(namePrefix.count)), kill(process, 0) != 0, errno == ESRCH else { continue }
      try? FileManager.default.removeItem(atPath: "\(place)/\(name)")
    }
    let folder = "\(place)/\(namePrefix)\(getpid())"
    try FileManager.default.createDirectory(atPath: folder, withIntermediateDirectories: true)
    defer { try? FileManager.default.removeItem(atPath: folder) }
    return try body(folder)
  }
}
