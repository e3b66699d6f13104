// SPDX-License-Identifier: MIT
// What it costs here to write a page out and to read one in again: told by the caller, or measured on a disk.

import Glibc
import Purgeable
import ToolSupport

/// In nanoseconds a page of 4 KiB.
struct PagingCosts: Equatable, Sendable {
  /// To read one page, at a place that nobody expects.
  var pageIn: Double
  /// To read the pages behind it.
  var nextPageIn: Double
  /// To write one of many that are written together, as reclaim writes them.
  var pageOut: Double
  /// Where that was measured; nil where the caller told all of it.
  var directory: String?

  static let pageBytes = 4096
  private static let fileBytes = 32 << 20
  private static let runBytes = 1 << 20
  private static let readCount = 200
  /// No disk reads a page within so many nanoseconds.
  private static let leastPageIn = 3000.0
  /// O_DIRECT, which Swift does not see.
  #if arch(arm64)
    private static let pastPageCache: Int32 = 0o200000
  #else
    private static let pastPageCache: Int32 = 0o40000
  #endif

  static func pages(_ byteCount: UInt64) -> Double { Double(max(1, (byteCount + 4095) / 4096)) }

  /// Measures in a directory with a file that has no name: random reads and long runs past the page cache. Throws where the file
  /// system has no such reads, as one in memory.
  static func measured(in directory: String) throws -> PagingCosts {
    let file = try UnnamedFile(in: directory)
    let descriptor = unsafe open(file.path, O_RDWR | O_CLOEXEC | pastPageCache)
    guard descriptor >= 0 else { throw noDisk(directory) }
    defer { close(descriptor) }
    let memory = UnsafeMutableRawBufferPointer.allocate(byteCount: runBytes, alignment: pageBytes)
    defer { unsafe memory.deallocate() }
    var random = SplitMix64(seed: Clock.now)
    // Not zeros, which some disks do not store.
    for at in stride(from: 0, to: runBytes, by: 8) {
      unsafe memory.storeBytes(of: random.next(), toByteOffset: at, as: UInt64.self)
    }
    func failure(_ what: String) -> ToolFailure { ToolFailure("\(what) in \(directory): \(SystemError.text(errno))") }
    var writes: [Double] = []
    for start in stride(from: 0, to: fileBytes, by: runBytes) {
      let begin = Clock.now
      // As many bytes as the buffer has.
      guard unsafe pwrite(descriptor, memory.baseAddress, runBytes, off_t(start)) == runBytes else { throw failure("a write") }
      writes.append(Double(Clock.now - begin))
    }
    guard fdatasync(descriptor) == 0 else { throw failure("a write") }
    var (reads, runs): ([Double], [Double]) = ([], [])
    for _ in 0..<readCount {
      let page = random.index(below: fileBytes / pageBytes)
      let begin = Clock.now
      guard unsafe pread(descriptor, memory.baseAddress, pageBytes, off_t(page * pageBytes)) == pageBytes else {
        throw failure("a read")
      }
      reads.append(Double(Clock.now - begin))
    }
    guard Spread(reads).median >= leastPageIn else { throw noDisk(directory) }
    for start in stride(from: 0, to: fileBytes, by: runBytes) {
      let begin = Clock.now
      guard unsafe pread(descriptor, memory.baseAddress, runBytes, off_t(start)) == runBytes else { throw failure("a read") }
      runs.append(Double(Clock.now - begin))
    }
    let pages = Double(runBytes / pageBytes)
    return PagingCosts(
      pageIn: Spread(reads).median, nextPageIn: Spread(runs).median / pages, pageOut: Spread(writes).median / pages,
      directory: directory)
  }

  private static func noDisk(_ directory: String) -> UsageError {
    UsageError("files in \(directory) are not on a disk; name another with --directory, or say --page-in and --page-out")
  }
}
