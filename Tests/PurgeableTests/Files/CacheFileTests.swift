// SPDX-License-Identifier: MIT
// The file: its sums, and what damage does.

import CPurgeableFiles
import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

/// A folder for the length of a test.
func withFolder<R>(_ body: (FakeRoot) throws -> R) throws -> R {
  let folder = try FakeRoot()
  defer { folder.remove() }
  return try body(folder)
}

func names(in folder: FakeRoot) throws -> [String] { try FileManager.default.contentsOfDirectory(atPath: folder.path).sorted() }

@Suite("a saved cache: the file")
struct CacheFileTests {
  // MARK: Sums

  private func sums(_ bytes: [UInt8], after sum: UInt32 = 0) -> (UInt32, UInt32) {
    unsafe bytes.withUnsafeBytes {
      unsafe (
        purgeable__crc32c(sum, $0.baseAddress!, $0.count), purgeable__crc32c_by_tables(sum, $0.baseAddress!, $0.count)
      )
    }
  }

  @Test("the checksum is CRC-32C: the vectors of RFC 3720, by the processor's instruction and by tables")
  func vectors() {
    let vectors: [([UInt8], UInt32)] = [
      (Array("123456789".utf8), 0xE306_9283), ([UInt8](repeating: 0, count: 32), 0x8A91_36AA),
      ([UInt8](repeating: 0xFF, count: 32), 0x62A8_AB43), ((0..<32).map { $0 }, 0x46DD_794E),
      ((0..<32).reversed().map { $0 }, 0x113F_DB5C),
    ]
    for (bytes, sum) in vectors { #expect(sums(bytes) == (sum, sum)) }
  }

  @Test("the checksum of bytes in parts is that of the whole, at any cut and any alignment")
  func parts() {
    var random = SplitMix64(seed: chosenSeed)
    let bytes = (0..<300).map { _ in UInt8(truncatingIfNeeded: random.next()) }
    for start in 0..<9 {
      let whole = sums(Array(bytes[start...]))
      #expect(whole.0 == whole.1)
      for cut in start..<start + 40 {
        let first = sums(Array(bytes[start..<max(cut, start + 1)]))
        let both = sums(Array(bytes[max(cut, start + 1)...]), after: first.0)
        #expect(both == whole)
      }
    }
  }

  // MARK: Damage

  /// A small file, and what it holds.
  private func makeFile(_ path: String) throws -> [Int: [UInt8]] {
    let cache = try PurgeableCache<Int, [UInt8]>()
    var values: [Int: [UInt8]] = [:]
    for key in 0..<40 {
      values[key] = described(UInt32(key), version: 1, count: 8 + key * 5)
      cache.setValue(values[key]!, forKey: key, version: key % 2 == 0 ? "v\(key)" : nil)
    }
    try cache.save(to: path)
    return values
  }

  /// What a file gives, none of it wrong; nil where it is refused.
  private func restored(_ path: String, _ values: [Int: [UInt8]]) throws -> (entries: Int, report: FileReport)? {
    let cache = try PurgeableCache<Int, [UInt8]>()
    let report: FileReport
    do throws(PurgeableError) { report = try cache.restore(from: path) } catch {
      #expect(error.kind == .invalidFile)
      #expect(cache.isEmpty)
      return nil
    }
    var count = 0
    for key in cache.keys {
      #expect(cache.peekValue(forKey: key) == values[key])
      count += 1
    }
    #expect(count == report.entryCount)
    return (count, report)
  }

  @Test("one byte anywhere in the file: that entry is lost and named, or the file is refused, and no byte is ever wrong")
  func flippedBytes() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let values = try makeFile(path)
      let whole = try Data(contentsOf: URL(fileURLWithPath: path))
      #expect(try restored(path, values)?.entries == values.count)
      var random = SplitMix64(seed: chosenSeed)
      var (refused, lost) = (0, 0)
      for _ in 0..<(TestRun.isFull ? 1000 : 250) {
        var bytes = whole
        let place = random.index(below: bytes.count)
        bytes[place] ^= UInt8(1 << random.index(below: 8))
        try bytes.write(to: URL(fileURLWithPath: path))
        guard let found = try restored(path, values) else {
          refused += 1
          continue
        }
        #expect(found.entries >= values.count - 1, "byte \(place)")
        if found.entries < values.count {
          lost += 1
          #expect(found.report.skippedCount >= 1 && !found.report.skipped.isEmpty, "byte \(place)")
        }
      }
      #expect(refused > 0 && lost > 0)
    }
  }

  @Test("a damaged header is one loss, also of the last entry; no path is a file without a name")
  func lastHeader() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let saved = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<2 { saved[key] = pattern(10) }
      try saved.save(to: path)
      var bytes = try Data(contentsOf: URL(fileURLWithPath: path))
      let unit = CacheFile.recordAlignment
      let recordBytes = (FileRecord.headerByteCount + 8 + 10 + unit - 1) / unit * unit
      bytes[CacheFile.headerByteCount + recordBytes + 5] ^= 1
      try bytes.write(to: URL(fileURLWithPath: path))
      let report = try PurgeableCache<Int, [UInt8]>().restore(from: path)
      #expect(report.entryCount == 1 && report.skippedCount == 1, "\(report.skipped)")
      #expect {
        try saved.restore(from: "")
      } throws: { error in
        (error as? PurgeableError)?.kind == .invalidArgument("path")
      }
    }
  }

  @Test("a cut file is refused wherever it is cut, and so are one that grew, an empty one, text, and a directory")
  func cut() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let values = try makeFile(path)
      let whole = try Data(contentsOf: URL(fileURLWithPath: path))
      for length in [0, 1, 100, 4095, 4096, 4097, whole.count - 129, whole.count - 128, whole.count - 1] {
        try whole.prefix(length).write(to: URL(fileURLWithPath: path))
        #expect(try restored(path, values) == nil, "\(length) bytes")
      }
      try (whole + Data(count: 4096)).write(to: URL(fileURLWithPath: path))
      #expect(try restored(path, values) == nil)
      try Data(repeating: 65, count: 20_000).write(to: URL(fileURLWithPath: path))
      #expect(try restored(path, values) == nil)
      // The end of another save behind the beginning of this one.
      _ = try makeFile(folder.path + "/other")
      let other = try Data(contentsOf: URL(fileURLWithPath: folder.path + "/other"))
      #expect(other.count == whole.count)
      try (whole.prefix(4096 + 512) + other.dropFirst(4096 + 512)).write(to: URL(fileURLWithPath: path))
      #expect(try restored(path, values) == nil)
      try FileManager.default.removeItem(atPath: path)
      try FileManager.default.createDirectory(atPath: path, withIntermediateDirectories: false)
      #expect(throws: PurgeableError.self) { try PurgeableCache<Int, [UInt8]>().restore(from: path) }
    }
  }

  @Test("a file that is cut within a page and grows again while it is read: the error says so, or all is there")
  func cutAndGrown() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let mebibyte = 1 << 20
      let cache = try PurgeableCache<Int, [UInt8]>(evictionOrder: .lru)
      // Each record takes a mebibyte, and the one before them no more than its header and its key.
      let count = mebibyte - FileRecord.headerByteCount - 8
      for key in 1...5 { cache[key] = described(UInt32(key), version: 1, count: count) }
      cache[0] = []
      try cache.save(to: path)
      let whole = try Data(contentsOf: URL(fileURLWithPath: path))
      var (cutCount, wholeCount) = (0, 0)
      for block in 1..<4 {
        for step in 1...3 {
          // A block's last byte is gone for as long as one step takes.
          let end = 4096 + block * mebibyte + mebibyte - 1
          let restored = try PurgeableCache<Int, [UInt8]>()
          let file = unsafe open(path, O_RDWR | O_CLOEXEC)
          defer { close(file) }
          var calls = 0
          do throws(PurgeableError) {
            try restored.restore(from: path) { _ in
              calls += 1
              if calls == step { require(ftruncate(file, off_t(end)) == 0, "cut") }
              usleep(2000)
              if calls == step + 1 {
                let isWritten = unsafe whole[end...].withUnsafeBytes { bytes in
                  unsafe pwrite(file, bytes.baseAddress!, bytes.count, off_t(end)) == bytes.count
                }
                require(isWritten, "grown again")
              }
              return true
            }
            wholeCount += restored.count == 6 ? 1 : 0
          } catch {
            #expect(error.kind == .invalidFile)
            cutCount += 1
          }
          for key in 1...5 {
            if let value = restored.peekValue(forKey: key) { #expect(value == described(UInt32(key), version: 1, count: count)) }
          }
          try whole.write(to: URL(fileURLWithPath: path))
        }
      }
      #expect(cutCount + wholeCount == 9)
    }
  }

  @Test("records of an older file of the same keys in this one's place are none of it")
  func oldRecords() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      let values = try makeFile(path)
      let whole = try Data(contentsOf: URL(fileURLWithPath: path))
      _ = try makeFile(path)
      let other = try Data(contentsOf: URL(fileURLWithPath: path))
      // Header and footer of the one, records of the other.
      let end = whole.count - CacheFile.footerByteCount
      let mixed = whole.prefix(CacheFile.headerByteCount) + other[CacheFile.headerByteCount..<end] + whole.suffix(from: end)
      try mixed.write(to: URL(fileURLWithPath: path))
      let found = try #require(try restored(path, values))
      #expect(found.entries == 0 && found.report.skippedCount > 0)
    }
  }

  private enum Tiles {
    struct ID: PurgeableKey, BitwiseCopyable { var level: Int32, number: Int32 }
  }
  private enum Fonts {
    struct ID: PurgeableKey, BitwiseCopyable { var family: Int32, size: Int32 }
    struct List<Element> {}
  }

  @Test("types of one name in different types are different types; modules do not count, nor do addresses of private contexts")
  func typeNames() throws {
    #expect(nameInFiles(Tiles.ID.self) == "CacheFileTests.Tiles.ID" && nameInFiles(Fonts.ID.self) == "CacheFileTests.Fonts.ID")
    #expect(nameInFiles([UInt8].self) == "Array<UInt8>" && nameInFiles(String.self) == "String")
    #expect(nameInFiles([String: [Tiles.ID]].self) == "Dictionary<String, Array<CacheFileTests.Tiles.ID>>")
    #expect(nameInFiles(Fonts.List<Int>.self) == "CacheFileTests.Fonts.List<Int>")
    #expect(nameInFiles((Int, PurgeableError.Kind?).self) == "(Int, Optional<PurgeableError.Kind>)")
    #expect(nameInFiles(Set<Int>.Index.self) == "Set<Int>.Index")
    try withFolder { folder in
      let path = folder.path + "/tiles"
      let tiles = try PurgeableCache<Tiles.ID, [UInt8]>()
      tiles[Tiles.ID(level: 3, number: 1)] = [1]
      try tiles.save(to: path)
      let fonts = try PurgeableCache<Fonts.ID, [UInt8]>()
      let error = try #require(throws: PurgeableError.self) { try fonts.restore(from: path) }
      #expect(error.kind == .invalidFile && error.explanation.contains("Tiles.ID") && error.explanation.contains("Fonts.ID"))
      #expect(fonts.count == 0)
    }
  }

  @Test("a file of a newer version is refused, with its number")
  func newer() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      _ = try makeFile(path)
      var bytes = [UInt8](try Data(contentsOf: URL(fileURLWithPath: path)))
      bytes[8] = 2
      let identity = unsafe bytes.withUnsafeBytes { unsafe $0.loadUnaligned(fromByteOffset: 16, as: FileIdentity.self) }
      let sum = unsafe bytes.withUnsafeBytes {
        unsafe CacheFile.sum(identity, $0.bytes.extracting(first: 4092))
      }
      for i in 0..<4 { bytes[4092 + i] = UInt8(truncatingIfNeeded: sum >> UInt32(8 * i)) }
      try Data(bytes).write(to: URL(fileURLWithPath: path))
      let error = try #require(throws: PurgeableError.self) { try PurgeableCache<Int, [UInt8]>().restore(from: path) }
      #expect(error.kind == .invalidFile && error.explanation.contains("newer version: format 2"))
    }
  }

  // MARK: Numbers that no save writes, with right checksums

  /// A file with one record of a key of 8 bytes.
  private func write(_ path: String, _ record: FileRecord) throws {
    let header = FileHeader(created: WallTime.now, keyType: "Int", valueType: "Array<UInt8>", format: 0)
    var writer = try CacheFileWriter.make(path, header, permissions: 0o600, operation: "test")
    var report = FileReport()
    let value: [UInt8] = [1, 2, 3]
    try writer.append(record, key: 0x0101_0101_0101_0101, version: nil, value: unsafe value.span.bytes, &report)
    #expect(report.entryCount == 1)
    _ = try writer.place(isSynchronized: false)
  }

  @Test("times and costs at the ends of their range are restored, or over")
  func hostileRecords() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      var records: [FileRecord] = []
      for number in [0, 1, .max / 2, .max - 1, .max] as [UInt64] {
        for time in [Int64.min, -1, 0, 1, .max - 1, .max] {
          var record = FileRecord()
          (record.cost, record.recomputeCost, record.sinceLastUse) = (number, number, number)
          (record.lastUse, record.made, record.deadline) = (time, time, number % 2 == 0 ? nil : time)
          records.append(record)
          record.lastUse = nil
          records.append(record)
        }
      }
      for record in records {
        try write(path, record)
        let bytes = try PurgeableCache<Int, [UInt8]>()
        let report = try bytes.restore(from: path)
        #expect(report.entryCount + report.expiredCount <= 1 && report.skippedCount == 0)
        if let value = bytes.peekValue(forKey: 0x0101_0101_0101_0101) { #expect(value == [1, 2, 3]) }
        try bytes.save(to: path, isSynchronized: false)
        let objects = try ObjectCache<Int, [UInt8]>()
        _ = try objects.restore(from: path, format: .purgeableBytes)
        #expect(objects.entries.allSatisfy { $0.value == [1, 2, 3] })
      }
    }
  }

  @Test("lengths and counts beyond the file are refused, or passed over")
  func hostileLengths() throws {
    try withFolder { folder in
      let path = folder.path + "/cache"
      try write(path, FileRecord())
      let whole = [UInt8](try Data(contentsOf: URL(fileURLWithPath: path)))
      let identity = unsafe whole.withUnsafeBytes { unsafe $0.loadUnaligned(fromByteOffset: 16, as: FileIdentity.self) }
      for count in [0, 1, 2, 1 << 61, Int.max] {
        var bytes = whole
        let footer = FileFooter(recordCount: count, recordsEnd: whole.count - 128, fileByteCount: whole.count)
        var end = [UInt8](repeating: 0, count: CacheFile.footerByteCount)
        unsafe end.withUnsafeMutableBytes { unsafe footer.write(to: $0, identity) }
        bytes.replaceSubrange((whole.count - end.count)..., with: end)
        try Data(bytes).write(to: URL(fileURLWithPath: path))
        let cache = try PurgeableCache<Int, [UInt8]>()
        // A wrong count that could be right is no harm.
        if count < 1 << 61 {
          try cache.restore(from: path)
        } else {
          let error = #expect(throws: PurgeableError.self) { try cache.restore(from: path) }
          #expect(error?.kind == .invalidFile)
        }
      }
      for (keyByteCount, valueByteCount) in [
        (0x7EFF_FFFF, 0), (0x7F00_0000, 0), (0xFFFF_FFFF, 0), (8, 1 << 40), (8, Int.max), (0xFFFF_FFFF, Int.max), (9, 3),
        (100, 3),
      ] {
        var bytes = whole
        var record = FileRecord()
        (record.keyByteCount, record.valueByteCount) = (keyByteCount, valueByteCount)
        var header = [UInt8](repeating: 0, count: FileRecord.headerByteCount)
        unsafe header.withUnsafeMutableBytes { unsafe record.write(to: $0, identity, contentSum: 0) }
        bytes.replaceSubrange(CacheFile.headerByteCount..<CacheFile.headerByteCount + header.count, with: header)
        try Data(bytes).write(to: URL(fileURLWithPath: path))
        let cache = try PurgeableCache<Int, [UInt8]>()
        let report = try cache.restore(from: path)
        #expect(report.entryCount == 0 && report.skippedCount >= 1, "\(keyByteCount) and \(valueByteCount)")
      }
    }
  }
}
