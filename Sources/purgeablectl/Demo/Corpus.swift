// SPDX-License-Identifier: MIT
// Which files the demonstration works with: found in a fixed order, chosen by the seed where there are more than it wants.

import Glibc
import ToolSupport

/// One chosen file, as it was when it was chosen.
package struct CorpusFile: Equatable, Sendable {
  package var path: String
  package var status: FileStatus
}

package struct Corpus: Equatable, Sendable {
  /// In the order of the walk.
  package var files: [CorpusFile] = []
  /// Whether these are all that was found.
  package var isAll = false

  package var sizeBytes: UInt64 { Self.sizeBytes(files) }

  /// Finds the files below a directory and chooses up to `sizeBytes` of them.
  ///
  /// Regular files that are not empty, on the directory's own file system; links are not followed, what cannot be read is left
  /// out. `goesOn` is asked now and then; the walk ends when it says no.
  package static func choose(
    in directory: String, sizeBytes: UInt64, seed: UInt64, goesOn: () -> Bool = { true }
  ) -> Corpus {
    choose(from: walk(directory, goesOn: goesOn), sizeBytes: sizeBytes, seed: seed) {
      // Asked as the process that will open it.
      unsafe faccessat(AT_FDCWD, $0.path, R_OK, AT_EACCESS) == 0
    }
  }

  static func choose(
    from found: [CorpusFile], sizeBytes: UInt64, seed: UInt64, isReadable: (CorpusFile) -> Bool
  ) -> Corpus {
    if Self.sizeBytes(found) <= sizeBytes {
      let files = found.filter(isReadable)
      return Corpus(files: files, isAll: files.count == found.count)
    }
    // A few giants would make the figures theirs: where there is a choice, no file is more than a 32nd of it.
    let most = max(sizeBytes / 32, 64 << 10)
    var random = SplitMix64(seed: seed)
    var room = sizeBytes
    var chosen: [Int] = []
    for index in random.shuffled(found.count) where room > sizeBytes / 1024 {
      let size = found[index].status.sizeBytes
      guard size <= min(room, most), isReadable(found[index]) else { continue }
      room -= size
      chosen.append(index)
    }
    return Corpus(files: chosen.sorted().map { found[$0] })
  }

  /// Sparse files may say any size: the sum may be too large for a number.
  private static func sizeBytes(_ files: [CorpusFile]) -> UInt64 {
    files.reduce(0) { sum, file in
      let (sum, isTooMuch) = sum.addingReportingOverflow(file.status.sizeBytes)
      return isTooMuch ? .max : sum
    }
  }

  /// Depth first, names in the order of their bytes.
  static func walk(_ directory: String, goesOn: () -> Bool) -> [CorpusFile] {
    guard let top = DiskFile.status(directory, followsLinks: true), top.isDirectory else { return [] }
    var found: [CorpusFile] = []
    var waiting = [directory]
    while let current = waiting.popLast(), goesOn() {
      guard let names = DiskFile.names(in: current) else { continue }
      var inner: [String] = []
      for (name, kind) in names {
        // Most links are told by the directory itself.
        if kind == UInt8(DT_LNK) { continue }
        let path = current.hasSuffix("/") ? current + name : current + "/" + name
        guard let status = DiskFile.status(path), status.device == top.device else { continue }
        if status.isDirectory {
          inner.append(path)
        } else if status.isRegular, status.sizeBytes > 0 {
          found.append(CorpusFile(path: path, status: status))
        }
      }
      waiting += inner.reversed()
    }
    return found
  }
}
