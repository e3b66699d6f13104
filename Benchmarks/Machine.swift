// SPDX-License-Identifier: MIT
// What the figures were measured on.

import CPurgeable
import Glibc
import Purgeable
import ToolSupport

struct Machine {
  let facts: [(name: String, value: JSON)]

  static func current() -> Machine {
    func text(_ path: String) -> String? { SmallFile.text(path).map { $0.split(separator: "\n").first.map(String.init) ?? "" } }
    let processor = SmallFile.text("/proc/cpuinfo").flatMap { text in
      text.split(separator: "\n").first { $0.hasPrefix("model name") || $0.hasPrefix("CPU part") }
    }?.split(separator: ":").last.map { $0.drop { $0 == " " } }
    let memory = SmallFile.text("/proc/meminfo") ?? ""
    func bytes(_ key: String) -> JSON { SmallFile.number(after: key, in: memory).map { .unsigned($0) } ?? .null }
    let hugePages = text("/sys/kernel/mm/transparent_hugepage/enabled")?.split(separator: "[").last?.split(separator: "]").first
    let kernelClass = (try? KernelSupport.probe()).map { "\($0.behavior)" }
    return Machine(facts: [
      ("kernel", .string(text("/proc/sys/kernel/osrelease") ?? "unknown")),
      ("processor", .string(processor.map(String.init) ?? "unknown")),
      ("processors", .integer(Int64(sysconf(Int32(_SC_NPROCESSORS_ONLN))))),
      ("memoryBytes", bytes("MemTotal")), ("swapBytes", bytes("SwapTotal")),
      ("pageBytes", .unsigned(UInt64(purgeable_page_size_bytes()))),
      ("hugePages", .string(hugePages.map(String.init) ?? "none")), ("kernelClass", .string(kernelClass ?? "unknown")),
    ])
  }

  var json: JSON { .object(facts) }

  var text: String {
    facts.map { name, value in
      if case .string(let text) = value { return "\(name) \(text)" }
      return "\(name) \(value.text)"
    }.joined(separator: ", ")
  }
}

/// What this process takes.
enum OwnMemory {
  /// Counted page by page: the counters in `status` lag behind by some hundred kilobytes.
  private static func rollup(_ key: String) -> Int? {
    SmallFile.text("/proc/self/smaps_rollup").flatMap { SmallFile.number(after: key, in: $0) }.map { Int($0) }
  }

  static func residentBytes() throws -> Int {
    if let bytes = rollup("Rss") { return bytes }
    guard let text = SmallFile.text("/proc/self/status"), let bytes = SmallFile.number(after: "VmRSS", in: text) else {
      throw ToolFailure("neither /proc/self/smaps_rollup nor /proc/self/status tells what is resident")
    }
    return Int(bytes)
  }

  /// On offer and not taken back, as the kernel counts it; nil before Linux 4.14.
  static func lazyFreeBytes() -> Int? { rollup("LazyFree") }
}
