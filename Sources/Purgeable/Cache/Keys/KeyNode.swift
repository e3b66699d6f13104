// SPDX-License-Identifier: MIT
// A tracked key: a block of ordinary memory of its own, in which the key follows this head.

struct KeyNode {
  var next: NodePointer?
  /// Of a living node: the hash of its key. Of a departed one: where the copy of its value is, 0 for none.
  fileprivate var hashOrCopy: UInt64
  /// Of a living node: its stamp, never used twice in a shard. Of a departed one: why it left, and why there is no copy.
  fileprivate var stampOrEnd: UInt64 = 0
  /// Of the value; of a hollow entry, which has none: its neighbours (`ShardKeys.makeHollow`).
  var cost: UInt64 = 0
  /// The key's number in its shard.
  private(set) var number: UInt32 = 0
  /// The value is lost, and the key stays (Shard/HeldShard+Hollow.swift).
  var isHollow = false

  init(hash: UInt64) { hashOrCopy = hash }

  // MARK: Living

  mutating func enter(stamp: UInt64, number: UInt32) { (stampOrEnd, self.number) = (stamp, number) }

  var hash: UInt64 { hashOrCopy }
  var stamp: UInt64 { stampOrEnd }

  // MARK: Departed

  private static let untold: UInt64 = 1 << 8

  /// Ends the node's life. nil: nobody is told.
  mutating func depart(_ departure: (reason: DepartureReason, copy: ValueCopy)?) {
    next = nil
    guard let (reason, copy) = departure else {
      (hashOrCopy, stampOrEnd) = (0, Self.untold)
      return
    }
    hashOrCopy = unsafe UInt64(UInt(bitPattern: copy.block))
    stampOrEnd = UInt64(reason.rawValue) | copy.absenceCode << 16
  }

  /// nil when nobody is to be told.
  var departure: EngineDeparture? {
    guard stampOrEnd & Self.untold == 0, let reason = DepartureReason(rawValue: Int(stampOrEnd & 0xFF)) else { return nil }
    var copy = ValueCopy(absenceCode: stampOrEnd >> 16)
    if let block = unsafe UnsafeMutableRawPointer(bitPattern: UInt(hashOrCopy)) { unsafe copy = ValueCopy(block: block) }
    return EngineDeparture(reason: reason, cost: cost, copy: copy)
  }
}

/// Where a node is. `@safe`: a node is followed only by its one owner at a time, which is a table, a list, or who took it out
/// of one, and `NodeMemory.giveBack` is the end of all pointers to it. `@unchecked Sendable`: the owner hands it on under a
/// mutex.
@safe struct NodePointer: Equatable, @unchecked Sendable {
  private let head: UnsafeMutablePointer<KeyNode>

  /// A node without a key.
  init(_ memory: UnsafeMutableRawPointer, _ node: KeyNode) {
    unsafe head = memory.bindMemory(to: KeyNode.self, capacity: 1)
    unsafe head.initialize(to: node)
  }

  /// nil for 0.
  init?(address: UInt) {
    guard let head = unsafe UnsafeMutablePointer<KeyNode>(bitPattern: address) else { return nil }
    unsafe self.head = head
  }

  var address: UInt { unsafe UInt(bitPattern: head) }

  static func == (left: Self, right: Self) -> Bool { left.address == right.address }

  @inline(__always) var node: KeyNode {
    get { unsafe head.pointee }
    nonmutating _modify { yield unsafe &head.pointee }
  }

  // MARK: The key

  /// Where the key begins in a node.
  static func keyOffset<Key>(of key: Key.Type) -> Int {
    let mask = MemoryLayout<Key>.alignment - 1
    return (MemoryLayout<KeyNode>.size + mask) & ~mask
  }

  private func place<Key>(of type: Key.Type) -> UnsafeMutablePointer<Key> {
    // Room for a key follows each node's head; bound to nothing else, ever.
    unsafe (UnsafeMutableRawPointer(head) + Self.keyOffset(of: type)).assumingMemoryBound(to: Key.self)
  }

  func key<Key>(as type: Key.Type) -> Key { unsafe place(of: type).pointee }
  func hasKey<Key: Equatable>(_ key: Key) -> Bool { unsafe place(of: Key.self).pointee == key }
  func begin<Key>(with key: Key) { unsafe place(of: Key.self).initialize(to: key) }
  /// Takes the key out of its node.
  func takeKey<Key>(as type: Key.Type) -> Key { unsafe place(of: type).move() }
  func endKey<Key>(as type: Key.Type) { unsafe place(of: type).deinitialize(count: 1) }
}

extension ValueCopy {
  /// 0 also for `undecodable`, which is found out when there is a copy.
  fileprivate var absenceCode: UInt64 { absence == .discarded ? 1 : absence == .notKept ? 2 : 0 }

  fileprivate init(absenceCode: UInt64) {
    self.init(absence: absenceCode == 1 ? .discarded : absenceCode == 2 ? .notKept : nil)
  }
}
