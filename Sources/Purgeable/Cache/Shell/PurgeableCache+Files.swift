// SPDX-License-Identifier: MIT
// Saving at intervals, and what saving and restoring go by (PurgeableCache+Save.swift, PurgeableCache+Restore.swift).

import Synchronization

extension PurgeableCache: FiledCache where Key: PurgeableValue {
  static var kind: String { "PurgeableCache" }
  var fileGate: FileGate { engine.lazy.files }
  var changeCount: Int { engine.changeCount }
  var mostRecordBytes: Int { min(Int(UInt32.max), engine.base.limits.bytes.load(ordering: .relaxed)) }
}

extension PurgeableCache where Key: PurgeableValue {
  /// Saves after each interval in which an entry was stored, replaced, has left or got a priority, in place of an earlier
  /// autosave.
  ///
  /// Each as `save(to:format:)`, on a thread of the cache's own; a cache in which nothing was ever stored is not saved, nor one
  /// that is as a save to the same path has left it, or a restore of all that was in the file. One save or restore at a time:
  /// what is due meanwhile waits. After one that failed the next interval tries again. Does not keep the cache alive, and saves
  /// nothing at its end: for that call `save(to:)`. A forked child saves nothing by itself until it sets an autosave.
  ///
  ///     let pages = try PurgeableCache<String, [UInt8]>()
  ///     try pages.setAutosave(to: "/var/cache/service/pages", every: .seconds(60)) {
  ///       if case .failed(let error) = $0 { print(error) }
  ///     }
  ///
  /// - Parameters:
  ///   - path: as of `save(to:)`.
  ///   - interval: by the machine's clock. The first save comes after one.
  ///   - handler: hears of these saves on their thread, each before the next begins. Within it, this cache's `save` and `restore`
  ///     throw `busy`.
  /// - Throws: `PurgeableError` of kind `invalidArgument` for an interval of 0 or less and for a path that names no file; the
  ///   earlier autosave stays then, as for `outOfMemory`. `systemCallFailed` where no thread can be made: there is none then. Any
  ///   thread. Waits for a save of the earlier one, as `removeAutosave()`. A directory that is missing is told with each save,
  ///   and may come later.
  public func setAutosave(
    to path: String, every interval: Duration, format: StoredFormat<Value> = .purgeableBytes,
    handler: (@Sendable (SaveEvent) -> Void)? = nil
  ) throws(PurgeableError) {
    try setAutosave(to: path, every: interval, format, engine.lazy, handler)
  }

  /// Ends the saves at intervals. Waits for one that is at work, and its handler, unless that handler calls this.
  /// Any thread.
  public func removeAutosave() { removeAutosave(engine.lazy) }

  /// Why the last save failed, `save(to:)` or one of `setAutosave`; nil where it did not, and where there was none.
  public var lastSaveError: PurgeableError? { engine.lazy.knownFiles?.lastFailure }
}
