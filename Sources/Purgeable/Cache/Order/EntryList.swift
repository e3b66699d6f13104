// SPDX-License-Identifier: MIT
// A list of a shard's entries, linked through the positions of their slots: 8 bytes for each slot, in use or not.
//
//     speculative --> ... --> normal --> ... --> pinned --> ...        one ring for each priority, closed by a link of its own

/// Its allocation may fail: `resize` tells.
struct EntryList: ~Copyable {
  struct Links {
    var previous: UInt32 = 0
    var next: UInt32 = 0
  }

  private static let ringCount = EntryPriority.allCases.count

  /// By position; leftovers where no entry is. Behind them the links that close the rings.
  private var links = BookkeepingArray<Links>()
  private var slotCount = 0
  /// As `EntryOrder.passed`; or the link behind which that ring begins. No entry comes before it.
  var passed: UInt32?

  var byteCount: Int { links.byteCount }

  /// As `EntryOrder.resize`.
  mutating func resize(slotCount: Int, _ carry: (UInt32) -> UInt32?) -> Bool {
    var resized = EntryList()
    guard resized.links.make(slotCount + Self.ringCount) else { return false }
    resized.slotCount = slotCount
    for ring in 0..<Self.ringCount {
      let end = resized.end(ring)
      resized[end] = Links(previous: end, next: end)
      if links.isEmpty { continue }
      var position = self[self.end(ring)].next
      while position != self.end(ring) {
        guard let new = carry(position) else { return false }
        resized.append(new, ring)
        position = self[position].next
      }
    }
    self = resized
    return true
  }

  /// nil: the first.
  func next(after position: UInt32?) -> UInt32? {
    if links.isEmpty { return nil }
    var next = position.map { self[$0].next } ?? self[end(0)].next
    while next >= slotCount {
      let ring = Int(next) - slotCount + 1
      if ring == Self.ringCount { return nil }
      next = self[end(ring)].next
    }
    return next
  }

  mutating func append(_ position: UInt32, _ priority: EntryPriority) { append(position, Self.ring(priority)) }

  mutating func prepend(_ position: UInt32, _ priority: EntryPriority) {
    passed = nil
    let end = end(Self.ring(priority))
    let first = self[end].next
    self[position] = Links(previous: end, next: first)
    self[first].previous = position
    self[end].next = position
  }

  mutating func remove(_ position: UInt32) {
    let its = self[position]
    if passed == position { passed = its.previous }
    self[its.previous].next = its.next
    self[its.next].previous = its.previous
  }

  mutating func moveToEnd(_ position: UInt32, _ priority: EntryPriority) {
    if passed == position { passed = self[position].previous }
    if self[end(Self.ring(priority))].previous == position { return }
    remove(position)
    append(position, priority)
  }

  private mutating func append(_ position: UInt32, _ ring: Int) {
    if ring == 0 { passed = nil }
    let end = end(ring)
    let last = self[end].previous
    self[position] = Links(previous: last, next: end)
    self[last].next = position
    self[end].previous = position
  }

  private func end(_ ring: Int) -> UInt32 { UInt32(truncatingIfNeeded: slotCount + ring) }

  private static func ring(_ priority: EntryPriority) -> Int {
    switch priority {
    case .speculative: 0
    case .normal: 1
    case .pinned: 2
    }
  }

  private subscript(position: UInt32) -> Links {
    get { links[Int(position)] }
    set { links[Int(position)] = newValue }
  }
}
