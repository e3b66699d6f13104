// SPDX-License-Identifier: MIT
// The kernel's figures of another process.

import Glibc
import Purgeable
import ToolSupport

enum ProcessFacts {
  /// The resident memory of the process without files. Memory on offer counts until it is taken.
  static func anonymousBytes(_ process: pid_t) -> UInt64 {
    let words = (SmallFile.text("/proc/\(process)/statm") ?? "").split(separator: " ").compactMap { UInt64($0) }
    guard words.count > 2 else { return 0 }
    return (words[1] - min(words[1], words[2])) * UInt64(sysconf(Int32(_SC_PAGESIZE)))
  }

  /// The run time of all its threads, in clock ticks of the kernel; and its state, "T" for stopped.
  static func run(_ process: pid_t) -> (ticks: UInt64, state: String)? {
    // The name, in parentheses, may hold any character: only the text after it is read.
    guard let text = SmallFile.text("/proc/\(process)/stat"), let end = text.lastIndex(of: ")") else { return nil }
    let words = text[text.index(after: end)...].split(separator: " ")
    guard words.count > 12, let user = UInt64(words[11]), let system = UInt64(words[12]) else { return nil }
    return (user + system, String(words[0]))
  }

  /// Where its threads wait in the kernel, for a report about one that hangs.
  static func waiting(_ process: pid_t) -> String {
    let threads = DiskFile.names(in: "/proc/\(process)/task") ?? []
    let places = threads.prefix(8).map { name, _ in
      let place = SmallFile.text("/proc/\(process)/task/\(name)/wchan") ?? "?"
      return place.isEmpty || place == "0" ? "running" : place
    }
    return "threads: " + places.joined(separator: ", ")
  }
}
