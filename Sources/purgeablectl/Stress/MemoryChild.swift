// SPDX-License-Identifier: MIT
// A process that takes memory on order: the neighbour, and the plain offered memory that the cache is compared with.

import Glibc
import ToolSupport

struct MemoryChild {
  /// Ours until `release`, which forgets it.
  @safe private struct Mapping {
    var start: UnsafeMutableRawPointer
    var length: Int
  }

  private let filePath: String?
  private var port = StressPort()
  private var mappings: [Mapping] = []
  private static let page = Int(sysconf(Int32(_SC_PAGESIZE)))
  private static let step = 4 << 20

  init(filePath: String?) {
    self.filePath = filePath
  }

  /// Runs until the input ends.
  mutating func run() throws {
    while let (order, numbers) = try port.next() {
      let bytes = Int(clamping: numbers["bytes"]) / Self.page * Self.page
      switch order {
      case .take: try port.finish(["nanoseconds": try take(bytes), "bytes": UInt64(bytes)])
      case .release:
        release()
        try port.finish([:])
      case .cycle: try port.finish(try cycle(bytes, hold: numbers["hold"], rest: numbers["rest"]))
      case .offer: try port.finish(["nanoseconds": try offer(bytes)])
      case .giveUp: try port.finish(["nanoseconds": giveUp(bytes)])
      case .readFile: try port.finish(try readFile(repeats: numbers["repeats"] != 0))
      case .stop: break
      default: throw WireFailure()
      }
    }
  }

  // MARK: Taking

  private mutating func map(_ length: Int) throws -> Mapping {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    guard length > 0, let start = unsafe mmap(nil, length, PROT_READ | PROT_WRITE, flags, -1, 0), unsafe start != MAP_FAILED
    else {
      throw ToolFailure("mmap: \(SystemError.text(errno))")
    }
    // Page by page, as the figures mean it.
    unsafe madvise(start, length, MADV_NOHUGEPAGE)
    let mapping = unsafe Mapping(start: start, length: length)
    mappings.append(mapping)
    return mapping
  }

  /// Touches every page, and answers how long that took.
  private mutating func take(_ length: Int) throws -> UInt64 {
    let mapping = try map(length)
    let start = Clock.now
    for offset in stride(from: 0, to: length, by: Self.page) {
      // In bounds: below the mapping's length.
      unsafe mapping.start.storeBytes(of: 0x5A, toByteOffset: offset, as: UInt8.self)
      if offset % Self.step == 0 { try port.beat() }
    }
    return Clock.now - start
  }

  private mutating func release() {
    for mapping in mappings { unsafe munmap(mapping.start, mapping.length) }
    mappings = []
  }

  /// Takes memory step by step, holds it, frees it, rests, until stopped.
  private mutating func cycle(_ length: Int, hold: UInt64, rest: UInt64) throws -> Tally {
    var result = Tally()
    while true {
      let start = Clock.now
      _ = try take(length)
      result["takingNanoseconds"] += Clock.now - start
      result["waves"] += 1
      result["peakBytes"] = UInt64(length)
      let isStopped = try waitForStop(hold)
      release()
      if try isStopped || waitForStop(rest) { return result }
    }
  }

  private mutating func waitForStop(_ milliseconds: UInt64) throws -> Bool {
    let end = Clock.now + milliseconds * 1_000_000
    repeat {
      if try port.next(within: Int32(min(milliseconds, 100)))?.0 == .stop { return true }
      try port.beat()
    } while Clock.now < end
    return false
  }

  // MARK: What the cache is compared with

  /// Fills memory and puts it on offer.
  private mutating func offer(_ length: Int) throws -> UInt64 {
    let mapping = try map(length)
    for offset in stride(from: 0, to: length, by: Self.step) {
      // In bounds: the last step is cut.
      unsafe memset(mapping.start + offset, 0x5A, min(Self.step, length - offset))
      try port.beat()
    }
    let start = Clock.now
    // Twice: one offer skips pages.
    for _ in 0..<2 {
      guard unsafe madvise(mapping.start, length, MADV_FREE) == 0 else {
        throw ToolFailure("MADV_FREE: \(SystemError.text(errno))")
      }
    }
    return Clock.now - start
  }

  private func giveUp(_ length: Int) -> UInt64 {
    let start = Clock.now
    if let mapping = mappings.first { unsafe madvise(mapping.start, min(length, mapping.length), MADV_DONTNEED) }
    return Clock.now - start
  }

  private mutating func readFile(repeats: Bool) throws -> Tally {
    guard let filePath else { throw UsageError("--file is missing") }
    let descriptor = unsafe open(filePath, O_RDONLY | O_CLOEXEC)
    guard descriptor >= 0 else { throw ToolFailure("\(filePath): \(SystemError.text(errno))") }
    defer { close(descriptor) }
    var buffer = [UInt8](repeating: 0, count: 1 << 20)
    var result = Tally()
    let start = Clock.now
    while true {
      let got = unsafe buffer.withUnsafeMutableBytes { unsafe read(descriptor, $0.baseAddress, $0.count) }
      if got < 0 && errno != EINTR { throw ToolFailure("\(filePath): \(SystemError.text(errno))") }
      if got == 0 {
        result["rounds"] += 1
        lseek(descriptor, 0, SEEK_SET)
      }
      result["bytes"] += UInt64(max(got, 0))
      if try (got == 0 && !repeats) || port.next(within: 0)?.0 == .stop { break }
      try port.beat()
    }
    result["nanoseconds"] = Clock.now - start
    return result
  }
}
