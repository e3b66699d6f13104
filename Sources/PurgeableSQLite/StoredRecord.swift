// SPDX-License-Identifier: MIT
// What a store keeps of a value, and what is to be done with it.

#if SQLite
  import CPurgeable
  import CPurgeableFiles
  import Purgeable

  struct StoredRecord: Sendable {
    var value: [UInt8]
    /// `StoredFormat.version`.
    var format: UInt32
    /// nil for the number of the value's bytes.
    var cost: Int64?
    var version: String?
    var made: Int64
    /// When it was made, where that is all that is known.
    var used: Int64
    /// nil for no bound.
    var deadline: Int64?
    var idle: Int64?

    /// Its life has begun anew, which is to be written.
    var hasBegunAnew = false
    /// Of a record that was read: the row that it is written in place of, if that is still there.
    var row: ReadRow?

    /// A clock that was set back gives no record a longer life than it began with.
    mutating func beginAnew(ifAheadOf now: Int64) {
      guard made > now && deadline != nil || used > now && idle != nil else { return }
      if made > now { (deadline, made) = (deadline.map { now + max(0, $0 - made) }, now) }
      (used, hasBegunAnew) = (min(used, now), true)
    }

    var expires: Int64? {
      guard let idle else { return deadline }
      let (end, isFar) = used.addingReportingOverflow(idle)
      return min(deadline ?? .max, isFar ? .max : end)
    }

    /// What a record counts for in limits: key and value, and what the tables and indexes take for a row.
    static func size(_ key: [UInt8], _ valueByteCount: Int) -> Int { key.count + valueByteCount + overhead }
    static let overhead = 100

    /// Whether a value of so many bytes may be copied: Swift's runtime ends the program where it gets no memory for an array, and
    /// a group's limit where the copy, and the value made of it, exceed that.
    static func hasMemory(for byteCount: Int) -> Bool {
      if byteCount < 64 << 10 { return true }
      return purgeable_bookkeeping_is_available(byteCount) && (byteCount < 8 << 20 || ProcessMemory.hasRoom(for: 2 * byteCount))
    }

    /// Of all that must not change under a record's feet. Its length is in it, since a file may be cut.
    func sum(_ key: [UInt8]) -> Int64 {
      var sum = Self.sum(of: key, after: 0)
      let times = [deadline, idle].map { UInt64(bitPattern: $0 ?? .min) }
      for number in [UInt64(format), UInt64(bitPattern: cost ?? .min), UInt64(value.count)] + times {
        sum = unsafe withUnsafeBytes(of: number.littleEndian) { unsafe purgeable__crc32c(sum, $0.baseAddress!, $0.count) }
      }
      if let version { sum = Self.sum(of: Array(version.utf8), after: sum) }
      return Int64(Self.sum(of: value, after: sum))
    }

    fileprivate static func sum(of bytes: [UInt8], after sum: UInt32) -> UInt32 {
      unsafe bytes.withUnsafeBytes { bytes in
        guard let start = bytes.baseAddress else { return sum }
        return unsafe purgeable__crc32c(sum, start, bytes.count)
      }
    }
  }

  /// What the types of keys and of values are called; nil: any will do.
  struct StoreKinds: Sendable {
    var keys: String?
    var values: String?

    /// As the database has it: with a sum, so that a changed bit is no other type.
    private static func marked(_ type: String, of what: String) -> String {
      let text = "\(what) \(type)"
      return "\(type) \(String(StoredRecord.sum(of: Array(text.utf8), after: 0), radix: 16))"
    }

    /// What a database calls the type of its keys, if that is undamaged.
    static func ofKeys(in connection: Connection) throws(StoreFailure) -> String? { try undamaged("keys", in: connection) }

    /// nil where a database does not say it, or where that is damaged.
    static func undamaged(_ what: String, in connection: Connection) throws(StoreFailure) -> String? {
      try said(of: what, in: connection).flatMap { name(in: $0, of: what) }
    }

    static func say(_ type: String, of what: String, in connection: Connection) throws(StoreFailure) {
      let write = try connection.prepare(Schema.writeKind)
      write.bind(1, what)
      write.bind(2, marked(type, of: what))
      try write.run()
    }

    private static func said(of what: String, in connection: Connection) throws(StoreFailure) -> String? {
      let read = try connection.prepare(Schema.readKind)
      read.bind(1, what)
      var its: String?
      try read.run { its = read.text(0) }
      return its
    }

    private static func name(in marked: String, of what: String) -> String? {
      let name = marked.split(separator: " ").dropLast().joined(separator: " ")
      return marked == Self.marked(name, of: what) ? name : nil
    }

    /// What of it a database does not say yet. Throws where the database says something else.
    func unsaid(in connection: Connection) throws(StoreFailure) -> [(what: String, type: String)] {
      var unsaid: [(String, String)] = []
      for (what, type) in [("keys", keys), ("values", values)] {
        guard let type else { continue }
        guard let its = try Self.said(of: what, in: connection) else {
          unsaid.append((what, type))
          continue
        }
        if its != Self.marked(type, of: what) {
          guard let name = Self.name(in: its, of: what) else {
            throw StoreFailure(code: StoreFailure.damageCode, call: "sqlite3_step", message: "the type of \(what) is damaged")
          }
          throw StoreFailure(
            isRefused: true, call: "sqlite3_step",
            message: "the database has \(what) of type \(name), not \(type): give the store another name, or remove its folder")
        }
      }
      return unsaid
    }
  }

  /// What waits to be written for a key.
  enum Change: Sendable {
    /// Indirect: a dictionary has thousands of these, and most functions hand them on.
    indirect case put(StoredRecord)
    case removal
  }

  /// A key's bytes, hashed once.
  struct StoreKey: Hashable, Sendable {
    /// A longer one has no record.
    static let mostBytes = 1 << 20

    let bytes: [UInt8]
    fileprivate let number: Int

    init(_ bytes: [UInt8]) {
      var hasher = Hasher()
      unsafe bytes.withUnsafeBytes { unsafe hasher.combine(bytes: $0) }
      (self.bytes, number) = (bytes, hasher.finalize())
    }

    /// Throws where equal keys of a type may have different bytes.
    static func check<Key>(_ type: Key.Type, in operation: String) throws(PurgeableError) {
      guard KeyPadding.isPossible(in: type) else { return }
      throw PurgeableError(
        .invalidArgument("cache"), in: operation,
        explanation: "equal keys of type \(type) may have different bytes, by padding or two zeros, and so two records: "
          + "take keys that are a String, an integer, or a struct of integers without gaps")
    }

    func hash(into hasher: inout Hasher) { hasher.combine(number) }
    static func == (a: StoreKey, b: StoreKey) -> Bool { a.number == b.number && a.bytes == b.bytes }
  }

  /// What waits to be written, the last change of each key.
  struct Changes: Sendable {
    /// All that the database has goes first.
    private(set) var isCleared = false
    private(set) var byKey: [StoreKey: Change] = [:]
    /// Of records that are to be put, and of removals.
    private(set) var valueBytes = 0
    private(set) var removalBytes = 0

    /// `capacity`: how many there may soon be.
    init(capacity: Int = 0) { byKey.reserveCapacity(capacity) }

    var byteCount: Int { valueBytes + removalBytes }
    var isEmpty: Bool { byKey.isEmpty && !isCleared }
    var putCount: Int { byKey.values.count { if case .put = $0 { true } else { false } } }

    enum Answer {
      case put(StoredRecord)
      /// There is nothing, whatever the database has.
      case nothing
      /// The database knows.
      case unchanged
    }

    func answer(_ key: StoreKey) -> Answer {
      switch byKey[key] {
      case .put(let record): .put(record)
      case .removal: .nothing
      case nil: isCleared ? .nothing : .unchanged
      }
    }

    mutating func set(_ change: Change, _ key: StoreKey) {
      count(change, key.bytes, 1)
      if let old = byKey.updateValue(change, forKey: key) { count(old, key.bytes, -1) }
    }

    private mutating func count(_ change: Change, _ key: [UInt8], _ sign: Int) {
      switch change {
      case .put(let record): valueBytes += sign * StoredRecord.size(key, record.value.count)
      case .removal: removalBytes += sign * StoredRecord.size(key, 0)
      }
    }

    mutating func clear() {
      (byKey, valueBytes, removalBytes) = ([:], 0, 0)
      isCleared = true
    }

    /// Takes what came before these.
    mutating func follow(_ earlier: Changes) {
      if isCleared { return }
      isCleared = earlier.isCleared
      for (key, change) in earlier.byKey where byKey[key] == nil { set(change, key) }
    }

    /// Gives up what is in the database as well. Whether there was any.
    @discardableResult
    mutating func forgetRewritings() -> Bool {
      let before = byKey.count
      for (key, change) in byKey {
        guard case .put(let record) = change, record.row != nil else { continue }
        byKey[key] = nil
        count(change, key.bytes, -1)
      }
      return byKey.count < before
    }

    /// Gives values up, and keeps what makes sure that older ones are not returned. Returns how many.
    @discardableResult
    mutating func forgetValues(where isGivenUp: (StoredRecord) -> Bool = { _ in true }) -> Int {
      var count = 0
      for (key, change) in byKey {
        guard case .put(let record) = change, isGivenUp(record) else { continue }
        set(.removal, key)
        count += 1
      }
      return count
    }
  }

  /// A number for each key that is another one after each change: keys whose hashes agree share one, and then one counts as
  /// changed that is not.
  struct ChangeNumbers {
    private var numbers = [UInt32](repeating: 0, count: 1 << 16)

    private func slot(_ key: StoreKey) -> Int { key.number & (numbers.count - 1) }

    subscript(key: StoreKey) -> UInt32 { numbers[slot(key)] }
    /// Gives a key its next number. False, and nothing changes, where it has another one than `number`.
    mutating func raise(_ key: StoreKey, ifStill number: UInt32?) -> Bool {
      let slot = slot(key)
      if let number, numbers[slot] != number { return false }
      numbers[slot] &+= 1
      return true
    }
    mutating func raiseAll() { for slot in numbers.indices { numbers[slot] &+= 1 } }
  }
#endif
