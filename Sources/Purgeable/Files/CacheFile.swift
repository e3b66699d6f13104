// SPDX-License-Identifier: MIT
// The file that a saved cache is. All numbers are little-endian.
//
//   header   4,096 bytes   what it is, its identity (random), what keys and values are; its own sum
//   records                the hottest entry first, one behind the other, each on 8 bytes:
//                          | 96 bytes, two sums among them | key | version | value | zeros |
//   zeros                  up to a multiple of 4,096, so that whole pages can be written around the page cache
//   footer   128 bytes     how many records, how long the file is; its own sum
//
// The identity goes into each sum: a record of an older file, in a block that the file system used again, is none of this file.
// One sum of a record is of its 96 bytes, so that the next record is found behind one whose key or value is damaged; where the 96
// bytes are damaged themselves, the next record is looked for at each multiple of 8. Numbers of the format: `major` is raised by
// a change that older readers must not read over, `minor` by one that they may.

import CPurgeableFiles

enum CacheFile {
  /// 89 "PRG" 0D 0A 1A 0A, as PNG has it: tells a file that was changed on its way, as text or by a cut to 7 bits.
  static let magic: UInt64 = 0x0A1A_0A0D_4752_5089
  static let footerMagic: UInt64 = 0x8950_5247_0D0A_1A0A
  static let recordMark: UInt32 = 0x4345_5250
  static let major: UInt16 = 1
  static let minor: UInt16 = 0
  static let pageByteCount = 4096
  static let headerByteCount = pageByteCount
  static let footerByteCount = 128
  static let recordAlignment = 8

  /// Of a part of the file with this identity.
  static func sum(_ identity: FileIdentity, _ bytes: RawSpan) -> UInt32 {
    let sum = unsafe withUnsafeBytes(of: identity) { unsafe self.sum($0.bytes, after: 0) }
    return self.sum(bytes, after: sum)
  }

  /// Of bytes that follow others.
  static func sum(_ bytes: RawSpan, after sum: UInt32) -> UInt32 {
    unsafe bytes.withUnsafeBytes { bytes in
      guard let start = bytes.baseAddress else { return sum }
      return unsafe purgeable__crc32c(sum, start, bytes.count)
    }
  }
}

/// Random for each file.
struct FileIdentity: Equatable, BitwiseCopyable {
  var low: UInt64 = 0
  var high: UInt64 = 0

  static func random() -> FileIdentity { FileIdentity(low: .random(in: 0 ... .max), high: .random(in: 0 ... .max)) }
}

/// Little-endian numbers in bytes. In bounds: all offsets are below the sizes that are named in this file.
extension UnsafeMutableRawBufferPointer {
  fileprivate func set<Number: FixedWidthInteger & BitwiseCopyable>(_ number: Number, at offset: Int) {
    unsafe storeBytes(of: number.littleEndian, toByteOffset: offset, as: Number.self)
  }
}

extension RawSpan {
  fileprivate func number<Number: FixedWidthInteger & BitwiseCopyable>(at offset: Int, as type: Number.Type) -> Number {
    Number(littleEndian: integer(at: offset))
  }
}

// MARK: - Header

struct FileHeader: Equatable {
  var identity = FileIdentity.random()
  /// Nanoseconds since 1970.
  var created: Int64
  /// Names, cut to `nameByteCount`.
  var keyType: String
  var valueType: String
  /// Of the values that were written: `StoredFormat.version`.
  var format: UInt32

  private static let sumAt = CacheFile.headerByteCount - 4
  private static let namesAt = 64
  static let nameByteCount = 1000

  enum Problem: Error {
    case foreign, damaged
    case newer(UInt16)
  }

  /// `bytes`: `CacheFile.headerByteCount` zeros.
  func write(to bytes: UnsafeMutableRawBufferPointer) {
    unsafe bytes.set(CacheFile.magic, at: 0)
    unsafe bytes.set(CacheFile.major, at: 8)
    unsafe bytes.set(CacheFile.minor, at: 10)
    unsafe bytes.set(format, at: 12)
    unsafe bytes.set(identity.low, at: 16)
    unsafe bytes.set(identity.high, at: 24)
    unsafe bytes.set(created, at: 32)
    var at = Self.namesAt
    for name in [keyType, valueType] {
      let utf8 = Array(name.utf8.prefix(Self.nameByteCount))
      unsafe bytes.set(UInt16(utf8.count), at: at)
      unsafe UnsafeMutableRawBufferPointer(rebasing: bytes[(at + 2)...]).copyBytes(from: utf8)
      at += 2 + utf8.count
    }
    unsafe bytes.set(CacheFile.sum(identity, bytes.bytes.extracting(0..<Self.sumAt)), at: Self.sumAt)
  }

  /// `bytes`: `CacheFile.headerByteCount`.
  static func read(_ bytes: RawSpan) -> Result<FileHeader, Problem> {
    guard bytes.number(at: 0, as: UInt64.self) == CacheFile.magic else { return .failure(.foreign) }
    let identity = FileIdentity(low: bytes.number(at: 16, as: UInt64.self), high: bytes.number(at: 24, as: UInt64.self))
    guard CacheFile.sum(identity, bytes.extracting(0..<sumAt)) == bytes.number(at: sumAt, as: UInt32.self)
    else { return .failure(.damaged) }
    let major = bytes.number(at: 8, as: UInt16.self)
    guard major <= CacheFile.major else { return .failure(.newer(major)) }
    var names: [String] = []
    var at = namesAt
    for _ in 0..<2 {
      let count = Int(bytes.number(at: at, as: UInt16.self))
      guard count <= nameByteCount else { return .failure(.damaged) }
      names.append(
        unsafe bytes.extracting(at + 2..<at + 2 + count).withUnsafeBytes { unsafe String(decoding: $0, as: UTF8.self) })
      at += 2 + count
    }
    return .success(
      FileHeader(
        identity: identity, created: bytes.number(at: 32, as: Int64.self), keyType: names[0], valueType: names[1],
        format: bytes.number(at: 12, as: UInt32.self)))
  }
}

// MARK: - Footer

struct FileFooter: Equatable {
  var recordCount: Int
  /// Where the records end.
  var recordsEnd: Int
  var fileByteCount: Int

  private static let sumAt = CacheFile.footerByteCount - 4

  /// `bytes`: `CacheFile.footerByteCount` zeros.
  func write(to bytes: UnsafeMutableRawBufferPointer, _ identity: FileIdentity) {
    unsafe bytes.set(CacheFile.footerMagic, at: 0)
    unsafe bytes.set(identity.low, at: 16)
    unsafe bytes.set(identity.high, at: 24)
    unsafe bytes.set(UInt64(recordCount), at: 32)
    unsafe bytes.set(UInt64(recordsEnd), at: 40)
    unsafe bytes.set(UInt64(fileByteCount), at: 48)
    unsafe bytes.set(CacheFile.sum(identity, bytes.bytes.extracting(0..<Self.sumAt)), at: Self.sumAt)
  }

  /// nil for other bytes than those of this file's footer. `bytes`: `CacheFile.footerByteCount`.
  static func read(_ bytes: RawSpan, _ identity: FileIdentity) -> FileFooter? {
    guard bytes.number(at: 0, as: UInt64.self) == CacheFile.footerMagic,
      bytes.number(at: 16, as: UInt64.self) == identity.low,
      bytes.number(at: 24, as: UInt64.self) == identity.high,
      CacheFile.sum(identity, bytes.extracting(0..<sumAt)) == bytes.number(at: sumAt, as: UInt32.self),
      let count = Int(exactly: bytes.number(at: 32, as: UInt64.self)),
      let end = Int(exactly: bytes.number(at: 40, as: UInt64.self)),
      let length = Int(exactly: bytes.number(at: 48, as: UInt64.self)),
      end >= CacheFile.headerByteCount, end <= length - CacheFile.footerByteCount,
      count <= (end - CacheFile.headerByteCount) / FileRecord.headerByteCount
    else { return nil }
    return FileFooter(recordCount: count, recordsEnd: end, fileByteCount: length)
  }
}

// MARK: - Records

/// What a record says of an entry beside key, version and value. Times are nanoseconds since 1970.
struct FileRecord: Equatable {
  var keyByteCount = 0
  /// nil: no version.
  var versionByteCount: Int?
  var valueByteCount = 0
  /// What the value was written with: `StoredFormat.version`.
  var format: UInt32 = 0
  var priority = EntryPriority.normal
  /// Of a normal entry: whether it was in the main queue, and how often it was used of late.
  var isMain = false
  var useCount: UInt64 = 0
  var cost: UInt64?
  var recomputeCost: UInt64?
  var deadline: Int64?
  /// How long after its last use its time is over.
  var sinceLastUse: UInt64?
  var lastUse: Int64?
  var made: Int64?

  static let headerByteCount = 96
  /// More is no record of ours.
  private static let mostKeyBytes: UInt32 = 0x7EFF_FFFF
  private static let mostValueBytes: UInt64 = 1 << 40

  var contentByteCount: Int { keyByteCount + (versionByteCount ?? 0) + valueByteCount }
  var byteCount: Int {
    (Self.headerByteCount + contentByteCount + CacheFile.recordAlignment - 1) & ~(CacheFile.recordAlignment - 1)
  }

  // Flags. Unknown ones: the record is skipped.
  private static let priorities: UInt32 = 3
  private static let mainFlag: UInt32 = 1 << 2
  private static let useCounts: UInt32 = 3 << 4
  private static let versionFlag: UInt32 = 1 << 8
  /// From here on whether `cost` and the others behind it are there.
  private static let firstField: UInt32 = 9
  private static let fieldCount: UInt32 = 6
  private static let known = priorities | mainFlag | useCounts | versionFlag | ((1 << fieldCount - 1) << firstField)

  /// By the number of their flag.
  private var fields: InlineArray<6, UInt64?> {
    [
      cost, recomputeCost, deadline.map { UInt64(bitPattern: $0) }, sinceLastUse, lastUse.map { UInt64(bitPattern: $0) },
      made.map { UInt64(bitPattern: $0) },
    ]
  }

  /// `bytes`: `headerByteCount` zeros. `content`: key, version and value.
  func write(to bytes: UnsafeMutableRawBufferPointer, _ identity: FileIdentity, contentSum: UInt32) {
    var flags: UInt32 =
      switch priority {
      case .normal: 0
      case .speculative: 1
      case .pinned: 2
      }
    if isMain { flags |= Self.mainFlag }
    flags |= UInt32(useCount) << 4 & Self.useCounts
    if versionByteCount != nil { flags |= Self.versionFlag }
    unsafe bytes.set(CacheFile.recordMark, at: 0)
    unsafe bytes.set(contentSum, at: 8)
    unsafe bytes.set(UInt32(keyByteCount), at: 16)
    unsafe bytes.set(format, at: 20)
    unsafe bytes.set(UInt64(valueByteCount), at: 24)
    unsafe bytes.set(UInt16(versionByteCount ?? 0), at: 32)
    let fields = fields
    for i in 0..<Int(Self.fieldCount) {
      guard let field = fields[i] else { continue }
      flags |= 1 << (Self.firstField + UInt32(i))
      unsafe bytes.set(field, at: 40 + 8 * i)
    }
    unsafe bytes.set(flags, at: 12)
    let rest = unsafe bytes.bytes.extracting(8..<Self.headerByteCount)
    unsafe bytes.set(CacheFile.sum(identity, rest), at: 4)
  }

  enum Reading {
    /// Nothing that a record of this file begins with.
    case none
    /// It has flags that this version does not know.
    case unknown(byteCount: Int)
    case record(FileRecord, contentSum: UInt32)
  }

  /// `bytes`: `headerByteCount`.
  static func read(_ bytes: RawSpan, _ identity: FileIdentity) -> Reading {
    guard bytes.number(at: 0, as: UInt32.self) == CacheFile.recordMark,
      CacheFile.sum(identity, bytes.extracting(8..<headerByteCount)) == bytes.number(at: 4, as: UInt32.self)
    else { return .none }
    return parse(bytes)
  }

  /// Of bytes that were checked.
  static func parse(_ bytes: RawSpan) -> Reading {
    let flags = bytes.number(at: 12, as: UInt32.self)
    let valueByteCount = bytes.number(at: 24, as: UInt64.self)
    let keyByteCount = bytes.number(at: 16, as: UInt32.self)
    guard keyByteCount <= mostKeyBytes, valueByteCount <= mostValueBytes else { return .none }
    var record = FileRecord()
    record.keyByteCount = Int(keyByteCount)
    record.format = bytes.number(at: 20, as: UInt32.self)
    record.valueByteCount = Int(valueByteCount)
    if flags & versionFlag != 0 { record.versionByteCount = Int(bytes.number(at: 32, as: UInt16.self)) }
    switch flags & priorities {
    case 0: break
    case 1: record.priority = .speculative
    case 2: record.priority = .pinned
    default: return .unknown(byteCount: record.byteCount)
    }
    guard flags & ~known == 0 else { return .unknown(byteCount: record.byteCount) }
    record.isMain = flags & mainFlag != 0
    record.useCount = UInt64((flags & useCounts) >> 4)
    func field(_ i: UInt32) -> UInt64? {
      flags & 1 << (firstField + i) == 0 ? nil : bytes.number(at: 40 + 8 * Int(i), as: UInt64.self)
    }
    func time(_ i: UInt32) -> Int64? { field(i).map { Int64(bitPattern: $0) } }
    (record.cost, record.recomputeCost, record.deadline) = (field(0), field(1), time(2))
    (record.sinceLastUse, record.lastUse, record.made) = (field(3), time(4), time(5))
    return .record(record, contentSum: bytes.number(at: 8, as: UInt32.self))
  }
}
