// SPDX-License-Identifier: MIT
// What an entry may have beside its key and its value. It lies between the two, where the entry's slot says so:
//
//   | flags, 1 byte | 8 bytes for each of the lower 7 flags that is set, the lowest first | version |
//   version, where the highest flag is set:   | length, 1 byte | text |
//
// An entry that has nothing of it has no head. To add an attribute: a property here, and its place in `fields`.

struct EntryHead: Equatable {
  /// nil where it is the number of the value's bytes.
  var cost: UInt64?
  /// When the entry's time is over, in nanoseconds of the cache's clock; nil: never.
  var deadline: UInt64?
  /// What making the value again takes, in nanoseconds; nil: unknown.
  var recomputeCost: UInt64?
  /// When the value was loaded, in nanoseconds of the cache's clock; nil: nobody wants to know its age.
  var made: UInt64?
  /// Of an entry that is to be stored; nil: pinned if the old one was. Not written: an entry's queue says it.
  var priority: EntryPriority?
  /// nil: none.
  var version: VersionText?

  /// By flag.
  private var fields: InlineArray<4, UInt64?> {
    @inline(__always) get { [cost, deadline, recomputeCost, made] }
    set { (cost, deadline, recomputeCost, made) = (newValue[0], newValue[1], newValue[2], newValue[3]) }
  }

  private static var versionFlag: UInt8 { 1 << 7 }

  /// Room for a head with all attributes, up to the version's text.
  static var mostBytes: Int { 1 + 8 * EntryHead().fields.count + 1 }

  @inline(__always) private var flags: UInt8 {
    let fields = fields
    var flags: UInt8 = version == nil ? 0 : Self.versionFlag
    for i in fields.indices where fields[i] != nil { flags |= 1 << UInt8(i) }
    return flags
  }

  @inline(__always) var isEmpty: Bool { flags == 0 }
  @inline(__always) var byteCount: Int {
    isEmpty ? 0 : Self.byteCount(flags) + (version.map { 1 + Int($0.byteCount) } ?? 0)
  }
  /// Where the version's text begins.
  var textStart: Int { Self.byteCount(flags) + 1 }

  /// Of a head with these flags, without its version.
  @inline(__always) private static func byteCount(_ flags: UInt8) -> Int { 1 + 8 * (flags & ~versionFlag).nonzeroBitCount }

  init(cost: UInt64? = nil, deadline: UInt64? = nil, recomputeCost: UInt64? = nil) {
    (self.cost, self.deadline, self.recomputeCost) = (cost, deadline, recomputeCost)
  }

  /// Writes a head that is not empty. Its version has its text.
  func write(to bytes: UnsafeMutableRawBufferPointer, at start: Int) {
    assert(!isEmpty && bytes.count - start >= byteCount, "PurgeableCache: an empty head, or no room for it")
    unsafe bytes[start] = flags
    var at = start + 1
    let fields = fields
    for i in fields.indices {
      guard let field = fields[i] else { continue }
      unsafe bytes.storeBytes(of: field, toByteOffset: at, as: UInt64.self)
      at += 8
    }
    if let version { unsafe version.write(to: UnsafeMutableRawBufferPointer(rebasing: bytes[at...])) }
  }

  /// Reads a head, whose version is without text. Bytes that are none give an entry without attributes.
  init(_ bytes: RawSpan) {
    guard bytes.byteCount > 0 else { return }
    let flags = unsafe bytes.unsafeLoad(as: UInt8.self)
    guard bytes.byteCount >= Self.byteCount(flags) else { return }
    var at = 1
    var fields = fields
    for i in fields.indices where flags & 1 << UInt8(i) != 0 {
      fields[i] = unsafe bytes.unsafeLoadUnaligned(fromByteOffset: at, as: UInt64.self)
      at += 8
    }
    self.fields = fields
    if flags & Self.versionFlag != 0, bytes.byteCount > at {
      version = VersionText(byteCount: unsafe bytes.unsafeLoad(fromByteOffset: at, as: UInt8.self))
    }
  }
}

/// The text of an entry's version, or what is known of it. `@safe`: who stores lends the text for the length of the store, and
/// who reads has none.
@safe struct VersionText: Equatable {
  let byteCount: UInt8
  /// Equal for equal texts; 0 where the text was not read.
  var digest: UInt32 = 0
  private var text: UnsafeRawPointer?

  /// More bytes cannot be told.
  static var mostBytes: Int { Int(UInt8.max) }

  init(byteCount: UInt8) { self.byteCount = byteCount }

  /// `text`: of `mostBytes` at most.
  init(lending text: UnsafeRawBufferPointer) {
    byteCount = UInt8(text.count)
    unsafe self.text = text.baseAddress
  }

  static func == (left: Self, right: Self) -> Bool { left.byteCount == right.byteCount && left.digest == right.digest }

  func write(to bytes: UnsafeMutableRawBufferPointer) {
    unsafe bytes[0] = byteCount
    guard let text = unsafe text, byteCount > 0 else { return }
    unsafe UnsafeMutableRawBufferPointer(rebasing: bytes[1...]).copyMemory(
      from: UnsafeRawBufferPointer(start: text, count: Int(byteCount)))
  }
}
