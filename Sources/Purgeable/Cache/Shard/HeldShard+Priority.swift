// SPDX-License-Identifier: MIT
// Priorities: each is a queue of its own.
//
//   speculative   goes before all others; its first hit counts when its turn comes: then it goes on as a normal entry
//   normal        probation or main
//   pinned        in streams that are withheld from the kernel, and in no eviction's turn; leaves by removal, by its deadline, or
//                 with another priority
//
// What may be pinned is limited in bytes, over all shards: whoever pins reserves room first (CacheTotals).

import Synchronization

/// Where a new value goes.
struct EntryDestination {
  let queue: EvictionQueue
  /// The key left not long ago.
  var isRemembered = false
  /// What is reserved of the pinned bytes until the entry is booked.
  var reserved = 0
}

extension HeldShard {
  // MARK: Lanes

  /// Makes the lanes for entries of a queue, unless they are there. `isTimed`: of entries with a deadline. False without memory.
  mutating func makeLanes(for queue: EvictionQueue, isTimed: Bool) -> Bool {
    let isFirst = queue.rawValue < EvictionQueue.firstCount
    let hadNone = !lanes.hasOthers
    let last: EvictionQueue = isFirst ? .main : .pinned
    guard lanes.makeOthers(), base.makeStreams(upTo: Lane(last, isTimed ? Lane.timedCount : 0)) else { return false }
    if !isFirst { queueCount = EvictionQueue.count }
    if hadNone { noteIndexBytes() }
    return true
  }

  /// Whether there may be entries of another priority than normal.
  @inline(__always) var hasPriorities: Bool { queueCount > EvictionQueue.firstCount }
  @inline(__always) var hasSpeculative: Bool { hasPriorities && books[.speculative].count > 0 }

  /// The first hit has made a speculative entry normal.
  func priority(of slot: Slot) -> EntryPriority {
    guard hasPriorities else { return .normal }
    let priority = heap.queue(at: slot.place).priority
    return priority == .speculative && slot.counter > 0 ? .normal : priority
  }

  func isPinned(_ place: UInt64) -> Bool { hasPriorities && heap.queue(at: place) == .pinned }

  // MARK: Stores

  /// The destination of a key's new value, where the entry or the one that it replaces has a priority. nil where it may not be
  /// pinned.
  mutating func destination(
    of key: EngineKey, _ size: EntrySize, _ priority: EntryPriority?, replacing old: FoundSlot?
  ) -> EntryDestination? {
    let oldQueue = old.map { heap.queue(at: $0.slot.place) }
    switch priority {
    case .pinned:
      return reserve(size.byteCount, replacing: old).map { EntryDestination(queue: .pinned, reserved: $0) }
    case nil where oldQueue == .pinned:
      if let reserved = reserve(size.byteCount, replacing: old) {
        return EntryDestination(queue: .pinned, reserved: reserved)
      }
    case .speculative:
      if makeLanes(for: .speculative, isTimed: false) { return EntryDestination(queue: .speculative) }
    case .normal, nil: break
    }
    switch oldQueue {
    case .probation?, .main?: return EntryDestination(queue: oldQueue!)
    // It was worth the room.
    case .pinned?: return EntryDestination(queue: .main)
    case .speculative?, nil: return newDestination(of: key, size)
    }
  }

  /// Reserves room for a pinned value. nil above the limit, or without memory for the lanes.
  mutating func reserve(_ byteCount: Int, replacing old: FoundSlot? = nil) -> Int? {
    guard makeLanes(for: .pinned, isTimed: false) else { return nil }
    let given = old.flatMap { isPinned($0.slot.place) ? elements.length(heap.reference($0.slot.place)) : nil }
    let wanted = max(0, byteCount - (given ?? 0))
    return base.totals.reservePinned(wanted, limit: base.limits.pinned.load(ordering: .relaxed)) ? wanted : nil
  }

  /// Why there was no destination.
  var pinRefusal: StoreOutcome { queueCount == EvictionQueue.count ? .pinnedByteLimit : .outOfMemory }

  // MARK: Changing

  enum PriorityChange { case done, absent, noRoom, noMemory }

  /// Gives an entry another priority: it moves to another queue, by a copy.
  mutating func setPriority(_ priority: EntryPriority, _ key: EngineKey, _ prefix: RawSpan) -> PriorityChange {
    guard let found = find(key, prefix), elements.isIntact(found.slot.place), let facts = elements.facts(of: found.slot)
    else { return .absent }
    if self.priority(of: found.slot) == priority { return .done }
    var (queue, counter, reserved) = (EvictionQueue.main, found.slot.counter, 0)
    switch priority {
    case .pinned:
      queue = .pinned
      guard let room = reserve(facts.payloadByteCount) else { return pinRefusal == .pinnedByteLimit ? .noRoom : .noMemory }
      reserved = room
    case .speculative: (queue, counter) = (.speculative, 0)
    case .normal: if heap.queue(at: found.slot.place) == .speculative, entryOrder == nil { queue = .probation }
    }
    defer { base.totals.endReservation(reserved) }
    guard makeLanes(for: queue, isTimed: heap.lane(at: found.slot.place).number > 0),
      let outcome = move(found, facts, to: queue, counter: counter, freesOld: true)
    else { return .noMemory }
    switch outcome {
    case .left: return .absent
    case .lost:
      drop(found, .discarded)
      return .absent
    case .spared:
      entryOrder?.putOff(position(of: found), as: priority)
      counters.priorities += 1
      return .done
    }
  }
}
