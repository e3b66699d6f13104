// SPDX-License-Identifier: MIT
// The texts under /proc, /sys and the memory group that the doctor's facts are read from.

import Glibc
import Purgeable

extension MachineFacts {
  /// The word in brackets, as in "always [madvise] never".
  static func chosen(_ text: String) -> String? {
    guard let open = text.firstIndex(of: "["), let close = text[open...].firstIndex(of: "]") else { return nil }
    return String(text[text.index(after: open)..<close])
  }

  /// /proc/swaps: a heading, then name, type, size and use in KiB, priority.
  static func swaps(_ text: String) -> [Swap] {
    text.split(separator: "\n").dropFirst().compactMap { line in
      let words = line.split(whereSeparator: \.isWhitespace)
      guard words.count >= 4, let size = UInt64(words[2]), let used = UInt64(words[3]) else { return nil }
      let name = String(words[0])
      let kind: Swap.Kind = name.contains("/zram") ? .zram : words[1] == "file" ? .file : .partition
      return Swap(name: name, kind: kind, sizeBytes: size << 10, usedBytes: used << 10)
    }
  }

  /// The soft limit on a line of /proc/self/limits, as in "Max open files   1024   524288   files"; `.max` for "unlimited".
  static func softLimit(_ name: String, in text: String) -> UInt64? {
    for line in text.split(separator: "\n") where line.hasPrefix(name + " ") {
      let word = line.dropFirst(name.count).split(whereSeparator: \.isWhitespace).first
      return word == "unlimited" ? .max : word.flatMap { UInt64($0) }
    }
    return nil
  }

  /// A switch in a file: "Y", "1", "N", "0".
  static func isOn(_ text: String) -> Bool { text.hasPrefix("Y") || text.hasPrefix("1") }

  /// How much the group, or one around it, may swap out: `memory.swap.max`; in version 1 what `memory.memsw.limit_in_bytes`
  /// leaves beyond the limit. nil: no bound, or no such accounts.
  static func swapLimitBytes(_ group: MemoryGroup) -> UInt64? {
    group.directories.compactMap { directory -> UInt64? in
      if group.version == .v2 { return SmallFile.number(directory + "/memory.swap.max") }
      guard
        let both = SmallFile.number(directory + "/memory.memsw.limit_in_bytes"), both < 1 << 62,
        let limit = SmallFile.number(directory + "/memory.limit_in_bytes")
      else { return nil }
      return both - min(both, limit)
    }.min()
  }

  /// Why pressure stall information is missing: switched off at boot, or not built in. Both leave no file.
  static func missingPressure(root: String, release: String) -> PressureSource {
    let words = (SmallFile.text(MemoryGroup.join(root, "proc/cmdline")) ?? "").split(whereSeparator: \.isWhitespace)
    if words.contains(where: { $0 == "psi=0" || $0 == "psi=off" || $0 == "psi=n" }) { return .off }
    guard let built = SmallFile.text(MemoryGroup.join(root, "boot/config-\(release)"), limit: 1 << 20) else { return .missing }
    let lines = built.split(separator: "\n")
    guard lines.contains("CONFIG_PSI=y") else { return .notBuilt }
    return lines.contains("CONFIG_PSI_DEFAULT_DISABLED=y") ? .off : .missing
  }

  /// Whether pressure stall information is there. Trying a trigger needs no thread: it ends with the descriptor.
  static func pressure(_ path: String, triesTrigger: Bool) -> PressureSource {
    do {
      _ = try SmallFile.read(path)
    } catch {
      return error.number == EOPNOTSUPP ? .off : .missing
    }
    guard triesTrigger else { return .readable }
    let descriptor = unsafe open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC)
    guard descriptor >= 0 else { return .readable }
    defer { close(descriptor) }
    // 150 ms of stall in 2 s: the shortest window that unprivileged processes are granted. The zero at the end belongs to it.
    let wish = Array("some 150000 2000000\0".utf8)
    let written = unsafe wish.withUnsafeBytes { unsafe write(descriptor, $0.baseAddress, $0.count) }
    return written == wish.count ? .triggers : .readable
  }

  static func firstLine(_ text: String?) -> String? {
    text?.split(separator: "\n").first.map(String.init)
  }
}
