// SPDX-License-Identifier: MIT
// What caches of both kinds have in common when they are saved and restored. The public functions are declared by each of them.

import Glibc
import Synchronization

/// A cache that can be saved to a file (CacheFile.swift), and restored from it.
protocol FiledCache: AnyObject, Sendable {
  associatedtype Key: Hashable & Sendable & PurgeableValue
  associatedtype Value: Sendable

  /// For messages.
  static var kind: String { get }
  var name: String { get }
  var loads: LoadTable<Key> { get }
  var fileGate: FileGate { get }
  /// A longer record of a file could not be stored, where values are written as they are.
  var mostRecordBytes: Int { get }
  /// Another number after each change of what would be saved, and 0 where nothing ever was.
  var changeCount: Int { get }

  /// Writes all entries, the hottest first.
  func writeAll(
    to writer: inout CacheFileWriter, _ format: StoredFormat<Value>, _ steps: inout ProgressSteps, _ report: inout FileReport
  ) throws(PurgeableError)

  /// Stores what the file has, as long as there is room.
  func readAll(
    from reader: inout CacheFileReader, _ format: StoredFormat<Value>, _ overtaken: OvertakenKeys, _ steps: inout ProgressSteps,
    _ report: inout FileReport
  ) throws(PurgeableError)
}

/// How a file is made.
struct FileTerms: Sendable {
  var permissions: UInt16 = 0o600
  var isSynchronized = true
}

extension FiledCache {
  private func operation(_ call: String) -> String { "\(Self.kind) '\(name)'.\(call)" }

  /// Swift's runtime ends the program when it gets no memory for objects and arrays.
  private func checkMemory(_ byteCount: Int = 0, in call: String) throws(PurgeableError) {
    guard MemoryReserve.isThere(byteCount + MemoryReserve.ofObjects) else { throw PurgeableError.withoutMemory(in: call) }
  }

  // MARK: Saving

  func saveInTurn(
    to path: String, _ format: StoredFormat<Value>, _ terms: FileTerms, _ progress: ((Double) -> Bool)?
  ) throws(PurgeableError) -> FileReport {
    try checkMemory(in: "save")
    return try fileGate.run(operation("save")) { () throws(PurgeableError) in
      try fileGate.noting { () throws(PurgeableError) in try saveNow(to: path, format, terms, progress) }
    }
  }

  private func saveNow(
    to path: String, _ format: StoredFormat<Value>, _ terms: FileTerms, _ progress: ((Double) -> Bool)?
  ) throws(PurgeableError) -> FileReport {
    try checkMemory(in: "save")
    let (operation, count) = (operation("save"), changeCount)
    let header = FileHeader(
      created: WallTime.now, keyType: nameInFiles(Key.self), valueType: nameInFiles(Value.self),
      format: UInt32(format.version))
    var writer = try CacheFileWriter.make(path, header, permissions: terms.permissions, operation: operation)
    var report = FileReport()
    var steps = ProgressSteps(progress, operation)
    try writeAll(to: &writer, format, &steps, &report)
    try steps.end()
    report.byteCount = try writer.place(isSynchronized: terms.isSynchronized)
    fileGate.noteFile(path, has: SavedState(changeCount: count, format: header.format))
    return report
  }

  // MARK: Saving at intervals

  func setAutosave(
    to path: String, every interval: Duration, _ format: StoredFormat<Value>, _ parts: borrowing LazyParts,
    _ handler: (@Sendable (SaveEvent) -> Void)?
  ) throws(PurgeableError) {
    try checkMemory(in: "setAutosave")
    let operation = operation("setAutosave")
    try LimitCheck.time(interval, "interval", in: operation)
    _ = try CacheFileWriter.split(path, operation: operation)
    let gate = fileGate
    gate.noteAutosaves(to: path)
    let saves = parts.saves
    // What has ended ends when the change is over: the program's closures may change the autosave once more.
    let (isRunning, ended) = gate.changeAutosave { number in
      let ended = saves.set(every: interval) { [weak self] _ in
        gate.run(autosave: number) {
          self?.saveIfChanged(to: path, format, handler)
        }
      }
      return saves.isRunning ? (true, ended) : (false, ended + saves.unset())
    }
    withExtendedLifetime(ended) {}
    if !isRunning { throw Self.noThread(operation) }
  }

  /// In turn.
  private func saveIfChanged(
    to path: String, _ format: StoredFormat<Value>, _ handler: ((SaveEvent) -> Void)?
  ) {
    let (process, count) = (getpid(), changeCount)
    guard count != 0, !fileGate.isKnown(path, toHave: SavedState(changeCount: count, format: UInt32(format.version))) else {
      return
    }
    handler?(.willSave)
    // A child that a closure of the program's has forked saves nothing.
    guard getpid() == process else { return }
    do throws(PurgeableError) {
      let report = try fileGate.noting { () throws(PurgeableError) in try saveNow(to: path, format, FileTerms(), nil) }
      handler?(.didSave(report))
    } catch {
      if getpid() == process { handler?(.failed(error)) }
    }
  }

  func removeAutosave(_ parts: borrowing LazyParts) {
    guard let saves = parts.knownSaves else { return }
    // As above.
    let ended = fileGate.changeAutosave { _ in saves.unset() }
    withExtendedLifetime(ended) {}
  }

  // MARK: Restoring

  func restoreInTurn(
    from path: String, _ format: StoredFormat<Value>, _ progress: ((Double) -> Bool)?
  ) throws(PurgeableError) -> FileReport {
    try checkMemory(CacheFileReader.Batch.byteCount, in: "restore")
    let operation = operation("restore")
    return try fileGate.run(operation) { () throws(PurgeableError) in
      // In other bytes a value may be longer than it is in memory.
      let mostBytes = format.isPlain ? mostRecordBytes : .max
      guard var reader = try CacheFileReader.open(path, mostBytes: mostBytes, operation: operation) else {
        return FileReport()
      }
      try check(reader.header, format, path, operation)
      guard let overtaken = OvertakenKeys(forEntries: reader.footer.recordCount) else {
        throw PurgeableError.withoutMemory(in: operation)
      }
      var report = FileReport()
      report.byteCount = reader.footer.fileByteCount
      let isFirst = changeCount == 0
      var steps = ProgressSteps(progress, operation)
      try loads.whileRestoring(overtaken) { () throws(PurgeableError) in
        try readAll(from: &reader, format, overtaken, &steps, &report)
      }
      report.noteLeftOut(of: reader.footer.recordCount)
      for _ in 0..<reader.damageCount { report.skip("a place in the file", because: "it is damaged, and no entry can be told") }
      try steps.end()
      // All of it is in memory, and nothing else.
      if isFirst, report.entryCount == reader.footer.recordCount, changeCount == report.entryCount {
        fileGate.noteFile(path, has: SavedState(changeCount: report.entryCount, format: reader.header.format))
      }
      return report
    }
  }

  private func check(
    _ header: FileHeader, _ format: StoredFormat<Value>, _ path: String, _ operation: String
  ) throws(PurgeableError) {
    func refusal(_ what: String, _ its: String, _ ours: String) -> PurgeableError {
      PurgeableError(.invalidFile, in: operation, explanation: "\(path) has \(what) of type \(its), not \(ours)")
    }
    let (key, value) = (nameInFiles(Key.self), nameInFiles(Value.self))
    if header.keyType != key { throw refusal("keys", header.keyType, key) }
    // Else it is for the format's closure to tell.
    if header.format == 0, format.isPlain, header.valueType != value { throw refusal("values", header.valueType, value) }
  }

  // MARK: For tasks

  nonisolated(nonsending) func inBackground(
    _ call: String, _ body: @escaping @Sendable (Self, @escaping @Sendable () -> Bool) throws(PurgeableError) -> FileReport
  ) async throws(PurgeableError) -> FileReport {
    let result = await BackgroundCall.run { [self] isCancelled -> Result<FileReport, PurgeableError> in
      do throws(PurgeableError) { return .success(try body(self, isCancelled)) } catch { return .failure(error) }
    }
    guard let result else { throw Self.noThread(operation(call)) }
    return try result.get()
  }

  private static func noThread(_ operation: String) -> PurgeableError {
    PurgeableError(
      .systemCallFailed(call: "pthread_create"), in: operation,
      explanation: "no thread can be made; raise the process's limits")
  }
}

/// Calls a program's closure about once a mebibyte, and where much comes to nothing that is written.
struct ProgressSteps {
  private let progress: ((Double) -> Bool)?
  private let operation: String
  private var next = 0
  private var quietCount = 0
  private static let mostQuiet = 10_000

  init(_ progress: ((Double) -> Bool)?, _ operation: String) { (self.progress, self.operation) = (progress, operation) }

  /// `byteCount`: written so far; `Int.max` where each call is a mebibyte.
  mutating func note(_ part: Double, at byteCount: Int) throws(PurgeableError) {
    quietCount += 1
    guard byteCount >= next || quietCount == Self.mostQuiet else { return }
    quietCount = 0
    if byteCount < .max { next = byteCount + 1 << 20 }
    try tell(min(1, part))
  }

  func end() throws(PurgeableError) { try tell(1) }

  private func tell(_ part: Double) throws(PurgeableError) {
    guard let progress, !progress(part) else { return }
    throw PurgeableError(.cancelled, in: operation, explanation: "the program wanted no more of it")
  }
}
