// SPDX-License-Identifier: MIT
// What programs say and hear of saved values.

/// How values are written to a file, with the number of the format, so that values that an older program wrote can be read.
///
///     struct Story: Sendable { var title: String }
///     let format = StoredFormat<Story>(version: 2) { Array($0.title.utf8) } decode: { bytes, version in
///       version == 2 ? String(purgeableBytes: bytes).map { Story(title: $0) } : nil
///     }
///
/// The closures may be called from any thread, under no mutex of this library.
public struct StoredFormat<Value: Sendable>: Sendable {
  /// The number that is written with each value: 1 or more; 0 is `purgeableBytes`.
  public let version: Int
  package let encode: @Sendable (Value) throws -> [UInt8]
  package let decode: @Sendable (RawSpan, Int) throws -> Value?

  /// Makes a format. `version`: 1 to 2,147,483,647; a number outside is a programming error. `encode`: an error means that the
  /// value cannot be written, and it is skipped. `decode` gets the number that the bytes were written with; nil or an error: no
  /// such value, and it is skipped.
  public init(
    version: Int, encode: @escaping @Sendable (Value) throws -> [UInt8],
    decode: @escaping @Sendable (_ bytes: RawSpan, _ version: Int) throws -> Value?
  ) {
    precondition(version > 0 && version <= Int32.max, "StoredFormat: version \(version) is not from 1 to \(Int32.max)")
    (self.version, self.encode, self.decode) = (version, encode, decode)
  }

  /// Of the bytes that values have in memory, which caches of bytes copy without decoding.
  fileprivate init(
    plain encode: @escaping @Sendable (Value) throws -> [UInt8],
    decode: @escaping @Sendable (_ bytes: RawSpan, _ version: Int) throws -> Value?
  ) {
    (version, self.encode, self.decode) = (0, encode, decode)
  }

  package var isPlain: Bool { version == 0 }
}

extension StoredFormat where Value: PurgeableValue {
  /// The bytes that the value has in memory, copied without decoding. Version 0. A file of it is read only as values of the same
  /// type, told by its name and its size: a trivially copyable type of which members or cases have changed needs another name, or
  /// a format with a version.
  public static var purgeableBytes: StoredFormat {
    StoredFormat(
      plain: { value in
        guard let bytes = value.withPurgeableBytesIfEncodable({ span in unsafe span.withUnsafeBytes { unsafe [UInt8]($0) } })
        else { throw NotEncodable() }
        return bytes
      },
      decode: { bytes, version in version == 0 ? Value(purgeableBytes: bytes) : nil })
  }
}

extension StoredFormat where Value == PurgeableData {
  /// The bytes of the object. Name, offering and closure are not written.
  ///
  /// What comes back is idle, with an access count of 0: the kernel may have it until somebody begins an access. (An object that
  /// is decoded otherwise, as by `.json()`, is born with an access that nobody ends.) `version`: 1 or more; to be raised when the
  /// bytes mean something else now.
  ///
  ///     let pages = try ObjectCache<String, PurgeableData>(countLimit: 500)
  ///     try await pages.save(to: "/var/cache/service/pages", format: .contents())
  public static func contents(version: Int = 1) -> StoredFormat {
    StoredFormat(version: version) { object in
      guard let bytes = try object.withBytes({ bytes throws(PurgeableError) in try object.array(of: bytes, for: "save") })
      else { throw NotEncodable() }
      return bytes
    } decode: { bytes, written in
      guard written > 0, written <= version else { return nil }
      let object = try PurgeableData(bytes)
      object.endContentAccess()
      return object
    }
  }
}

private struct NotEncodable: Error, CustomStringConvertible {
  var description: String { "it has no bytes" }
}

/// What a save or a restore did.
public struct FileReport: Sendable, Hashable {
  /// Entries that were written, or stored.
  public internal(set) var entryCount = 0
  /// Of the file; 0 where there was none to restore from.
  public internal(set) var byteCount = 0
  /// Entries of the file whose time was over. 0 for a save.
  public internal(set) var expiredCount = 0
  /// Entries that could not be written or read: their values do not encode or decode, have a wrong checksum, or get no memory.
  public internal(set) var skippedCount = 0
  /// Entries that were passed over in good order. By a save: what the kernel had taken, what left meanwhile, what had expired.
  /// By a restore, which leaves them in the file: there was no room for them, or their keys had a value already or were removed
  /// meanwhile. What damage hides counts here too.
  public internal(set) var leftOutCount = 0
  /// Key and reason of the first hundred that were skipped, in words.
  public internal(set) var skipped: [String] = []

  /// `count`: the entries that there were.
  mutating func noteLeftOut(of count: Int) { leftOutCount = max(0, count - entryCount - expiredCount - skippedCount) }

  mutating func skip(_ what: @autoclosure () -> String, because reason: String) {
    skippedCount += 1
    if skipped.count < 100 { skipped.append("\(what()): \(reason)") }
  }
}

extension FileReport: CustomStringConvertible {
  /// In one line: "12001 entries, file of 38.2 MiB, 3 expired, 1 skipped (first: cat.jpg: it has no bytes), 20 left out". Parts
  /// that are zero are left out. "no file" where there was none to restore from.
  public var description: String {
    if byteCount == 0 { return "no file" }
    var text = "\(entryCount) \(entryCount == 1 ? "entry" : "entries"), file of \(CacheStatistics.mebibytes(byteCount)) MiB"
    if expiredCount > 0 { text += ", \(expiredCount) expired" }
    if skippedCount > 0 { text += ", \(skippedCount) skipped" + (skipped.first.map { " (first: \($0))" } ?? "") }
    if leftOutCount > 0 { text += ", \(leftOutCount) left out" }
    return text
  }
}

/// What happens to the saves of `setAutosave`.
public enum SaveEvent: Sendable, Hashable {
  /// Something has changed since the last one, and a save begins.
  case willSave
  /// The file is in place.
  case didSave(FileReport)
  /// What was there before is there still, unless the error says that the new file is in place. The next interval tries again.
  case failed(PurgeableError)
}
