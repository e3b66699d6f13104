// SPDX-License-Identifier: MIT
// The hungry neighbour: a process in the same memory group that fills memory and frees it, in waves, until its input ends.

import Glibc
import Purgeable
import ToolSupport

/// The neighbour's work, for the report.
struct NeighbourResult: Equatable, Sendable {
  var waveCount: UInt64 = 0
  /// The most it held at a time.
  var peakBytes: UInt64 = 0

  var words: [UInt64] { [waveCount, peakBytes] }

  init() {}

  init?(_ words: [UInt64]) {
    guard words.count == 2 else { return nil }
    (waveCount, peakBytes) = (words[0], words[1])
  }
}

/// Takes as much memory as is possible without a kill. It looks at the group before each step, and leaves free a third of the
/// limit beyond memory that cannot be reclaimed.
struct Neighbour {
  let files: GroupFiles
  let limitBytes: UInt64
  private(set) var result = NeighbourResult()
  /// A time, and what it held from then on, in turn; nil where nobody wants to know.
  private(set) var log: [UInt64]?

  init(files: GroupFiles, limitBytes: UInt64, logs: Bool) {
    self.files = files
    self.limitBytes = limitBytes
    log = logs ? [] : nil
  }

  /// The room that it leaves for memory that the group cannot do without.
  static func roomBytes(limit: UInt64) -> UInt64 { limit / 3 }

  /// Waves until standard input ends.
  mutating func run() {
    while true {
      wave()
      if Self.inputEnds(within: 100) { return }
    }
  }

  /// Touches memory step by step, holds it for a moment, gives it back.
  mutating func wave() {
    let length = Int(limitBytes)
    let page = Int(sysconf(Int32(_SC_PAGESIZE)))
    let step = max(page, length / 128 / page * page)
    // Not reserved: it is a neighbour's memory, most of it never touched.
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE
    guard let start = unsafe mmap(nil, length, PROT_READ | PROT_WRITE, flags, -1, 0), unsafe start != MAP_FAILED else { return }
    defer {
      unsafe munmap(start, length)
      note(0)
    }
    var held = 0
    while held + step <= length {
      guard let used = files.workingSetBytes, used + UInt64(step) + Self.roomBytes(limit: limitBytes) <= limitBytes else { break }
      // In bounds: `held + step` is at most the mapping's length.
      unsafe memset(start + held, 0x5A, step)
      held += step
      note(held)
    }
    if held == 0 { return }
    result.waveCount += 1
    result.peakBytes = max(result.peakBytes, UInt64(held))
    usleep(50_000)
  }

  private mutating func note(_ held: Int) {
    log?.append(Clock.now)
    log?.append(UInt64(held))
  }

  private static func inputEnds(within milliseconds: Int32) -> Bool {
    var watched = pollfd(fd: STDIN_FILENO, events: Int16(POLLIN), revents: 0)
    return unsafe poll(&watched, 1, milliseconds) > 0
  }
}
