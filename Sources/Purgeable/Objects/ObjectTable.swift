// SPDX-License-Identifier: MIT
// One shard of a cache of objects: a hash table whose entries stand in queues in the order of their last use.
//
//   hash --> buckets --> position --chain--> position ...          nodes with one hash's low bits
//                           |
//            oldest <--> position <--> ... <--> newest             one queue for each kind of entry, by rising stamps
//
// A position is an index into `nodes`. A stamp is the time of the last use, different for all uses of a table: an entry is the
// same, and was not used, as long as its position has its stamp. A free node has the stamp 0, and is chained to the next one.

import Glibc

/// The queues: entries that a cost limit can gain nothing from, and entries whose content may be discarded, stand apart, so that
/// whoever looks for the others need not pass them; so do those of each priority.
@usableFromInline
struct ObjectQueue: Equatable, Sendable {
  @inlinable static var count: Int { 12 }
  @usableFromInline static let bitsWithCost: UInt16 = 0x555
  static let speculativeBits: UInt16 = 0xF0
  static let normalBits: UInt16 = 0xF
  static let allBits: UInt16 = 0xFFF
  @usableFromInline let number: UInt8

  @inlinable
  init(hasCost: Bool, isDiscardable: Bool, _ priority: EntryPriority = .normal) {
    let rank: UInt8 = priority == .normal ? 0 : priority == .speculative ? 4 : 8
    number = (hasCost ? 0 : 1) + (isDiscardable ? 2 : 0) + rank
  }
  @inlinable init(_ number: Int) { self.number = UInt8(truncatingIfNeeded: number) }

  @inlinable var bit: UInt16 { 1 << UInt16(number) }

  @inlinable var hasCost: Bool { number & 1 == 0 }
  @inlinable var isDiscardable: Bool { number & 2 != 0 }
  @inlinable var isSpeculative: Bool { number & 4 != 0 }
  @inlinable var isPinned: Bool { number & 8 != 0 }
  @inlinable var priority: EntryPriority { isPinned ? .pinned : isSpeculative ? .speculative : .normal }

  /// The queue of the same entry with another priority.
  @inlinable
  func with(_ priority: EntryPriority) -> ObjectQueue {
    ObjectQueue(hasCost: hasCost, isDiscardable: isDiscardable, priority)
  }

  /// An entry's place in the order of eviction, whatever its queue: stamps are times, far below this.
  @inlinable
  func turn(ofStamp stamp: UInt64) -> UInt64 { stamp | (isPinned ? 2 : isSpeculative ? 0 : 1) << 62 }
}

@usableFromInline
struct ObjectNode<Key: Hashable & Sendable, Value: Sendable> {
  // In this order a node with a small key is one cache line.
  @usableFromInline var stamp: UInt64 = 0
  @usableFromInline var cost = 0
  /// Different for all values that a shard was given; 0 in a free node.
  @usableFromInline var birth: UInt64 = 0
  /// nil in a free node, as the value.
  @usableFromInline var key: Key?
  @usableFromInline var queue = ObjectQueue(hasCost: false, isDiscardable: false)
  /// Whether the table's times have one of this entry.
  @usableFromInline var isTimed = false
  /// Whether the table's notes have some of this entry.
  @usableFromInline var isNoted = false
  @usableFromInline var value: Value?
  /// The lower half of the key's hash, which the buckets go by.
  @usableFromInline var hash: UInt32 = 0
  @usableFromInline var chain = noPosition
  @usableFromInline var older = noPosition
  @usableFromInline var newer = noPosition

  @inlinable init() {}
}

/// No node.
@usableFromInline let noPosition = UInt32.max

/// An entry that has left its table, on its way to whoever is told.
@usableFromInline
struct DepartedObject<Key: Hashable & Sendable, Value: Sendable> {
  @usableFromInline let key: Key
  @usableFromInline let value: Value
  @usableFromInline let cost: Int
  @usableFromInline let reason: DepartureReason
  @usableFromInline var isDiscardable: Bool
  /// The object was stored again under its own key.
  @usableFromInline var isStoredAgain = false

  /// nil where its time was over.
  @inlinable var validValue: Value? { reason == .expired ? nil : value }

  @inlinable
  init(key: Key, value: Value, cost: Int, reason: DepartureReason, isDiscardable: Bool) {
    (self.key, self.value, self.cost, self.reason, self.isDiscardable) = (key, value, cost, reason, isDiscardable)
  }

  @inlinable
  init(_ node: consuming ObjectNode<Key, Value>, _ reason: DepartureReason) {
    self.init(
      key: node.key!, value: node.value!, cost: node.cost, reason: reason, isDiscardable: node.queue.isDiscardable)
  }

  /// The same, of an object that was stored again: its content is left alone.
  var storedAgain: Self {
    var again = self
    (again.isDiscardable, again.isStoredAgain) = (false, true)
    return again
  }
}

/// The allocator, for code that is compiled into callers: taking may fail.
@usableFromInline
enum TableMemory {
  @usableFromInline static func take(_ byteCount: Int, alignment: Int) -> UnsafeMutableRawPointer? {
    unsafe aligned_alloc(alignment, (byteCount + alignment - 1) & ~(alignment - 1))
  }

  @usableFromInline static func giveBack(_ memory: UnsafeMutableRawPointer?) { unsafe free(memory) }
}

/// `@safe`: positions come from the buckets, the chains and the queues, which name nodes below `capacity` only; a foreign one is
/// checked by its stamp (`holds`). Used by one thread at a time, under its shard's mutex.
@usableFromInline @safe
struct ObjectTable<Key: Hashable & Sendable, Value: Sendable>: ~Copyable {
  @usableFromInline typealias Node = ObjectNode<Key, Value>

  private let stays = StaysInPlace()
  @usableFromInline var nodes: UnsafeMutablePointer<Node>?
  @usableFromInline var capacity = 0
  /// As many as nodes, a power of two.
  @usableFromInline var buckets: UnsafeMutablePointer<UInt32>?
  @usableFromInline var firstFree = noPosition
  @usableFromInline var count = 0
  /// Rises with each value that enters.
  @usableFromInline var entered: UInt64 = 0
  @usableFromInline var lastStamp: UInt64 = 0
  @usableFromInline var oldest = InlineArray<12, UInt32>(repeating: noPosition)
  @usableFromInline var newest = InlineArray<12, UInt32>(repeating: noPosition)
  /// The queues, a bit for each, whose oldest entry has another stamp than the one that was published last.
  @usableFromInline var unpublished: UInt16 = 0
  @usableFromInline var times = ObjectTimes()
  /// By birth.
  @usableFromInline var notes: [UInt64: ObjectNotes] = [:]

  @inlinable init() {}

  /// Ends the entries and gives their memory back; the owner's last call. No `deinit`: the optimizer of Swift 6.3.1 stops in one
  /// that it may compile into callers.
  mutating func destroy() {
    unsafe nodes?.deinitialize(count: capacity)
    unsafe TableMemory.giveBack(nodes)
    unsafe TableMemory.giveBack(buckets)
    times.destroy()
    notes = [:]
    unsafe (nodes, buckets, capacity, count) = (nil, nil, 0, 0)
  }

  /// Ordinary memory that the table takes, without what its keys and values refer to.
  var byteCount: Int { capacity * (MemoryLayout<Node>.stride + MemoryLayout<UInt32>.stride) + times.byteCount + noteByteCount }

  // MARK: Finding

  /// The node at a position of this table.
  @inlinable
  subscript(position: UInt32) -> Node {
    unsafeAddress { unsafe UnsafePointer(nodes.unsafelyUnwrapped + Int(position)) }
    nonmutating unsafeMutableAddress { unsafe nodes.unsafelyUnwrapped + Int(position) }
  }

  @inlinable @inline(__always)
  func bucket(of hash: UInt32) -> UnsafeMutablePointer<UInt32> {
    unsafe buckets.unsafelyUnwrapped + (Int(hash) & (capacity - 1))
  }

  /// The first entry with a hash.
  @inlinable @inline(__always)
  func first(withHash hash: UInt32) -> UInt32 {
    capacity == 0 ? noPosition : same(hash, from: unsafe bucket(of: hash).pointee)
  }

  /// The next one with the same hash.
  @inlinable
  func next(after position: UInt32) -> UInt32 { same(self[position].hash, from: self[position].chain) }

  @inlinable @inline(__always)
  func same(_ hash: UInt32, from start: UInt32) -> UInt32 {
    var position = start
    while position != noPosition, self[position].hash != hash { position = self[position].chain }
    return position
  }

  /// The entry with a hash whose value came first after so many others.
  @inlinable
  func oldest(withHash hash: UInt32, after number: UInt64) -> UInt32 {
    var oldest = noPosition
    var position = first(withHash: hash)
    while position != noPosition {
      let birth = self[position].birth
      if birth > number, oldest == noPosition || birth < self[oldest].birth { oldest = position }
      position = next(after: position)
    }
    return oldest
  }

  /// An entry, for whoever wants them all; nil where there is none.
  var anyPosition: UInt32? {
    for queue in 0..<ObjectQueue.count where oldest[queue] != noPosition { return oldest[queue] }
    return nil
  }

  /// The sum of all costs. Reads every node.
  var costs: CostSum {
    var sum = CostSum()
    for position in 0..<UInt32(capacity) where self[position].cost != 0 { sum.add(self[position].cost) }
    return sum
  }

  /// Whether an entry's content may be discarded.
  var hasDiscardable: Bool {
    (0..<ObjectQueue.count).contains { ObjectQueue($0).isDiscardable && oldest[$0] != noPosition }
  }

  /// Leaves an empty table, which goes on with the numbers of this one.
  mutating func replaceByEmpty() -> ObjectTable {
    var empty = ObjectTable()
    (empty.entered, empty.lastStamp, empty.unpublished) = (entered, lastStamp, ObjectQueue.allBits)
    return exchange(&self, with: empty)
  }

  /// Whether the position still has the value that had this number.
  func has(_ position: UInt32, birth: UInt64) -> Bool { position < capacity && self[position].birth == birth }

  /// Where the value with a number is now.
  @inlinable
  func position(withHash hash: UInt32, birth: UInt64) -> UInt32 {
    let position = oldest(withHash: hash, after: birth - 1)
    return position != noPosition && self[position].birth == birth ? position : noPosition
  }

  /// Whether the position still has the entry that had this stamp, unused since.
  func holds(_ position: UInt32, _ stamp: UInt64) -> Bool {
    position < capacity && stamp != 0 && self[position].stamp == stamp
  }

  /// The stamp of a queue's oldest entry; `.max` where the queue is empty.
  @inlinable
  func oldestStamp(_ queue: Int) -> UInt64 { oldest[queue] == noPosition ? .max : self[oldest[queue]].stamp }

  // MARK: Using

  /// Makes the entry its queue's newest, and normal if it was speculative.
  @inlinable @inline(__always)
  mutating func use(_ position: UInt32, at time: UInt64) {
    if self[position].queue.isSpeculative { setPriority(.normal, position) }
    let queue = Int(self[position].queue.number)
    if newest[queue] != position {
      unlink(position)
      link(position)
    }
    stamp(position, time)
  }

  @inlinable @inline(__always)
  mutating func stamp(_ position: UInt32, _ time: UInt64) {
    lastStamp = max(time, lastStamp + 1)
    self[position].stamp = lastStamp
    if self[position].older == noPosition { unpublished |= self[position].queue.bit }
  }

  @inlinable
  mutating func link(_ position: UInt32) {
    let queue = Int(self[position].queue.number)
    let before = newest[queue]
    self[position].older = before
    self[position].newer = noPosition
    if before == noPosition { oldest[queue] = position } else { self[before].newer = position }
    newest[queue] = position
  }

  @inlinable
  mutating func unlink(_ position: UInt32) {
    let queue = Int(self[position].queue.number)
    let (older, newer) = (self[position].older, self[position].newer)
    if older == noPosition {
      oldest[queue] = newer
      unpublished |= self[position].queue.bit
    } else {
      self[older].newer = newer
    }
    if newer == noPosition { newest[queue] = older } else { self[newer].older = older }
  }

  @inlinable
  mutating func setPriority(_ priority: EntryPriority, _ position: UInt32) {
    unlink(position)
    self[position].queue = self[position].queue.with(priority)
    link(position)
    if self[position].older == noPosition { unpublished |= self[position].queue.bit }
  }

  /// Makes an entry that has just come its queue's oldest. `stamp`: below all others of the queue.
  mutating func makeOldest(_ position: UInt32, _ stamp: UInt64) {
    unlink(position)
    let queue = Int(self[position].queue.number)
    let after = oldest[queue]
    self[position].older = noPosition
    self[position].newer = after
    if after == noPosition { newest[queue] = position } else { self[after].older = position }
    oldest[queue] = position
    self[position].stamp = stamp
    unpublished |= self[position].queue.bit
  }

  // MARK: Changing

  /// A new entry, its queue's newest. False without memory for it: nothing has changed.
  @inlinable
  mutating func insert(
    _ key: Key, hash: UInt32, _ value: Value, cost: Int, _ queue: ObjectQueue, _ time: ObjectTime, _ notes: ObjectNotes? = nil,
    at moment: UInt64
  ) -> Bool {
    if firstFree == noPosition, !resize(to: max(8, capacity * 2)) { return false }
    if time.isTimed, !times.reserve(capacity) { return false }
    if notes != nil, !hasRoomForNotes() { return false }
    let position = firstFree
    firstFree = self[position].chain
    self[position].hash = hash
    self[position].cost = cost
    self[position].key = key
    self[position].value = value
    self[position].queue = queue
    let bucket = unsafe bucket(of: hash)
    self[position].chain = unsafe bucket.pointee
    unsafe bucket.pointee = position
    link(position)
    stamp(position, moment)
    count += 1
    entered += 1
    self[position].birth = entered
    if time.isTimed { setTime(time, position) }
    if let notes { setNotes(notes, position) }
    return true
  }

  /// Puts another value in an entry's place, and makes it its queue's newest. Returns the old value; nil without memory for time
  /// or notes: nothing has changed.
  @inlinable
  mutating func replace(
    _ position: UInt32, _ value: Value, cost: Int, _ queue: ObjectQueue, _ time: ObjectTime, _ notes: ObjectNotes? = nil,
    at moment: UInt64, _ reason: DepartureReason
  ) -> DepartedObject<Key, Value>? {
    if time.isTimed, !times.reserve(capacity) { return nil }
    if notes != nil, !hasRoomForNotes() { return nil }
    if self[position].isNoted { endNotes(position) }
    unlink(position)
    entered += 1
    let pointer = unsafe nodes.unsafelyUnwrapped + Int(position)
    // Moved, not copied: an object's count of references stays as it is.
    let old = unsafe pointer.move()
    var new = Node()
    (new.cost, new.birth, new.key, new.queue, new.value) = (cost, entered, old.key, queue, value)
    (new.hash, new.chain) = (old.hash, old.chain)
    unsafe pointer.initialize(to: new)
    link(position)
    stamp(position, moment)
    if time.isTimed { setTime(time, position) }
    if let notes { setNotes(notes, position) }
    return DepartedObject(old, reason)
  }

  /// Takes an entry out.
  @inlinable
  mutating func remove(_ position: UInt32, _ reason: DepartureReason) -> DepartedObject<Key, Value> {
    if self[position].isNoted { endNotes(position) }
    unlink(position)
    unsafe unchain(position, bucket(of: self[position].hash))
    let pointer = unsafe nodes.unsafelyUnwrapped + Int(position)
    let old = unsafe pointer.move()
    unsafe pointer.initialize(to: Node())
    self[position].chain = firstFree
    firstFree = position
    count -= 1
    return DepartedObject(old, reason)
  }

  @inlinable
  mutating func unchain(_ position: UInt32, _ bucket: UnsafeMutablePointer<UInt32>) {
    var next = unsafe bucket.pointee
    if next == position {
      unsafe bucket.pointee = self[position].chain
      return
    }
    while self[next].chain != position { next = self[next].chain }
    self[next].chain = self[position].chain
  }

  /// Moves all entries to a table of `wanted` nodes, a power of two and enough. False without memory: nothing has changed.
  @inlinable
  mutating func resize(to wanted: Int) -> Bool {
    guard wanted < Int(noPosition) else { return false }
    let alignment = max(MemoryLayout<Node>.alignment, 64)
    guard let raw = unsafe TableMemory.take(wanted * MemoryLayout<Node>.stride, alignment: alignment) else { return false }
    guard let rawBuckets = unsafe TableMemory.take(wanted * MemoryLayout<UInt32>.stride, alignment: 16) else {
      unsafe TableMemory.giveBack(raw)
      return false
    }
    guard times.beginMove(to: wanted) else {
      unsafe TableMemory.giveBack(raw)
      unsafe TableMemory.giveBack(rawBuckets)
      return false
    }
    let fresh = unsafe raw.bindMemory(to: Node.self, capacity: wanted)
    let freshBuckets = unsafe rawBuckets.bindMemory(to: UInt32.self, capacity: wanted)
    unsafe freshBuckets.initialize(repeating: noPosition, count: wanted)
    // In the order of the queues, so that positions stay dense.
    var used: UInt32 = 0
    for queue in 0..<ObjectQueue.count {
      var position = oldest[queue]
      var before = noPosition
      if position != noPosition { oldest[queue] = used }
      while position != noPosition {
        let next = self[position].newer
        if self[position].isTimed { times.move(position, to: Int(used)) }
        unsafe (fresh + Int(used)).moveInitialize(from: nodes! + Int(position), count: 1)
        unsafe (nodes! + Int(position)).initialize(to: Node())
        unsafe (fresh + Int(used)).pointee.older = before
        unsafe (fresh + Int(used)).pointee.newer = next == noPosition ? noPosition : used + 1
        let bucket = unsafe freshBuckets + Int((fresh + Int(used)).pointee.hash) & (wanted - 1)
        unsafe (fresh + Int(used)).pointee.chain = bucket.pointee
        unsafe bucket.pointee = used
        (before, position) = (used, next)
        used += 1
      }
      newest[queue] = before
    }
    for position in used..<UInt32(wanted) {
      unsafe (fresh + Int(position)).initialize(to: Node())
      unsafe (fresh + Int(position)).pointee.chain = position + 1 < UInt32(wanted) ? position + 1 : noPosition
    }
    firstFree = used < UInt32(wanted) ? used : noPosition
    for position in 0..<capacity { unsafe (nodes! + position).deinitialize(count: 1) }
    unsafe TableMemory.giveBack(nodes)
    unsafe TableMemory.giveBack(buckets)
    unsafe (nodes, buckets, capacity) = (fresh, freshBuckets, wanted)
    if times.endMove(to: wanted) { noteEndsAnew() }
    return true
  }

  /// Gives back the memory of nodes that are not needed, where most are not.
  mutating func shrink() {
    var wanted = 8
    while wanted < count { wanted *= 2 }
    if wanted < capacity / 2 { _ = resize(to: wanted) }
  }
}
