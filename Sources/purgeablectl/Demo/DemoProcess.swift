// SPDX-License-Identifier: MIT
// What the demonstration's child processes have in common: what they are told, and what they tell.

import Glibc
import Purgeable
import ToolSupport

/// What makes the pressure.
enum PressureKind: UInt8, Sendable {
  /// A memory group with a limit, and a neighbour in it.
  case group = 1
  /// The worker has the kernel page out what is on offer.
  case pageOut
}

enum DemoProcess {
  /// The list of files that the parent sends first: their paths and sizes.
  static func receiveFiles(_ reader: WireReader) throws -> (paths: [String], sizes: [UInt64]) {
    var paths: [String] = []
    var sizes: [UInt64] = []
    while let frame = try reader.next() {
      switch frame.tag {
      case .file:
        paths.append(String(decoding: frame.bytes, as: UTF8.self))
        sizes.append(frame.number)
      case .endOfFiles: return (paths, sizes)
      default: throw WireFailure()
      }
    }
    throw WireFailure()
  }

  /// Sends a list of files to a child.
  static func send(_ files: [CorpusFile], to writer: WireWriter) throws(WireFailure) {
    for file in files { try writer.write(.file, file.status.sizeBytes, Array(file.path.utf8)) }
    try writer.write(.endOfFiles)
  }
}

/// Tells the parent where a child has got to, ten times a second at most.
struct ProgressReport {
  let writer: WireWriter
  private var lastTime: UInt64 = 0
  private var phase: DemoPhase?

  init(writer: WireWriter) {
    self.writer = writer
  }

  mutating func tell(_ phase: DemoPhase, _ numbers: @autoclosure () -> [UInt64]) throws(WireFailure) {
    let now = Clock.now
    guard phase != self.phase || now - lastTime >= 100_000_000 else { return }
    (self.phase, lastTime) = (phase, now)
    try tellNow(phase, numbers())
  }

  func tellNow(_ phase: DemoPhase, _ numbers: [UInt64]) throws(WireFailure) {
    try writer.write(.progress, phase.rawValue, Frame.bytes(of: numbers))
  }
}
