// SPDX-License-Identifier: MIT
// `purgeablectl store`: what is in a cache's database on the disk, whether it is sound, and less of it.

import Purgeable
import ToolSupport

#if SQLite
  import PurgeableSQLite
#endif

extension Command {
  #if SQLite
    private static let isBuiltIn = true
  #else
    private static let isBuiltIn = false
  #endif

  package static let store = Command(
    name: "store",
    summary: "Show, check and trim the database behind a cache.",
    description: """
      FILE is the folder of a PurgeableStore, or the database in it; programs may be at work on it meanwhile. Without options:
      how many records there are, when they were used last, and what they take on the disk. The exit status is 1 where --check
      finds something wrong: never a wrong value for the programs that use the store, but a miss. Most of it goes when it is asked
      for, the rest when its key is stored anew, or with --trim 0 where the tables can still be read. A store whose folder is
      removed is made anew.

      Works where the program was built with the trait SQLite\(isBuiltIn ? "" : "; this one was built without it").
      """,
    operands: ["FILE"],
    options: [
      Option("list", value: "COUNT", "List the records that were used last."),
      Option("check", "Read everything: SQLite's own check, and the checksum of each record."),
      Option("trim", value: "SIZE", "Remove what has expired, then the least recently used, until SIZE is left (0: all of it)."),
      Option("json", "Print one JSON object."),
    ]
  ) { arguments in
    let options = try StoreOptions(arguments)
    #if SQLite
      let report = try StoreReport(options)
      print(arguments.has("json") ? report.json.text : report.table)
      return report.check.map { $0.faultCount > 0 } ?? false ? 1 : 0
    #else
      throw ToolFailure(
        "\"\(options.path)\" cannot be opened: this program was built without SQLite; install its header "
          + "(Debian: libsqlite3-dev), and build with `swift build -c release --traits SQLite`")
    #endif
  }
}

struct StoreOptions: Equatable, Sendable {
  let path: String
  let listCount: Int
  let checks: Bool
  /// nil: nothing goes.
  let trimBytes: Int?

  init(_ arguments: Arguments) throws(UsageError) {
    guard let path = arguments.operands.first else { throw UsageError("a store is missing; name its folder") }
    self.path = path
    listCount = Int(clamping: try arguments.number("list") ?? 0)
    checks = arguments.has("check")
    trimBytes = try arguments.bytes("trim").map { Int(clamping: $0) }
  }
}

#if SQLite
  /// What a store came to, as tables and as JSON.
  struct StoreReport {
    let folder: String
    /// How many records were removed; nil: none were to be.
    let trimmedCount: Int?
    let check: StoreInspection.Check?
    /// nil where damage does not let anything be counted.
    let summary: StoreInspection.Summary?
    /// nil: not asked for.
    let records: [StoreInspection.Record]?
    private let keyType: String?
    private let now = WallTime.now

    init(_ options: StoreOptions) throws {
      let store = try StoreInspection(options.path)
      (folder, keyType) = (store.folder, store.keyType)
      trimmedCount = try options.trimBytes.map { try store.trim(toBytes: $0) }
      var progress = Progress()
      defer { progress.end() }
      // Before anything is counted, which damage may make impossible.
      let check =
        options.checks
        ? try store.check { progress.show("checking", share: nil, "\(Figures.count(UInt64($0))) records") } : nil
      self.check = check
      let isDamaged = check.map { $0.faultCount > 0 } ?? false
      summary = isDamaged ? try? store.summary() : try store.summary()
      let listed = options.listCount > 0 ? options.listCount : nil
      records = try listed.map { isDamaged ? (try? store.records(most: $0)) ?? [] : try store.records(most: $0) }
    }

    // MARK: Tables

    private static let ageNames = ["an hour", "a day", "a week", "a month"]

    private static func count(_ number: Int) -> String { Figures.count(UInt64(max(0, number))) }
    private static func size(_ bytes: Int) -> String { ByteSize(UInt64(max(0, bytes))).description }

    /// A key of a type of integers.
    static func number(_ key: [UInt8], _ type: String?) -> JSON? {
      let bits = key.reversed().reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
      return switch (type, key.count) {
      case ("Int8", 1): .integer(Int64(Int8(truncatingIfNeeded: bits)))
      case ("Int16", 2): .integer(Int64(Int16(truncatingIfNeeded: bits)))
      case ("Int32", 4): .integer(Int64(Int32(truncatingIfNeeded: bits)))
      case ("Int", 8), ("Int64", 8): .integer(Int64(bitPattern: bits))
      case ("UInt8", 1), ("UInt16", 2), ("UInt32", 4), ("UInt", 8), ("UInt64", 8): .unsigned(bits)
      default: nil
      }
    }

    private func text(ofKey key: [UInt8]) -> String { Self.number(key, keyType)?.text ?? Self.text(key) }

    /// As people read it: text, else bytes.
    static func text(_ key: [UInt8], most: Int = 60) -> String {
      if let text = String(validating: key, as: UTF8.self), text.unicodeScalars.allSatisfy({ $0.properties.isPrintable }) {
        let scalars = text.unicodeScalars
        return scalars.count <= most ? text : String(String.UnicodeScalarView(scalars.prefix(most - 1))) + "…"
      }
      return "0x" + digits(key.prefix(most / 2 - 1)) + (key.count > most / 2 - 1 ? "…" : "")
    }

    private static func digits(_ bytes: some Sequence<UInt8>) -> String {
      bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }

    private var summaryRows: [[String]] {
      guard let summary else { return [["records", "cannot be counted, for damage"]] }
      var rows = [
        ["records", "\(Self.count(summary.recordCount)), \(Self.size(summary.byteCount)) (keys, values, and 100 bytes each)"]
      ]
      if summary.fileCount > 0 {
        rows.append(["in files", "\(Self.count(summary.fileCount)) of them, \(Self.size(summary.fileByteCount))"])
      }
      if summary.expiredCount > 0 {
        rows.append(["expired", "\(Self.count(summary.expiredCount)), which go when a program opens the store, or with --trim"])
      }
      let within = zip(Self.ageNames, summary.usedCounts).filter { $0.1 > 0 }.map { "within \($0.0): \(Self.count($0.1))" }
      let longer = summary.usedCounts.last.map { $0 > 0 ? ["before: \(Self.count($0))"] : [] } ?? []
      if summary.recordCount > 0 { rows.append(["last used", (within + longer).joined(separator: ", ")]) }
      rows.append([
        "on the disk",
        "database \(Self.size(summary.databaseByteCount)) (free: \(Self.size(summary.freeByteCount))), "
          + "log \(Self.size(summary.logByteCount))",
      ])
      if summary.asideCount > 0 {
        rows.append(["put aside", "\(summary.asideCount) damaged, which go when a program that has the store open is idle"])
      }
      return rows
    }

    var table: String {
      var rows = summaryRows
      if let trimmedCount { rows.append(["removed", "\(Self.count(trimmedCount)) records"]) }
      if let check {
        let faults =
          check.faultCount == 0 ? "nothing wrong" : "\(Self.count(check.faultCount)) FAULT\(check.faultCount == 1 ? "" : "S")"
        rows.append(["checked", "\(Self.count(check.recordCount)) records, \(Self.size(check.byteCount)): \(faults)"])
      }
      let width = columnWidths(rows)[0]
      var lines = [folder] + rows.map { "  \($0[0].padded(to: width))  \($0[1])" }
      for fault in check?.faults ?? [] {
        lines.append("  \(fault.key.map { "\(text(ofKey: $0)): " } ?? "")\(Self.text(Array(fault.explanation.utf8), most: 200))")
      }
      if let check, check.faultCount > check.faults.count {
        lines.append("  and \(Self.count(check.faultCount - check.faults.count)) more")
      }
      if let records, !records.isEmpty { lines += [""] + list(records) }
      return lines.joined(separator: "\n")
    }

    private func list(_ records: [StoreInspection.Record]) -> [String] {
      var rows = [["key", "bytes", "cost", "version", "stored", "used", "expires in"]]
      for record in records {
        rows.append([
          text(ofKey: record.key), Self.count(record.valueByteCount) + (record.isFile ? " (file)" : ""),
          record.cost.map(String.init) ?? "", record.version.map { Self.text(Array($0.utf8)) } ?? "", age(record.made) + " ago",
          age(record.used) + " ago",
          record.expires.map { $0 <= now ? "expired" : age(2 * now - $0) } ?? "never",
        ])
      }
      return tableLines(rows)
    }

    /// "3 s", "2 h", "40 days".
    private func age(_ moment: Int64) -> String {
      let seconds = max(0, now - moment) / 1_000_000_000
      for (unit, length) in [("days", Int64(2 * 86_400)), ("h", 2 * 3600), ("min", 120)] where seconds >= length {
        return "\(seconds * 2 / length) \(unit)"
      }
      return "\(seconds) s"
    }

    // MARK: JSON

    private static func number(_ number: Int) -> JSON { .integer(Int64(number)) }

    private var summaryMembers: [(name: String, value: JSON)] {
      guard let summary else { return [("records", .null)] }
      return [
        ("records", Self.number(summary.recordCount)), ("bytes", Self.number(summary.byteCount)),
        ("fileRecords", Self.number(summary.fileCount)), ("fileBytes", Self.number(summary.fileByteCount)),
        ("expired", Self.number(summary.expiredCount)),
        (
          "lastUsed",
          .object(
            zip(["hour", "day", "week", "month", "before"], summary.usedCounts).map { (name: $0, value: Self.number($1)) })
        ), ("databaseBytes", Self.number(summary.databaseByteCount)), ("freeBytes", Self.number(summary.freeByteCount)),
        ("logBytes", Self.number(summary.logByteCount)), ("putAside", Self.number(summary.asideCount)),
      ]
    }

    var json: JSON {
      var members: [(name: String, value: JSON)] = [("store", .string(folder))] + summaryMembers
      if let trimmedCount { members.append(("removed", Self.number(trimmedCount))) }
      if let check {
        let faults = check.faults.map { fault in
          JSON.object([fault.key.map(member) ?? ("key", .null), ("explanation", .string(fault.explanation))])
        }
        members.append(
          (
            "check",
            .object([
              ("records", Self.number(check.recordCount)), ("faultCount", Self.number(check.faultCount)),
              ("faults", .array(faults)),
            ])
          ))
      }
      if let records { members.append(("list", .array(records.map(json)))) }
      return .object(members)
    }

    /// The whole key: what is neither a number nor text by its bytes.
    private func member(_ key: [UInt8]) -> (name: String, value: JSON) {
      if let number = Self.number(key, keyType) { return ("key", number) }
      if let text = String(validating: key, as: UTF8.self) { return ("key", .string(text)) }
      return ("keyHex", .string(Self.digits(key)))
    }

    private func json(_ record: StoreInspection.Record) -> JSON {
      func seconds(_ moment: Int64) -> JSON { .number(Double(moment) / 1e9) }
      return .object([
        member(record.key), ("bytes", Self.number(record.valueByteCount)), ("isFile", .bool(record.isFile)),
        ("cost", record.cost.map(Self.number) ?? .null), ("version", record.version.map { .string($0) } ?? .null),
        ("stored", seconds(record.made)), ("used", seconds(record.used)), ("expires", record.expires.map(seconds) ?? .null),
      ])
    }
  }

  extension Unicode.Scalar.Properties {
    /// Neither a control nor a part of what is no text.
    fileprivate var isPrintable: Bool {
      switch generalCategory {
      case .control, .format, .surrogate, .privateUse, .unassigned, .lineSeparator, .paragraphSeparator: false
      default: true
      }
    }
  }
#endif
