// SPDX-License-Identifier: MIT
// Exactly least recently used.

/// The entries in the order of their last use.
final class LRUOrder: EntryOrder {
  private var list = EntryList()

  var byteCount: Int { list.byteCount }
  var passed: UInt32? {
    get { list.passed }
    set { list.passed = newValue }
  }

  func resize(slotCount: Int, _ carry: (UInt32) -> UInt32?) -> Bool { list.resize(slotCount: slotCount, carry) }
  func entered(_ position: UInt32, as priority: EntryPriority) { list.append(position, priority) }
  func restored(_ position: UInt32, as priority: EntryPriority) { list.prepend(position, priority) }
  func used(_ position: UInt32, as priority: EntryPriority) { list.moveToEnd(position, priority) }
  func putOff(_ position: UInt32, as priority: EntryPriority) { list.moveToEnd(position, priority) }
  func left(_ position: UInt32) { list.remove(position) }
  func removeAll() { list = EntryList() }
  func next(after position: UInt32?) -> UInt32? { list.next(after: position) }
}
