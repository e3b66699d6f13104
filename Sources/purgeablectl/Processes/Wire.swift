// SPDX-License-Identifier: MIT
// The protocol of the tool's processes: frames over pipes.
//
//   | tag 1 | number 8 | byte count 8 | bytes ... |      numbers in the machine's own order: both ends are the same program

import Glibc
import ToolSupport

/// The kind of a frame.
enum WireTag: UInt8 {
  // To the worker and to the dictionary.
  /// One file: its size, its path.
  case file = 1
  case endOfFiles
  /// The limit; one byte: a `PressureKind`.
  case begin
  // From them.
  /// All files are listed, the tables for them are made.
  case ready
  /// A `DemoPhase`, and its numbers.
  case progress
  /// A file's index, and its bytes from the cache.
  case entry
  /// Numbers, in the order of the type that they are the fields of.
  case result
  // To a process of `stress`.
  /// A `StressOrder`, and a `Tally`.
  case order
  // To the cache of `replay`.
  /// Some of a trace's requests.
  case requests
}

struct Frame {
  var tag: WireTag
  var number: UInt64
  var bytes: [UInt8]

  /// The bytes as 64-bit numbers; a rest of fewer than 8 is dropped.
  var words: [UInt64] { elements(of: UInt64.self) }

  /// The bytes as whole elements, which have no padding.
  func elements<Element: BitwiseCopyable>(of type: Element.Type) -> [Element] {
    let stride = MemoryLayout<Element>.stride
    // In bounds: whole elements only.
    return unsafe bytes.withUnsafeBytes { buffer in
      (0..<buffer.count / stride).map { unsafe buffer.loadUnaligned(fromByteOffset: $0 * stride, as: type) }
    }
  }

  static func bytes(of words: [UInt64]) -> [UInt8] { bytes(ofElements: words) }

  static func bytes(ofElements elements: [some BitwiseCopyable]) -> [UInt8] {
    unsafe elements.withUnsafeBytes { unsafe [UInt8]($0) }
  }
}

/// The other end is gone, or sends malformed frames.
struct WireFailure: Error {}

/// The writing end. Does not own the descriptor.
struct WireWriter {
  let descriptor: Int32

  func write(_ tag: WireTag, _ number: UInt64 = 0, _ bytes: [UInt8] = []) throws(WireFailure) {
    var head = [tag.rawValue]
    head += Frame.bytes(of: [number, UInt64(bytes.count)])
    guard DiskFile.write(head, to: descriptor), DiskFile.write(bytes, to: descriptor) else { throw WireFailure() }
  }
}

/// The reading end. Does not own the descriptor.
struct WireReader {
  let descriptor: Int32
  /// The most bytes in one frame: a larger count is an error.
  static let byteLimit = 1 << 41

  /// The next frame; nil when the other end has closed the pipe between two frames.
  func next() throws(WireFailure) -> Frame? {
    let head = readUp(to: 17)
    if head.isEmpty { return nil }
    let words = Frame(tag: .result, number: 0, bytes: Array(head.dropFirst())).words
    guard head.count == 17, let tag = WireTag(rawValue: head[0]), words[1] <= Self.byteLimit else { throw WireFailure() }
    let bytes = words[1] == 0 ? [] : readUp(to: Int(words[1]))
    guard bytes.count == Int(words[1]) else { throw WireFailure() }
    return Frame(tag: tag, number: words[0], bytes: bytes)
  }

  /// Reads `count` bytes, fewer only at the end of the pipe.
  private func readUp(to count: Int) -> [UInt8] {
    // As much is initialised as was read.
    unsafe [UInt8](unsafeUninitializedCapacity: count) { buffer, got in
      while got < count {
        let now = unsafe Glibc.read(descriptor, buffer.baseAddress! + got, count - got)
        if now < 0 && errno == EINTR { continue }
        if now <= 0 { break }
        got += now
      }
    }
  }
}
