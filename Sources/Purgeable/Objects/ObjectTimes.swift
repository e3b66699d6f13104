// SPDX-License-Identifier: MIT
// Objects whose time is over (Terms/Expiry.swift).
//
//   nodes    node  node  node ...      a flag in each: whether it is timed
//   times    time  time  time ...      beside the nodes, from the shard's first timed entry on
//   ends     a heap, the earliest first: until when an entry was valid when this was noted
//
// An end is noted with each store. A use moves the entry's end and leaves the heap alone: what is due there and was used
// meanwhile is noted again. Ends of entries that have left are passed over, and taken out before the heap grows to more than
// twice of what was current, and 64.

import Synchronization

/// How long an entry is valid, in nanoseconds of the cache's clock; `.max` for no bound.
@usableFromInline
struct ObjectTime: Sendable {
  @usableFromInline var deadline = UInt64.max
  /// From the last use on.
  @usableFromInline var idle = UInt64.max
  var lastUse: UInt64 = 0

  /// Of a value that is not to be stored: no clock shows 0.
  static let over = ObjectTime(deadline: 0)

  @inlinable var isTimed: Bool { deadline != .max || idle != .max }
  @inlinable var isOver: Bool { deadline == 0 }
  var end: UInt64 { idle == .max ? deadline : min(deadline, lastUse + idle) }
}

/// When the value with this birth was over, as far as was known.
struct ObjectEnd {
  let end: UInt64
  let birth: UInt64
  let position: UInt32
}

/// The times of a table's entries, and their ends in order. Under the shard's mutex. A copy has the same memory.
///
/// `@safe`: positions are the table's, below its capacity, for which it has reserved room.
@usableFromInline @safe
struct ObjectTimes {
  private var times: UnsafeMutablePointer<ObjectTime>?
  /// For the table's next nodes, while it moves.
  private var next: UnsafeMutablePointer<ObjectTime>?
  private var capacity = 0
  private var ends: UnsafeMutablePointer<ObjectEnd>?
  private var endCount = 0
  private var endCapacity = 0
  /// At so many ends, those of entries that have left are taken out.
  private var cleanCount = 64

  init() {}

  var byteCount: Int {
    capacity * MemoryLayout<ObjectTime>.stride + endCapacity * MemoryLayout<ObjectEnd>.stride
  }

  mutating func destroy() {
    unsafe TableMemory.giveBack(times)
    unsafe TableMemory.giveBack(ends)
    self = ObjectTimes()
  }

  subscript(position: UInt32) -> ObjectTime {
    get { unsafe times.unsafelyUnwrapped[Int(position)] }
    nonmutating set { unsafe times.unsafelyUnwrapped[Int(position)] = newValue }
  }

  func note(use moment: UInt64, _ position: UInt32) { unsafe times.unsafelyUnwrapped[Int(position)].lastUse = moment }

  @usableFromInline
  func remaining(_ position: UInt32, now: UInt64) -> Duration {
    let end = self[position].end
    return .nanoseconds(Int64(clamping: end - min(end, now)))
  }

  private static func take<T>(_ count: Int, of type: T.Type) -> UnsafeMutablePointer<T>? {
    unsafe TableMemory.take(count * MemoryLayout<T>.stride, alignment: 16)?.bindMemory(to: T.self, capacity: count)
  }

  // MARK: With the table

  /// Takes memory for the times of so many nodes, at the first call. False without any.
  @usableFromInline
  mutating func reserve(_ count: Int) -> Bool {
    if unsafe times != nil { return true }
    unsafe times = Self.take(count, of: ObjectTime.self)
    guard unsafe times != nil else { return false }
    capacity = count
    return true
  }

  /// Before the nodes move, to so many. False without memory: nothing has changed.
  @usableFromInline
  mutating func beginMove(to count: Int) -> Bool {
    guard unsafe times != nil else { return true }
    unsafe next = Self.take(count, of: ObjectTime.self)
    return unsafe next != nil
  }

  @usableFromInline
  func move(_ position: UInt32, to new: Int) { unsafe (next! + new).initialize(to: self[position]) }

  /// After all have moved. Returns whether there are times, whose ends are to be noted anew then.
  @usableFromInline
  mutating func endMove(to count: Int) -> Bool {
    guard unsafe times != nil else { return false }
    unsafe TableMemory.giveBack(times)
    unsafe (times, next, capacity) = (next, nil, count)
    (endCount, cleanCount) = (0, 64)
    if endCapacity > 2 * count {
      unsafe TableMemory.giveBack(ends)
      unsafe (ends, endCapacity) = (nil, 0)
    }
    return true
  }

  // MARK: Ends

  var first: ObjectEnd? { endCount == 0 ? nil : unsafe ends![0] }

  /// Without memory, the entry leaves when it is looked up, or as any other does.
  mutating func push(_ new: ObjectEnd, isCurrent: (ObjectEnd) -> Bool) {
    if endCount >= cleanCount { clean(isCurrent) }
    if endCount == endCapacity, !grow() { return }
    unsafe (ends! + endCount).initialize(to: new)
    endCount += 1
    var at = endCount - 1
    while at > 0, unsafe ends![at].end < ends![(at - 1) / 2].end {
      swap(at, (at - 1) / 2)
      at = (at - 1) / 2
    }
  }

  mutating func popFirst() {
    endCount -= 1
    unsafe ends![0] = ends![endCount]
    sink(0)
  }

  private mutating func clean(_ isCurrent: (ObjectEnd) -> Bool) {
    var kept = 0
    for at in 0..<endCount where isCurrent(unsafe ends![at]) {
      unsafe ends![kept] = ends![at]
      kept += 1
    }
    (endCount, cleanCount) = (kept, 2 * kept + 64)
    for at in stride(from: kept / 2 - 1, through: 0, by: -1) { sink(at) }
  }

  private func sink(_ start: Int) {
    var at = start
    while true {
      var least = at
      for child in 2 * at + 1..<2 * at + 3 where child < endCount {
        if unsafe ends![child].end < ends![least].end { least = child }
      }
      if least == at { return }
      swap(at, least)
      at = least
    }
  }

  private func swap(_ one: Int, _ other: Int) {
    unsafe (ends![one], ends![other]) = (ends![other], ends![one])
  }

  private mutating func grow() -> Bool {
    let wanted = max(64, 2 * endCapacity)
    guard let more = unsafe Self.take(wanted, of: ObjectEnd.self) else { return false }
    if let ends = unsafe ends { unsafe more.update(from: ends, count: endCount) }
    unsafe TableMemory.giveBack(ends)
    unsafe (ends, endCapacity) = (more, wanted)
    return true
  }
}

extension ObjectTable {
  /// Of an entry that was stored, if it is timed.
  @usableFromInline
  mutating func setTime(_ time: ObjectTime, _ position: UInt32) {
    self[position].isTimed = true
    times[position] = time
    noteEnd(position)
  }

  private mutating func noteEnd(_ position: UInt32) {
    var times = times
    times.push(ObjectEnd(end: times[position].end, birth: self[position].birth, position: position)) {
      has($0.position, birth: $0.birth)
    }
    self.times = times
  }

  /// After all nodes have moved.
  @usableFromInline
  mutating func noteEndsAnew() {
    for position in 0..<UInt32(count) where self[position].isTimed { noteEnd(position) }
  }

  func time(_ position: UInt32) -> ObjectTime { self[position].isTimed ? times[position] : ObjectTime() }

  /// An entry that is over, whose end is no longer noted then; and whether there may be more, after a bounded number of looks.
  mutating func nextOver(now: UInt64) -> (position: UInt32?, isMore: Bool) {
    for _ in 0..<256 {
      guard let first = times.first, first.end <= now else { return (nil, false) }
      times.popFirst()
      guard has(first.position, birth: first.birth) else { continue }
      if times[first.position].end <= now { return (first.position, true) }
      noteEnd(first.position)
    }
    return (nil, true)
  }
}

extension ObjectBooks {
  /// Of a value that is stored now. `lifetime`: nil for the default.
  @usableFromInline
  final func time(_ lifetime: Lifetime?) -> ObjectTime {
    let lifetime = lifetime ?? self.lifetime.value
    if lifetime.isOver { return .over }
    guard lifetime != Lifetime() else { return ObjectTime() }
    let now = clock.now()
    return ObjectTime(
      deadline: lifetime.sinceCreation.map { now + $0 } ?? .max, idle: lifetime.sinceLastUse ?? .max, lastUse: now)
  }

  /// Of a value that takes another one's place, and keeps its time.
  final func usedNow(_ time: ObjectTime) -> ObjectTime {
    var time = time
    if time.isTimed { time.lastUse = clock.now() }
    return time
  }

  /// Whether a timed entry is over. Under its mutex.
  @usableFromInline
  final func isOver(_ position: UInt32, _ times: ObjectTimes) -> Bool { clock.hasReached(times[position].end) }

  /// Uses a timed entry, unless it is over. Under its mutex.
  @usableFromInline
  final func use(_ position: UInt32, _ times: ObjectTimes) -> Bool {
    let time = times[position]
    if time.idle == .max { return !clock.hasReached(time.deadline) }
    let now = clock.now()
    if time.end <= now { return false }
    times.note(use: now, position)
    return true
  }

  /// After the store of a timed entry.
  @usableFromInline
  final func noteEnd(_ time: ObjectTime) { note(end: time.end) }

  final func note(end: UInt64) { nextEnd.min(Int(clamping: end), ordering: .relaxed) }

  /// Whether the earliest of all ends that are noted has come.
  @usableFromInline
  final var mayHaveExpired: Bool {
    let end = nextEnd.load(ordering: .relaxed)
    return end != .max && clock.hasReached(UInt64(end))
  }
}

extension ObjectStore {
  /// Drops what is over, as long as that is wanted. Returns how many entries. Under no mutex.
  @usableFromInline @discardableResult
  func dropExpired(while isWanted: () -> Bool = { true }) -> Int {
    let now = clock.now()
    // Stores from here on note theirs; those before, what is read below.
    nextEnd.store(.max, ordering: .sequentiallyConsistent)
    var count = 0
    for at in 0..<ObjectGate.count {
      var isMore = true
      while isMore {
        let goesOn = isWanted()
        let departed = hold(shard: at) { shard -> Departed? in
          var position: UInt32?
          (position, isMore) = goesOn ? shard.table.nextOver(now: now) : (nil, false)
          if !isMore, let end = shard.table.times.first?.end { note(end: end) }
          return position.map { remove($0, .expired, from: &shard) }
        }
        guard let departed else { continue }
        finish(departed)
        count += 1
      }
    }
    return count
  }

  /// Takes out a key's entry if it is over, and finishes it.
  @usableFromInline
  func dropIfExpired(_ key: Key) {
    let departed = hold(key) { shard, position, _ -> Departed? in
      guard position != noPosition, isOver(position, in: shard.table) else { return nil }
      return remove(position, .expired, from: &shard)
    }
    if let departed { finish(departed) }
  }

  /// Whether an entry is over. Under its mutex.
  @inlinable @inline(__always)
  func isOver(_ position: UInt32, in table: borrowing ObjectTable<Key, Value>) -> Bool {
    table[position].isTimed && isOver(position, table.times)
  }

  /// Of the value at a position; nil where there is none whose time is not over. Under its mutex.
  @inlinable
  func birth(at position: UInt32, in table: borrowing ObjectTable<Key, Value>) -> UInt64? {
    position == noPosition || isOver(position, in: table) ? nil : table[position].birth
  }

  /// In how many milliseconds something is due, as `upkeepRound`. What is due is dropped on the cache's own thread, since the
  /// ends of values are the program's code.
  func untilDue() -> UInt64 {
    let next = nextEnd.load(ordering: .relaxed)
    if next == .max { return .max }
    let (end, now) = (UInt64(next), clock.now())
    if end <= now { begin { $0.wantsUpkeep = true } }
    // How fast another clock runs is not known.
    return end > now && clock.isSystem ? (end - now) / 1_000_000 + 1 : 0
  }
}
