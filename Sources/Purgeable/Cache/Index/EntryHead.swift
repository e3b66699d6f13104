// SPDX-License-Identifier: MIT
// What an entry may have beside its key and its value. It lies between the two, where the entry's slot says so:
//
//   | flags, 1 byte | 8 bytes for each of the lower 7 flags that is set, the lowest first | version |
//   version, where the highest flag is set:   | length, 1 byte | text |
//
// An entry that has nothing of it has no head. To add an attribute: a property here, and room in `fields`.

struct EntryHead: Equatable {
  /// nil where it is the number of the value's bytes.
  var cost: UInt64? {
    get { self[0] }
    set { self[0] = newValue }
  }
  /// When the entry's time is over, in nanoseconds of the cache's clock; nil: never.
  var deadline: UInt64? {
    get { self[1] }
    set { self[1] = newValue }
  }
  /// What making the value again takes, in nanoseconds; nil: unknown.
  var recomputeCost: UInt64? {
    get { self[2] }
    set { self[2] = newValue }
  }
  /// When the value was loaded, in nanoseconds of the cache's clock; nil: nobody wants to know its age.
  var made: UInt64? {
    get { self[3] }
    set { self[3] = newValue }
  }
  /// How long after its last use the entry's time is over, in nanoseconds; nil: that is no bound (LastUses.swift).
  var sinceLastUse: UInt64? {
    get { self[4] }
    set { self[4] = newValue }
  }
  /// nil: none.
  var version: VersionText? {
    get { flags & Self.versionFlag == 0 ? nil : versionText }
    set {
      flags = flags & ~Self.versionFlag | (newValue == nil ? 0 : Self.versionFlag)
      versionText = newValue ?? VersionText(byteCount: 0)
    }
  }
  /// Of an entry that is to be stored; nil: pinned if the old one was. Not written: an entry's queue says it.
  var priority: EntryPriority?

  private var flags: UInt8 = 0
  /// By flag; 0 where it is not set.
  private var fields = InlineArray<5, UInt64>(repeating: 0)
  private var versionText = VersionText(byteCount: 0)

  private static var versionFlag: UInt8 { 1 << 7 }

  /// Room for a head with all attributes, up to the version's text.
  static var mostBytes: Int { 1 + 8 * EntryHead().fields.count + 1 }

  @inline(__always) private subscript(i: Int) -> UInt64? {
    get { flags & 1 << UInt8(i) == 0 ? nil : fields[i] }
    set {
      flags = flags & ~(1 << UInt8(i)) | (newValue == nil ? 0 : 1 << UInt8(i))
      fields[i] = newValue ?? 0
    }
  }

  static func == (left: Self, right: Self) -> Bool {
    left.flags == right.flags && left.fields.indices.allSatisfy { left.fields[$0] == right.fields[$0] }
      && left.versionText == right.versionText && left.priority == right.priority
  }

  @inline(__always) var isEmpty: Bool { flags == 0 }
  /// Whether the entry's time is ever over.
  @inline(__always) var isTimed: Bool { flags & (1 << 1 | 1 << 4) != 0 }
  @inline(__always) var byteCount: Int {
    isEmpty ? 0 : Self.byteCount(flags) + (version.map { 1 + Int($0.byteCount) } ?? 0)
  }
  /// Where the version's text begins.
  var textStart: Int { Self.byteCount(flags) + 1 }

  /// Of a head with these flags, without its version.
  @inline(__always) private static func byteCount(_ flags: UInt8) -> Int { 1 + 8 * (flags & ~versionFlag).nonzeroBitCount }

  @inline(__always)
  init(cost: UInt64? = nil, deadline: UInt64? = nil, recomputeCost: UInt64? = nil) {
    (self.cost, self.deadline, self.recomputeCost) = (cost, deadline, recomputeCost)
  }

  /// Writes a head that is not empty. Its version has its text.
  func write(to bytes: UnsafeMutableRawBufferPointer, at start: Int) {
    assert(!isEmpty && bytes.count - start >= byteCount, "PurgeableCache: an empty head, or no room for it")
    unsafe bytes[start] = flags
    var at = start + 1
    for i in fields.indices where self[i] != nil {
      unsafe bytes.storeBytes(of: fields[i], toByteOffset: at, as: UInt64.self)
      at += 8
    }
    if let version { unsafe version.write(to: UnsafeMutableRawBufferPointer(rebasing: bytes[at...])) }
  }

  /// Reads a head, whose version is without text. Bytes that are none give an entry without attributes.
  init(_ bytes: RawSpan) {
    guard bytes.byteCount > 0 else { return }
    let flags: UInt8 = bytes.integer(at: 0)
    guard bytes.byteCount >= Self.byteCount(flags) else { return }
    var at = 1
    for i in fields.indices where flags & 1 << UInt8(i) != 0 {
      self[i] = bytes.integer(at: at) as UInt64
      at += 8
    }
    if flags & Self.versionFlag != 0, bytes.byteCount > at {
      version = VersionText(byteCount: bytes.integer(at: at))
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

  init(byteCount: UInt8) { self.byteCount = byteCount }

  /// `text`: of `VersionLimit.byteCount` at most.
  init(lending text: RawSpan) {
    byteCount = UInt8(text.byteCount)
    unsafe self.text = text.withUnsafeBytes { $0.baseAddress }
  }

  static func == (left: Self, right: Self) -> Bool { left.byteCount == right.byteCount && left.digest == right.digest }

  func write(to bytes: UnsafeMutableRawBufferPointer) {
    unsafe bytes[0] = byteCount
    guard let text = unsafe text, byteCount > 0 else { return }
    unsafe UnsafeMutableRawBufferPointer(rebasing: bytes[1...]).copyMemory(
      from: UnsafeRawBufferPointer(start: text, count: Int(byteCount)))
  }
}
