// SPDX-License-Identifier: MIT
// A list of a shard's entries, linked through the positions of their slots: 8 bytes for each slot, in use or not.
//
//     first --> position <--> position <--> ... <--> position <-- last

/// Its allocation may fail: `resize` tells.
struct EntryList: ~Copyable {
  struct Links {
    var previous = EntryList.none
    var next = EntryList.none
  }

  /// Beyond every position.
  private static let none = UInt32.max

  /// By position. Leftovers where no entry is.
  private var links: BookkeepingArray<Links>?
  private var first = EntryList.none
  private var last = EntryList.none

  init() {}

  var byteCount: Int {
    switch links {
    case .some(let links): links.byteCount
    case nil: 0
    }
  }

  /// As `EntryOrder.resize`.
  mutating func resize(slotCount: Int, _ carry: (UInt32) -> UInt32?) -> Bool {
    var resized = EntryList()
    guard let links = BookkeepingArray<Links>(zeros: slotCount) else { return false }
    resized.links = consume links
    var position = first
    while position != Self.none {
      guard let new = carry(position) else { return false }
      resized.append(new)
      position = self[position].next
    }
    self = resized
    return true
  }

  /// nil: the first.
  func next(after position: UInt32?) -> UInt32? {
    var next = first
    if let position { next = self[position].next }
    return next == Self.none ? nil : next
  }

  mutating func append(_ position: UInt32) {
    self[position] = Links(previous: last, next: Self.none)
    if last == Self.none { first = position } else { self[last].next = position }
    last = position
  }

  mutating func remove(_ position: UInt32) {
    let its = self[position]
    if its.previous == Self.none { first = its.next } else { self[its.previous].next = its.next }
    if its.next == Self.none { last = its.previous } else { self[its.next].previous = its.previous }
  }

  mutating func moveToEnd(_ position: UInt32) {
    if position == last { return }
    remove(position)
    append(position)
  }

  private subscript(position: UInt32) -> Links {
    get {
      switch links {
      case .some(let links): links[Int(position)]
      case nil: Links()
      }
    }
    set { links?[Int(position)] = newValue }
  }
}
