// SPDX-License-Identifier: MIT
// Traces of requests: files that are read in batches, with what is wrong in them told by line or record.
//
//   csv             key,bytes | 17,4096 | a/b.html,311 | ...             a request a line; the header names the columns
//   oracleGeneral   | time 4 | object 8 | size 4 | next access 8 | ...   libCacheSim's records, little-endian, without padding

import Glibc
import ToolSupport

/// One request of a trace.
struct TraceRequest: BitwiseCopyable, Equatable, Sendable {
  /// The object's number, or a hash of a key that is no number.
  var key: UInt64
  /// The object's bytes.
  var size: UInt64
  /// In seconds; 0 in a trace without times.
  var time: UInt32 = 0
  /// What making the object again takes, in any unit; 0 in a replay without costs.
  var cost = 0.0

  /// The size in a trace without sizes.
  static let usualSize: UInt64 = 64
}

enum TraceFormat: String, CaseIterable, Sendable {
  case csv, oracleGeneral
}

/// Where the costs of requests come from.
enum TraceCost: Equatable, Sendable {
  /// Each object costs the same.
  case equal
  case column(String)

  init(_ name: String) { self = name == "equal" ? .equal : .column(name) }
}

/// A trace that is read once, from its first request to its last. Keeps no more of it than one buffer.
final class TraceFile {
  let path: String
  private(set) var format = TraceFormat.csv
  private(set) var hasSizes = true
  private(set) var hasTimes = true
  private let cost: TraceCost?
  private let readsTimes: Bool
  /// Of lines.
  private var columnCount = 0
  private var keyColumn = 0
  private var sizeColumn, costColumn, timeColumn: Int?
  /// nil for a pipe.
  let fileBytes: UInt64?
  private let descriptor: Int32
  private var buffer = [UInt8](repeating: 0, count: bufferBytes)
  /// What was read and not parsed yet.
  private var rest = 0..<0
  private var isAtEnd = false
  private var readBytes: UInt64 = 0
  /// The lines or records parsed so far.
  private var place: UInt64 = 0
  private var requestedBytes: UInt64 = 0
  private var hasRequests = false

  /// No line is longer.
  static let bufferBytes = 64 << 10
  /// Of all sizes together: no sum of some of them overflows, nor twice one of them.
  private static let requestedLimit: UInt64 = 1 << 60
  static let recordBytes = 24
  /// Of the objects of one batch, but for the last one.
  private static let mostBatchBytes: UInt64 = 16 << 20
  private static let mostCost = 1e12

  /// For tables.
  static let withoutSizes = "each of \(TraceRequest.usualSize) bytes: no column is called bytes or size"

  /// As it was named; - is standard input, as everywhere.
  static func path(_ arguments: Arguments) throws(UsageError) -> String {
    guard let path = arguments.operands.first else { throw UsageError("a trace is missing; name a file") }
    return path == "-" ? standardInput : path
  }
  private static let standardInput = "/dev/stdin"

  /// What can be said before anything else is done.
  @discardableResult
  static func status(_ path: String) throws(UsageError) -> FileStatus {
    guard let status = DiskFile.status(path, followsLinks: true) else {
      throw UsageError("\"\(path)\": \(SystemError.text(errno))")
    }
    guard !status.isDirectory else { throw UsageError("\"\(path)\" is a directory; name a file") }
    return status
  }

  /// Opens a trace. `format`: nil to tell it by the file's name, or else by its first bytes. `cost`: nil for no costs.
  /// `readsTimes`: whether the times of lines are wanted, where there are some.
  init(_ path: String, format: TraceFormat? = nil, cost: TraceCost? = nil, readsTimes: Bool = false) throws {
    (self.path, self.cost, self.readsTimes) = (path, cost, readsTimes)
    let status = try Self.status(path)
    fileBytes = status.isRegular ? status.sizeBytes : nil
    var descriptor = unsafe open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY)
    if descriptor < 0, path == Self.standardInput {
      // A socket, or another user's pipe, cannot be opened anew.
      descriptor = fcntl(0, F_DUPFD_CLOEXEC, 3)
    }
    guard descriptor >= 0 else { throw UsageError("\"\(path)\": \(SystemError.text(errno))") }
    // From here on `deinit` closes it.
    self.descriptor = descriptor
    guard try fill() else { throw UsageError("\"\(path)\" is empty; a trace has one request at least") }
    self.format = try format ?? foundFormat()
    if self.format == .csv {
      try readHeader()
    } else if case .column(let name) = cost {
      throw UsageError("--cost: \"\(path)\" is oracleGeneral, which has no column \"\(name)\"; write equal, or take a csv")
    }
  }

  deinit { close(descriptor) }

  /// How much of the file was read; nil for a pipe.
  var share: Double? { fileBytes.map { Double(readBytes) / Double(max(1, $0)) } }

  /// Puts the next requests in the place of the last ones. False at the end of the trace.
  func next(_ requests: inout [TraceRequest]) throws -> Bool {
    requests.removeAll(keepingCapacity: true)
    while requests.isEmpty {
      guard try fill() else {
        if !hasRequests { throw headerAlone }
        return false
      }
      let unparsed = rest.count
      let bytesBefore = requestedBytes
      // Of large objects some at a time, so that there is something to be seen of a batch that takes its time.
      while requestedBytes - bytesBefore < Self.mostBatchBytes,
        var request = try format == .csv ? nextOfLines() : nextOfRecords()
      {
        if cost == .equal { request.cost = 1 }
        guard request.size <= Self.requestedLimit - requestedBytes else {
          throw wrong("the sizes up to here add up to more than 2^60 bytes; this is no trace of bytes")
        }
        requestedBytes += request.size
        requests.append(request)
      }
      // The buffer is full, or has all that is left.
      if rest.count == unparsed { throw incomplete() }
    }
    hasRequests = true
    return true
  }

  /// Goes through all requests. `body` gets a batch, and returns what is to be shown beside the progress.
  func forEachBatch(_ progress: inout Progress, _ title: String, _ body: ([TraceRequest]) throws -> String) throws {
    var requests: [TraceRequest] = []
    while try next(&requests) {
      let details = try body(requests)
      progress.show(title, share: share, details)
    }
  }

  /// Fills the buffer behind what is not parsed yet. False when nothing is left.
  private func fill() throws -> Bool {
    for (new, old) in rest.enumerated() { buffer[new] = buffer[old] }
    rest = 0..<rest.count
    while !isAtEnd, rest.count < buffer.count {
      try awaitInput()
      // In bounds: the free part of the buffer.
      let got = unsafe buffer.withUnsafeMutableBytes { [rest] in
        unsafe read(descriptor, $0.baseAddress! + rest.count, $0.count - rest.count)
      }
      if got < 0 && errno == EINTR { continue }
      guard got >= 0 else { throw ToolFailure("\"\(path)\": \(SystemError.text(errno))") }
      isAtEnd = got == 0
      rest = 0..<rest.count + got
      readBytes += UInt64(got)
    }
    return !rest.isEmpty
  }

  /// Of a pipe: a signal that is watched ends the wait.
  private func awaitInput() throws(ToolFailure) {
    guard fileBytes == nil else { return }
    var watched = pollfd(fd: descriptor, events: Int16(POLLIN), revents: 0)
    repeat {
      if Children.interruption != 0 { throw ToolFailure("interrupted") }
    } while unsafe poll(&watched, 1, 100) == 0
  }

  private func foundFormat() throws -> TraceFormat {
    let start = buffer[rest]
    if Self.packers.contains(where: { start.starts(with: $0) }) {
      throw UsageError("\"\(path)\" is compressed; unpack it first (zstd -d, gunzip, ...), or say --format where it is not")
    }
    if start.starts(with: [0xFF, 0xFE]) || start.starts(with: [0xFE, 0xFF]) {
      throw UsageError("\"\(path)\" is UTF-16; make it UTF-8 first (iconv -f UTF-16 -t UTF-8), or say --format where it is not")
    }
    if path.hasSuffix(".csv") { return .csv }
    if path.hasSuffix(".oracleGeneral") || path.hasSuffix(".oracleGeneral.bin") { return .oracleGeneral }
    if !start.contains(where: { $0 < 9 }) { return .csv }
    // The number of a record's next request is small, or none.
    let records = min(rest.count / Self.recordBytes, 200)
    let areRecords = (0..<records).allSatisfy { number in
      let next = buffer[(rest.lowerBound + number * Self.recordBytes + 16)...].prefix(8).reversed().reduce(Int64(0)) {
        $0 << 8 | Int64($1)
      }
      return next == -1 || next == .max || (0..<1 << 40).contains(next)
    }
    if areRecords, records > 0 { return .oracleGeneral }
    throw UsageError("\"\(path)\" is neither text nor oracleGeneral, as far as its beginning tells; or say --format")
  }

  /// How what zstd, gzip, bzip2, xz, lz4 and zip have packed begins.
  private static let packers: [[UInt8]] = [
    [0x28, 0xB5, 0x2F, 0xFD], [0x1F, 0x8B, 0x08], Array("BZh91AY&SY".utf8), [0xFD] + Array("7zXZ".utf8) + [0],
    [0x04, 0x22, 0x4D, 0x18], Array("PK\u{3}\u{4}".utf8),
  ]

  // MARK: Lines

  private static func withoutSpaces(_ text: ArraySlice<UInt8>) -> ArraySlice<UInt8> {
    func isSpace(_ byte: UInt8) -> Bool { byte == UInt8(ascii: " ") || byte == UInt8(ascii: "\t") }
    let start = text.drop(while: isSpace)
    return start.lastIndex { !isSpace($0) }.map { start[...$0] } ?? start
  }

  /// What some programs write before UTF-8.
  private static let mark: [UInt8] = [0xEF, 0xBB, 0xBF]

  private func readHeader() throws {
    var line = nextLine()
    // Blank lines may fill a part of the buffer.
    while try line == nil && rest.count < buffer.count && fill() { line = nextLine() }
    guard var header = line else {
      throw rest.isEmpty ? UsageError("\"\(path)\" has blank lines and nothing else; a trace has a header") : incomplete()
    }
    if header.starts(with: Self.mark) { header = header.dropFirst(Self.mark.count) }
    let names = header.split(separator: UInt8(ascii: ","), omittingEmptySubsequences: false).map {
      String(decoding: Self.withoutSpaces($0), as: UTF8.self)
    }
    func column(_ known: [String]) -> Int? {
      known.lazy.compactMap { name in names.firstIndex { $0.lowercased() == name } }.first
    }
    guard let keyColumn = column(["key", "id", "obj_id", "object_id"]) else {
      let known = "\"key\", \"key,bytes\" or the like, not \(Self.quoted(header))"
      throw wrong("the header has to be \(known), with more columns on either side; or say --format oracleGeneral")
    }
    if let twice = names.indices.first(where: { names[..<$0].contains(names[$0]) }) {
      throw wrong("two columns are called \(Self.quoted(Array(names[twice].utf8)[...])); rename one")
    }
    (columnCount, self.keyColumn) = (names.count, keyColumn)
    sizeColumn = column(["bytes", "size", "obj_size", "object_size"])
    hasSizes = sizeColumn != nil
    if readsTimes { timeColumn = column(["time", "timestamp"]) }
    hasTimes = timeColumn != nil
    if case .column(let name) = cost {
      costColumn = names.firstIndex(of: name)
      if costColumn == nil || costColumn == keyColumn {
        throw UsageError(
          "--cost: \"\(path)\" has no column of costs \"\(name)\"; its header is \(Self.quoted(header)); or write equal")
      }
    }
    guard try fill() else { throw headerAlone }
  }

  private var headerAlone: UsageError {
    UsageError("\"\(path)\" has a header and nothing else; a trace has one request at least")
  }

  private func nextOfLines() throws -> TraceRequest? {
    guard let line = nextLine() else { return nil }
    var request = TraceRequest(key: 0, size: TraceRequest.usualSize)
    // A key may have commas of its own: it is what other columns leave.
    let comma = UInt8(ascii: ",")
    var (rest, count) = (line, 1)
    for column in 0..<keyColumn {
      guard let end = rest.firstIndex(of: comma) else { throw tooShort(line, count) }
      try note(Self.withoutSpaces(rest[..<end]), column, in: &request)
      (rest, count) = (rest[(end + 1)...], count + 1)
    }
    for column in (keyColumn + 1..<columnCount).reversed() {
      guard let start = rest.lastIndex(of: comma) else { throw tooShort(line, count) }
      try note(Self.withoutSpaces(rest[(start + 1)...]), column, in: &request)
      (rest, count) = (rest[..<start], count + 1)
    }
    // Those at the beginning of a line are the key's own.
    request.key = try key(keyColumn == 0 ? rest : Self.withoutSpaces(rest))
    return request
  }

  private func tooShort(_ line: ArraySlice<UInt8>, _ count: Int) -> UsageError {
    wrong("\(Self.quoted(line)) has \(count) of the \(columnCount) columns that the header promises")
  }

  private func note(_ text: ArraySlice<UInt8>, _ column: Int, in request: inout TraceRequest) throws {
    if column == sizeColumn {
      guard let size = Self.number(text) else {
        throw wrong("\(Self.quoted(text)) is no size; write a whole number of bytes, below 2^64")
      }
      request.size = size
    }
    if column == costColumn {
      guard let cost = Double(String(decoding: text, as: UTF8.self)), (0...Self.mostCost).contains(cost) else {
        throw wrong("\(Self.quoted(text)) is no cost; write a number from 0 to 10^12")
      }
      request.cost = cost
    }
    if column == timeColumn {
      guard let time = Double(String(decoding: text, as: UTF8.self)), (0..<0x1p32).contains(time) else {
        throw wrong("\(Self.quoted(text)) is no time; write seconds, from 0 to below 2^32")
      }
      request.time = UInt32(time)
    }
  }

  /// The next line that is not blank, without its end; nil where the buffer has no whole one.
  private func nextLine() -> ArraySlice<UInt8>? {
    while true {
      let end = buffer[rest].firstIndex(of: UInt8(ascii: "\n"))
      guard !rest.isEmpty, end != nil || isAtEnd else { return nil }
      var line = buffer[rest.lowerBound..<(end ?? rest.upperBound)]
      rest = min(line.endIndex + 1, rest.upperBound)..<rest.upperBound
      place += 1
      if line.last == UInt8(ascii: "\r") { line.removeLast() }
      if !line.isEmpty { return line }
    }
  }

  /// A number stands for itself, anything else for the hash FNV-1a of its bytes.
  private func key(_ bytes: ArraySlice<UInt8>) throws -> UInt64 {
    guard let first = bytes.first else { throw wrong("no key; take the line out, or write one") }
    // "07" is another key than "7".
    if first != UInt8(ascii: "0") || bytes.count == 1, let number = Self.number(bytes) { return number }
    return bytes.reduce(0xCBF2_9CE4_8422_2325) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
  }

  /// Decimal digits and nothing else, below 2^64.
  private static func number(_ digits: ArraySlice<UInt8>) -> UInt64? {
    var number: UInt64 = 0
    for digit in digits {
      let value = digit &- UInt8(ascii: "0")
      let (tens, isTooLarge) = number.multipliedReportingOverflow(by: 10)
      let (sum, isLarger) = tens.addingReportingOverflow(UInt64(value))
      guard value < 10, !isTooLarge, !isLarger else { return nil }
      number = sum
    }
    return digits.isEmpty ? nil : number
  }

  // MARK: Records

  private func nextOfRecords() -> TraceRequest? {
    guard rest.count >= Self.recordBytes else { return nil }
    // In bounds: a whole record.
    let (time, key, size) = unsafe buffer.withUnsafeBytes { [rest] bytes in
      unsafe (
        bytes.loadUnaligned(fromByteOffset: rest.lowerBound, as: UInt32.self),
        bytes.loadUnaligned(fromByteOffset: rest.lowerBound + 4, as: UInt64.self),
        bytes.loadUnaligned(fromByteOffset: rest.lowerBound + 12, as: UInt32.self)
      )
    }
    rest = rest.lowerBound + Self.recordBytes..<rest.upperBound
    place += 1
    return TraceRequest(
      key: UInt64(littleEndian: key), size: UInt64(UInt32(littleEndian: size)), time: UInt32(littleEndian: time))
  }

  // MARK: What is wrong

  /// What is left has no whole request.
  private func incomplete() -> UsageError {
    place += 1
    return switch format {
    case .csv: wrong("longer than \(Self.bufferBytes) bytes; this is no trace of keys")
    case .oracleGeneral:
      wrong("cut off after \(rest.count) of \(Self.recordBytes) bytes; copy the trace anew, or take the rest off")
    }
  }

  private func wrong(_ what: String) -> UsageError {
    UsageError("\"\(path)\", \(format == .csv ? "line" : "record") \(place): \(what)")
  }

  /// The beginning of a text that may have any bytes.
  private static func quoted(_ bytes: ArraySlice<UInt8>) -> String {
    let printable = bytes.prefix(40).map { $0 < 32 || $0 == 127 ? UInt8(ascii: "?") : $0 }
    return "\"\(String(decoding: printable, as: UTF8.self))\(bytes.count > 40 ? "..." : "")\""
  }
}
