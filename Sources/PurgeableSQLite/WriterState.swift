// SPDX-License-Identifier: MIT
// What a writer knows of its database: how much is in it, what of it is on the disk, and what a transaction does to files.

#if SQLite
  /// The row that counts.
  struct Total: Equatable {
    var recordCount: Int64
    var byteCount: Int64

    var isPossible: Bool { (0..<1 << 48).contains(recordCount) && (0..<1 << 56).contains(byteCount) }

    static let missing = StoreFailure(
      code: StoreFailure.damageCode, call: "sqlite3_step", message: "the table of totals is empty")

    static func read(_ statement: Statement) throws(StoreFailure) -> Total? {
      guard try statement.next() else { return nil }
      defer { statement.reset() }
      return Total(recordCount: statement.number(0, in: -1...1 << 62), byteCount: statement.number(1, in: -1...1 << 62))
    }
  }

  extension StoreWriter {
    // MARK: What is beside the database

    static func companions(of folder: StoreFolder) -> [FileNumber?] {
      [folder.log, folder.sharedMemory].map { FileNumber(of: $0) }
    }

    /// nil: there is none.
    var sharedMemory: FileNumber? { companions[1] }

    /// Whether the names beside the database lead to the files that this connection has. Where somebody has removed them, what is
    /// committed is in a log without a name.
    var hasItsNames: Bool { Self.companions(of: folder) == companions }

    /// Brings what a log without a name has to the database, where nobody would find it. False where another process has begun
    /// another log: it goes on from what the database had, and what this log had beside is lost.
    func rescueLog() throws(StoreFailure) -> Bool {
      try folder.locked { () throws(StoreFailure) in
        let log = FileNumber(of: folder.log)
        // Who opens the database finds it; or who shares it has written it back.
        if log != nil && log == companions[0] || connection.logByteCount == 0 { return true }
        if folder.logByteCount > 0 { return false }
        try connection.checkpoint(cuts: true)
        return true
      }
    }

    // MARK: What it is in the midst of

    /// What of the changes that were written is on the disk.
    struct Disk {
      /// Files of values were made since the last time that all were brought to the disk.
      var hasNewFiles = false
      /// The names of the database's folders may not be on the disk.
      var hasNewFolder = true
      /// Whether all changes are on the disk.
      var isSynchronized = true
      /// Why that is not known. For good: the kernel has given up the pages that it could not write, and would say that all is
      /// well if it were asked again.
      var lost: StoreFailure?

      /// What fails otherwise is tried again.
      mutating func note(_ failure: StoreFailure) { if failure.isOfSynchronization { lost = failure } }
    }

    /// What a transaction does to files.
    struct Files {
      /// Of records that go: removed when the transaction is there.
      var removed: [Int64] = []
      /// Of records that come: removed where it fails.
      var made: [Int64] = []
    }
  }
#endif
