// SPDX-License-Identifier: MIT
// Orders that name the entry that goes, one by one; S3-FIFO names slabs (S3FIFOOrder.swift), and what its queues hold is in order
// already.
//
// To add one: a file with a type that conforms, a case of `EvictionOrder`, and a row in the table below.

/// The order of one shard's entries, and its state. Used under the shard's mutex.
///
/// Speculative entries come before all others, pinned ones, which the caller does not evict, behind them.
///
/// An entry is known by its position, the number of its slot in the present table of the index. It keeps its position while it
/// moves within the heap and while its value is replaced; a resized table gives new ones (`resize`). Nothing here may allocate
/// but `resize`.
protocol EntryOrder: AnyObject {
  /// Bookkeeping in ordinary memory.
  var byteCount: Int { get }

  /// The table gets so many slots: goes through all entries in order and has each carried over, which answers its new position;
  /// their order stays. False, with nothing changed, when an entry was not carried or there is no memory. Called for the first
  /// table too.
  func resize(slotCount: Int, _ carry: (UInt32) -> UInt32?) -> Bool
  /// An entry came.
  func entered(_ position: UInt32, as priority: EntryPriority)
  /// An entry came from a file: it goes before all others of its priority.
  func restored(_ position: UInt32, as priority: EntryPriority)
  /// An entry was hit, or another value is stored under its key. It has the same priority as before.
  func used(_ position: UInt32, as priority: EntryPriority)
  /// An entry goes behind all others of a priority: that is its priority now, or it was its turn and the program keeps it
  /// (`shouldEvict`), and it goes behind the normal ones.
  func putOff(_ position: UInt32, as priority: EntryPriority)
  func left(_ position: UInt32)
  /// All entries have left. Gives its memory back.
  func removeAll()
  /// The entry that goes before all others, or that goes after another one; nil when there is none. Changes nothing: walks and
  /// checks ask, too.
  func next(after position: UInt32?) -> UInt32?
  /// The last of the first entries that a limit on costs passes over, because they cost nothing; nil where it begins with the
  /// first of all. A store that is `used` may have given an entry another cost: where it keeps its place, this begins anew.
  var passed: UInt32? { get set }
}

extension EvictionOrder {
  /// The table: a fresh order of a shard; nil where slabs are named.
  func makeEntryOrder() -> (any EntryOrder)? {
    switch self {
    case .s3FIFO: nil
    case .lru: LRUOrder()
    }
  }
}
