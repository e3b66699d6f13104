// SPDX-License-Identifier: MIT
// A run on record: what memory and hits were, ten times a second at most. A file of lines, each a JSON object:
//
//   {"run": "demo", "format": 1, "about": "...", "limitBytes": ...}     the first
//   {"seconds": 1.25, "phase": "...", "residentBytes": ..., ...}        a sample: `RunSample`
//   {"seconds": 3.5, "event": "..."}                                    something that the chart marks
//   {"result": {...}}                                                   what --json prints, at the end

import Foundation
import Glibc
import ToolSupport

/// The state at one moment. What is not known is left out.
struct RunSample: Codable, Equatable {
  var seconds: Double
  var phase: String?
  /// Bytes of the cache that are in memory, that it holds, discarded ones included, and that are on offer.
  var residentBytes: UInt64?
  var heldBytes: UInt64?
  var offeredBytes: UInt64?
  /// What the memory group uses, all of its processes together.
  var groupBytes: UInt64?
  /// Since the beginning of the run.
  var hits: UInt64?
  var misses: UInt64?
  var wrongBytes: UInt64?
  var event: String?
}

/// The first line.
struct RunHeader: Codable, Equatable {
  var run: String
  var format: Int
  /// In words: on what, with which seed.
  var about: String
  var limitBytes: UInt64?

  static let format = 1
}

extension Arguments {
  /// Where the run is to be written.
  func recordPath() throws(UsageError) -> String? {
    let path = text("record")
    if path == "-", has("json") { throw UsageError("--record: --json prints its object on standard output too; name a file") }
    return path
  }
}

/// Writes a record, line by line: what was written stays when the run is interrupted.
final class RunRecorder {
  private let file: OutputFile
  /// Not written yet.
  private var header: RunHeader?
  private var first: RunSample?
  /// When the run began, and when the last sample was written.
  private var start = Clock.now
  private var lastTime: UInt64 = 0

  /// For those who could give a sample at any time.
  static let interval: UInt64 = 100_000_000
  var isDue: Bool { Clock.now - lastTime >= Self.interval }

  init(_ path: String) throws(ToolFailure) { file = try OutputFile(path) }

  func isSame(as other: String) -> Bool { file.isSame(as: other) }

  /// `first`: how it begins.
  func begin(_ header: RunHeader, first: RunSample? = nil) { (start, self.header, self.first) = (Clock.now, header, first) }

  /// A sample of this moment.
  func note(_ fill: (inout RunSample) -> Void) throws(ToolFailure) {
    lastTime = Clock.now
    var sample = RunSample(seconds: Double(lastTime - start) / 1e9)
    fill(&sample)
    try write(sample)
  }

  func end(_ result: JSON) throws(ToolFailure) { try append(JSON.object([("result", result)]).text) }

  private func write(_ line: some Encodable) throws(ToolFailure) {
    let encoder = JSONEncoder()
    encoder.outputFormatting = [.sortedKeys, .withoutEscapingSlashes]
    guard let data = try? encoder.encode(line) else {
      throw ToolFailure("\"\(file.path)\": a sample cannot be written as JSON")
    }
    try append(String(decoding: data, as: UTF8.self))
  }

  private func append(_ line: String) throws(ToolFailure) {
    if let header {
      self.header = nil
      // By now all that was said about the run is known to be right, and what it reads, too: what was in the file may go.
      file.empty()
      try write(header)
      if let first { try write(first) }
    }
    try file.write(line + "\n")
  }
}

/// A record that was read.
struct RunRecord {
  let header: RunHeader
  let samples: [RunSample]
  /// A run that was interrupted has no result.
  private(set) var isFinished = false
  /// As the last sample has them, or the result, which may know more; nil where neither says.
  private(set) var wrongBytes: UInt64?

  init(path: String) throws(ToolFailure) {
    let data = path == "-" ? try? FileHandle.standardInput.readToEnd() : FileManager.default.contents(atPath: path)
    guard let text = data.flatMap({ String(data: $0, encoding: .utf8) }) else {
      var reason = unsafe access(path, R_OK) == 0 ? "it is no text" : SystemError.text(errno)
      if DiskFile.status(path, followsLinks: true)?.isDirectory == true { reason = SystemError.text(EISDIR) }
      throw ToolFailure("\"\(path)\" cannot be read: \(reason)")
    }
    try self.init(text, name: path)
  }

  init(_ text: String, name: String) throws(ToolFailure) {
    let decoder = JSONDecoder()
    var lines = text.split(omittingEmptySubsequences: false) { $0 == "\n" || $0 == "\r\n" }
    let isCut = lines.last?.isEmpty == false
    if !isCut { lines.removeLast() }
    guard let first = lines.first, let header = try? decoder.decode(RunHeader.self, from: Data(first.utf8)) else {
      throw ToolFailure(
        "\"\(name)\" is no record of a run; `\(Tool.name) demo --record FILE` writes one, and so do replay and stress")
    }
    guard header.format <= RunHeader.format else {
      throw ToolFailure(
        "\"\(name)\" was written by a newer version: format \(header.format), and this one reads \(RunHeader.format)")
    }
    var samples: [RunSample] = []
    for (number, line) in lines.enumerated().dropFirst() {
      if line.hasPrefix("{\"result\"") {
        guard let result = try? JSONSerialization.jsonObject(with: Data(line.utf8)) else {
          if isCut, number == lines.count - 1 { break }
          throw ToolFailure("\"\(name)\": line \(number + 1) is no result")
        }
        (isFinished, wrongBytes) = (true, Self.wrongBytes(in: result))
        continue
      }
      guard let sample = try? decoder.decode(RunSample.self, from: Data(line.utf8)), sample.seconds.isFinite else {
        // What an interrupted run left unfinished is no line.
        if isCut, number == lines.count - 1 { break }
        throw ToolFailure("\"\(name)\": line \(number + 1) is no sample")
      }
      guard sample.seconds >= samples.last?.seconds ?? 0 else {
        throw ToolFailure("\"\(name)\": line \(number + 1) is earlier than the line before")
      }
      samples.append(sample)
    }
    guard samples.count > 1 else { throw ToolFailure("\"\(name)\" has fewer than two samples: the run ended at once") }
    (self.header, self.samples) = (header, samples)
    if let last = samples.compactMap(\.wrongBytes).last { wrongBytes = max(last, wrongBytes ?? 0) }
  }

  /// The most that any part of a result says.
  private static func wrongBytes(in result: Any) -> UInt64? {
    if let list = result as? [Any] { return list.compactMap(wrongBytes).max() }
    guard let members = result as? [String: Any] else { return nil }
    return ([(members["wrongBytes"] as? NSNumber).map { UInt64(clamping: $0.int64Value) }] + members.values.map(wrongBytes))
      .compactMap(\.self).max()
  }

  /// So many of the samples at most, beside those that mark something.
  func samples(most: Int) -> [RunSample] {
    let step = max(1, (samples.count + most - 1) / most)
    return samples.indices.filter { i in
      i % step == 0 || i == samples.count - 1 || samples[i].event != nil || samples[i].phase != samples[i - 1].phase
    }.map { samples[$0] }
  }
}
