// SPDX-License-Identifier: MIT
// The rival: the same files in a plain dictionary, the same reads, under the same limit. It mostly shows whether it survives.

import Glibc
import Purgeable
import ToolSupport

struct DictionaryRival {
  let seed: UInt64
  let readCount: UInt64
  private let input = WireReader(descriptor: STDIN_FILENO)
  private let output = WireWriter(descriptor: STDOUT_FILENO)
  private var progress = ProgressReport(writer: WireWriter(descriptor: STDOUT_FILENO))
  private var files: [String: [UInt8]] = [:]

  init(seed: UInt64, readCount: UInt64) {
    self.seed = seed
    self.readCount = readCount
  }

  /// Bounds this process's address space to what it has now and so many bytes: the stand-in for a group's limit.
  static func boundAddressSpace(_ bytes: UInt64) {
    let pages = SmallFile.number("/proc/self/statm") ?? 0
    let size = pages * UInt64(sysconf(Int32(_SC_PAGESIZE))) + bytes
    var limit = rlimit(rlim_cur: rlim_t(size), rlim_max: rlim_t(size))
    _ = unsafe setrlimit(__rlimit_resource_t(RLIMIT_AS.rawValue), &limit)
  }

  mutating func run() throws {
    let paths = try DemoProcess.receiveFiles(input).paths
    let deadline = Clock.now + DemoTimes.dictionary
    var loadedBytes: UInt64 = 0
    var readable: [String] = []
    for path in paths where Clock.now < deadline {
      guard let bytes = DiskFile.read(path) else { continue }
      files[path] = bytes
      readable.append(path)
      let step = loadedBytes >> 18
      loadedBytes += UInt64(bytes.count)
      // Often: the last report says how far the process got.
      if loadedBytes >> 18 != step { try progress.tellNow(.dictionary, [loadedBytes, 0]) }
    }
    var reads: UInt64 = 0
    var sum: UInt64 = 0
    if !readable.isEmpty {
      for place in ReadOrder(count: readable.count, seed: seed) {
        if reads >= readCount || Clock.now >= deadline { break }
        reads += 1
        // Looked at, as the worker looks at its hits.
        if let bytes = files[readable[place]] { sum &+= Digest(bytes) == Digest([]) ? 0 : 1 }
        try progress.tell(.dictionary, [loadedBytes, reads])
      }
    }
    try output.write(.result, sum, Frame.bytes(of: [loadedBytes, reads]))
  }
}

/// The outcome of the dictionary's process.
struct DictionaryOutcome: Equatable, Sendable {
  var end: ChildEnd
  /// The bytes of its last report.
  var loadedBytes: UInt64 = 0
  var reads: UInt64 = 0
  var isDone = false
  /// Whether the kernel counted a kill in the group; nil where it does not count.
  var wasKilledForMemory: Bool?
  var hasGroup: Bool

  /// In words, for people.
  func description(limitBytes: UInt64, totalBytes: UInt64, readCount: UInt64) -> String {
    let limit = "\(ByteSize(limitBytes))"
    let progress = "\(ByteSize(loadedBytes)) of \(ByteSize(totalBytes)) in it"
    let under =
      hasGroup ? "under the same limit" : "with no group to limit it, but RLIMIT_AS at \(limit) more than it began with"
    switch end {
    case .killed(SIGKILL) where hasGroup && wasKilledForMemory != false:
      return "killed by the out-of-memory killer (signal 9), \(progress)"
    case .killed(let signal) where !hasGroup:
      return "ended by signal \(signal), as programs are when an allocation fails, \(progress), \(under)"
    case .killed(let signal): return "ended by signal \(signal), \(progress)"
    case .exited(0) where isDone && reads >= readCount && loadedBytes >= totalBytes:
      return "finished \(under), all \(Figures.count(reads)) reads"
    case .exited(0) where isDone:
      return "stopped after its time, \(progress), \(Figures.count(reads)) of \(Figures.count(readCount)) reads, \(under)"
    case .exited(let status): return "failed with status \(status), \(progress), \(under)"
    }
  }
}
