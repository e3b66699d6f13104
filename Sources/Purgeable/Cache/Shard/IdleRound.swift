// SPDX-License-Identifier: MIT
// The eager mode: entries that were not used for a time are given back, even when memory is not short.
//
// For environments that judge a process by its resident memory (RSS): pages on offer stay resident until the kernel needs them.
// No entry carries a time. Instead each queue is marked every quarter of the idle time. When a mark is as old as the idle time,
// so are all entries before it, and the counters show which of them were used meanwhile.
//
//     oldest [slab][slab] mark [slab][slab][slab] mark [slab] mark  youngest
//             idle time ago          3/4              1/2
//
// Entries that were used move to the young end with a counter of 0. So an entry goes after one to two idle times without use.

import CPurgeable

/// All elements up to this slab were allocated before this time.
struct IdleMark {
  let time: UInt64
  let slab: purgeable_slab_t
}

/// The marks of one queue, oldest first. They are a quarter of the idle time apart, so a few are enough. When there is no room
/// for another one, the next mark covers its slabs too.
struct IdleMarks {
  private static let capacity = 8
  private var marks = InlineArray<8, IdleMark>(
    repeating: IdleMark(time: 0, slab: .none))
  private var count = 0

  var first: IdleMark? { count > 0 ? marks[0] : nil }
  var last: IdleMark? { count > 0 ? marks[count - 1] : nil }

  mutating func append(_ mark: IdleMark) {
    assert(count == 0 || marks[count - 1].time <= mark.time, "PurgeableCache: a mark is older than the one before")
    guard count < Self.capacity else { return }
    marks[count] = mark
    count += 1
  }

  mutating func removeFirst() { remove(at: 0) }

  /// Removes all marks at a slab.
  mutating func removeAll(at slab: purgeable_slab_t) {
    for i in (0..<count).reversed() where marks[i].slab.isSame(as: slab) {
      remove(at: i)
    }
  }

  private mutating func remove(at place: Int) {
    guard place < count else { return }
    for i in place + 1..<max(count, place + 1) { marks[i - 1] = marks[i] }
    count -= 1
  }
}

/// One round of the eager mode. Times are in nanoseconds of the cache's clock.
struct IdleRound {
  let idleTime: UInt64
  let now: UInt64

  /// Gives back the slabs that are due, and sets marks.
  func run(in held: inout HeldShard) {
    for queue in EvictionQueue.both { giveBack(queue, &held) }
    held.sweepLost()
    held.shrinkIndex()
  }

  private func giveBack(_ queue: EvictionQueue, _ held: inout HeldShard) {
    let heap = held.heap
    let stream = held.stream(queue)
    while let mark = held.idleMarks[queue.rawValue].first, now - min(now, mark.time) >= idleTime {
      held.idleMarks[queue.rawValue].removeFirst()
      // When the marked slab is gone, so are all slabs before it. When it was moved to the young end, it is due later.
      while heap.information(mark.slab)?.stream == stream, let slab = heap.oldest(of: stream) {
        giveBack(slab, queue, &held)
        if slab.isSame(as: mark.slab) { break }
      }
    }
    let newest = held.idleMarks[queue.rawValue].last?.time ?? 0
    guard now - min(now, newest) >= idleTime / 4 else { return }
    // Sealed, so that later entries go to a slab after the mark.
    heap.seal(stream)
    if let slab = heap.youngest(of: stream) { held.idleMarks[queue.rawValue].append(IdleMark(time: now, slab: slab)) }
  }

  /// Gives back one slab that is due.
  private func giveBack(_ slab: purgeable_slab_t, _ queue: EvictionQueue, _ held: inout HeldShard) {
    let (heap, order) = (held.heap, held.order)
    assert(!held.books.isSettling, "PurgeableCache: an eviction entry by entry while settling")
    guard let information = heap.information(slab) else { return }
    if information.lost_page_count > 0 { held.sweepLost() }
    var notes = SlabNotes()
    let rule = order.rule(queue, .idle)
    // A slab that is locked or mostly in use stays in one piece, and only its idle entries leave.
    var stays = information.lock_count > 0
    var usedBytes = 0
    while !stays, notes.takeUp(slab, of: held) {
      for i in 0..<notes.count {
        guard let entry = notes[i], entry.found.slot.counter >= rule.threshold else { continue }
        usedBytes += entry.facts.payloadByteCount
      }
      stays = usedBytes > order.room(ofBytes: Int(information.held_bytes)) || information.is_large && usedBytes > 0
    }
    // A slab of one piece need not be noted again.
    var hasPiece = notes.isWhole && notes.count > 0
    if !hasPiece { notes.begin() }
    while hasPiece || notes.takeUp(slab, of: held) {
      hasPiece = false
      for i in 0..<notes.count {
        guard let entry = notes[i] else { continue }
        switch order.verdict(counter: entry.found.slot.counter, byteCount: 0, queue, .idle, rule) {
        case .evict: held.drop(entry.found, .idle, facts: entry.facts)
        case .keep(let counter) where stays: entry.found.pointer.setCounter(counter)
        case .keep(let counter): _ = held.move(entry, to: .main, counter: counter)
        }
      }
    }
    if !heap.giveBack(slab) { held.restream(slab, queue, to: queue) }
  }
}
