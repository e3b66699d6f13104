// SPDX-License-Identifier: MIT
// The tracked keys of one shard: nodes by number, and nodes by hash. It knows nothing of the keys' type.
//
//   numbers --> node                                   8 bytes for each number there ever was at a time
//   heads (by hash) --> node --> node --> nil          youngest first: stamps fall along a chain
//
// A key has a number in its shard, by which the engine's slot and element name it, from its first store until its entry leaves.
// The node is then out of the table and in a list of departures, linked by `next` as it was in its chain: so a departure needs no
// memory. The heads grow by linear hashing, one chain at a time as nodes are made: no store pays for all of them.

import Glibc
import Synchronization

/// The memory of a cache's nodes: allocation may fail.
final class NodeMemory: Sendable {
  /// Of a node with its key, and of the head that malloc gives it.
  let nodeByteCount: Int
  private let alignment: Int
  /// What the nodes of a cache and its shards' tables take.
  let byteCount = Atomic<Int>(0)

  private let allocatedByteCount: Int

  init(nodeByteCount: Int, alignment: Int) {
    (allocatedByteCount, self.alignment) = (nodeByteCount, alignment)
    self.nodeByteCount = (nodeByteCount + 8 + 15) & ~15
  }

  fileprivate func take() -> UnsafeMutableRawPointer? {
    var memory: UnsafeMutableRawPointer?
    if alignment <= 16 {
      unsafe memory = malloc(allocatedByteCount)
    } else {
      guard unsafe posix_memalign(&memory, alignment, allocatedByteCount) == 0 else { return nil }
    }
    if unsafe memory != nil { byteCount.add(nodeByteCount, ordering: .relaxed) }
    return unsafe memory
  }

  /// Called by the node's owner, who has taken the key out.
  func giveBack(_ node: NodePointer) {
    byteCount.subtract(nodeByteCount, ordering: .relaxed)
    unsafe free(UnsafeMutableRawPointer(bitPattern: node.address))
  }
}

/// Used under the shard's mutex. `@unchecked Sendable`: for that reason.
@safe struct ShardKeys: @unchecked Sendable {
  private let memory: NodeMemory?
  /// Of a number that is taken: its node's address, with the lowest bit set. Else: the next free number + 1, shifted by one.
  private var numbers = WordTable()
  private var numberCount = 0
  private var firstFree: UInt = 0
  private var heads = WordTable()
  private var headCount = 0
  private(set) var count = 0
  private var lastStamp: UInt64 = 0
  /// The ends of the list of hollow entries, as `HollowLinks` has them.
  private var hollow = HollowLinks()
  private(set) var hollowCount = 0

  /// `memory`: nil for a cache without tracked keys.
  init(_ memory: NodeMemory?) { self.memory = memory }

  /// Of the table, without its nodes.
  var byteCount: Int { numbers.byteCount + heads.byteCount }

  // MARK: Finding

  /// A node by its number.
  subscript(number: UInt32) -> NodePointer? {
    guard number < numberCount, numbers[Int(number)] & 1 != 0 else { return nil }
    return NodePointer(address: numbers[Int(number)] & ~1)
  }

  func hash(of number: UInt32) -> UInt64? { self[number]?.node.hash }

  /// The youngest node of a chain: a head is its address, or 0.
  private func head(_ at: Int) -> NodePointer? { NodePointer(address: heads[at]) }
  private func setHead(_ at: Int, _ node: NodePointer?) { heads[at] = node?.address ?? 0 }

  private func bucket(of hash: UInt64) -> Int {
    let level = Int.bitWidth - 1 - headCount.leadingZeroBitCount
    let bits = Int(truncatingIfNeeded: hash >> 19)
    let at = bits & (2 << level - 1)
    return at < headCount ? at : bits & (1 << level - 1)
  }

  /// The youngest node with this hash that is older than `below` and younger than `above`. `last`: the number of the node with
  /// the stamp `below`; if that node is still there, the search goes on from it. `mask`: the bits of the hash that count, among
  /// them those that decide the chain, from bit 19 on.
  func next(hash: UInt64, mask: UInt64 = .max, below: UInt64, above: UInt64, last: UInt32? = nil) -> NodePointer? {
    guard headCount > 0 else { return nil }
    var at: NodePointer?
    if let last, let pointer = self[last], pointer.node.stamp == below {
      at = pointer.node.next
    } else {
      at = head(bucket(of: hash))
    }
    while let pointer = at, pointer.node.stamp > above {
      if pointer.node.stamp < below && (pointer.node.hash ^ hash) & mask == 0 { return pointer }
      at = pointer.node.next
    }
    return nil
  }

  // MARK: Hollow entries

  /// The one that has been hollow for longest.
  var firstHollow: UInt32? { hollow.next == HollowLinks.none ? nil : hollow.next }

  func isHollow(_ number: UInt32) -> Bool { self[number]?.node.isHollow ?? false }

  /// Needs no memory: the list runs through the nodes, in place of costs.
  mutating func makeHollow(_ number: UInt32) {
    guard let pointer = self[number], !pointer.node.isHollow else { return }
    pointer.node.isHollow = true
    let last = hollow.before
    pointer.node.hollowLinks = HollowLinks(before: last)
    setNext(number, of: last)
    hollow.before = number
    hollowCount += 1
  }

  /// Takes a key out of the list. It has no cost then.
  mutating func endHollow(_ number: UInt32) {
    guard let pointer = self[number], pointer.node.isHollow else { return }
    let links = pointer.node.hollowLinks
    setNext(links.next, of: links.before)
    if let next = self[links.next] { next.node.hollowLinks.before = links.before } else { hollow.before = links.before }
    (pointer.node.isHollow, pointer.node.cost) = (false, 0)
    hollowCount -= 1
  }

  private mutating func setNext(_ number: UInt32, of before: UInt32) {
    if let pointer = self[before] { pointer.node.hollowLinks.next = number } else { hollow.next = number }
  }

  // MARK: Changing

  /// A node without a key, which the caller puts there before the mutex is released. nil: no memory, or no number.
  mutating func make(hash: UInt64) -> NodePointer? {
    guard isReady(), let raw = unsafe memory?.take() else { return nil }
    let pointer = unsafe NodePointer(raw, KeyNode(hash: hash))
    link(pointer)
    return pointer
  }

  /// Takes a node over from the table of another shard, whose mutex is held too. Returns its number here; nil without memory for
  /// one: nothing has changed then.
  mutating func adopt(_ number: UInt32, of other: inout ShardKeys) -> UInt32? {
    guard isReady(), let pointer = other.takeOut(number) else { return nil }
    link(pointer)
    return pointer.node.number
  }

  /// Whether there is room for another node, made now where there was none.
  private mutating func isReady() -> Bool {
    let before = byteCount
    defer { memory?.byteCount.add(byteCount - before, ordering: .relaxed) }
    if headCount == 0 {
      guard heads.grow() else { return false }
      headCount = WordTable.firstCapacity
    }
    if firstFree == 0 {
      // A number that was never taken.
      guard numberCount < EngineKey.trackedNumberLimit, numberCount < numbers.capacity || numbers.grow() else { return false }
      numberCount += 1
      firstFree = UInt(numberCount)
    }
    return true
  }

  /// Gives a node a number and a stamp, and makes it the youngest.
  private mutating func link(_ pointer: NodePointer) {
    let number = Int(firstFree) - 1
    firstFree = numbers[number] >> 1
    lastStamp += 1
    pointer.node.enter(stamp: lastStamp, number: UInt32(number))
    numbers[number] = pointer.address | 1
    let bucket = bucket(of: pointer.node.hash)
    pointer.node.next = head(bucket)
    setHead(bucket, pointer)
    count += 1
    guard count > 2 * headCount else { return }
    let before = byteCount
    addHead()
    memory?.byteCount.add(byteCount - before, ordering: .relaxed)
  }

  /// Takes a node out: it is the caller's from here on. nil where the number has none.
  mutating func takeOut(_ number: UInt32) -> NodePointer? {
    guard let pointer = self[number] else { return nil }
    endHollow(number)
    let bucket = bucket(of: pointer.node.hash)
    if head(bucket) == pointer {
      setHead(bucket, pointer.node.next)
    } else {
      var before = head(bucket)
      while let at = before, at.node.next != pointer { before = at.node.next }
      guard let before else { preconditionFailure("PurgeableCache: a key outside of its chain") }
      before.node.next = pointer.node.next
    }
    numbers[Int(number)] = firstFree << 1
    firstFree = UInt(number) + 1
    count -= 1
    assert(count >= 0, "PurgeableCache: more keys leave than came")
    // The first tables are small, and many a cache needs them again at once.
    if count == 0, numbers.capacity > WordTable.firstCapacity { forgetTables() }
    return pointer
  }

  /// Takes all nodes out. Stamps go on, so that no new node is taken for an old one.
  mutating func takeAll() -> DepartureList {
    var list = DepartureList()
    for number in 0..<UInt32(numberCount) {
      guard let pointer = self[number] else { continue }
      pointer.node.depart(nil)
      list.append(pointer)
    }
    forgetTables()
    return list
  }

  private mutating func forgetTables() {
    memory?.byteCount.subtract(byteCount, ordering: .relaxed)
    numbers.release()
    heads.release()
    (numberCount, firstFree, headCount, count) = (0, 0, 0, 0)
    (hollow, hollowCount) = (HollowLinks(), 0)
  }

  /// Adds a head: the chain of its sibling is divided between the two, each part in its old order.
  private mutating func addHead() {
    // Without memory for it, chains only become longer.
    guard headCount < heads.capacity || heads.grow() else { return }
    let level = Int.bitWidth - 1 - headCount.leadingZeroBitCount
    let sibling = headCount - 1 << level
    var at = head(sibling)
    // The last node of each of the two, so far.
    var (stays, leaves): (NodePointer?, NodePointer?)
    func append(_ pointer: NodePointer?, to head: Int, behind last: inout NodePointer?) {
      if let last { last.node.next = pointer } else { setHead(head, pointer) }
      last = pointer
    }
    while let pointer = at {
      at = pointer.node.next
      if Int(truncatingIfNeeded: pointer.node.hash >> 19) & 1 << level == 0 {
        append(pointer, to: sibling, behind: &stays)
      } else {
        append(pointer, to: headCount, behind: &leaves)
      }
    }
    append(nil, to: sibling, behind: &stays)
    append(nil, to: headCount, behind: &leaves)
    headCount += 1
  }
}

/// The numbers before and after a hollow entry's.
private struct HollowLinks {
  /// No number: beyond all there may be.
  static let none = UInt32.max

  var before = none
  var next = none
}

extension KeyNode {
  fileprivate var hollowLinks: HollowLinks {
    get { HollowLinks(before: UInt32(truncatingIfNeeded: cost), next: UInt32(truncatingIfNeeded: cost >> 32)) }
    set { cost = UInt64(newValue.before) | UInt64(newValue.next) << 32 }
  }
}
