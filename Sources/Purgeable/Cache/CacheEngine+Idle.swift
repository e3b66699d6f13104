// SPDX-License-Identifier: MIT
// The eager mode: what nobody used for a time is given back, also where nobody needs the memory.
//
// For environments where only resident memory counts: the kernel leaves pages on offer where they are until it needs them, and
// whoever watches RSS takes that for use. No entry carries a time. Instead each queue is marked every quarter of the idle time; when
// a mark is as old as the idle time, so is everything before it, and what was used meanwhile shows in the counters.
//
//     oldest [slab][slab] mark [slab][slab][slab] mark [slab] mark  youngest
//             idle time ago          3/4              1/2
//
// What was used moves to the young end with a counter of 0: so an entry goes after one to two idle times without use.

import CPurgeable
import Synchronization

/// Everything up to this slab was born before this time.
struct IdleMark {
  let time: UInt64
  let slab: purgeable_slab_t
}

extension CacheEngine {
  /// When marks are due again; nil where the mode is off or nothing is held.
  func nextIdleRound() -> UInt64? {
    guard let idle = budget.withLock({ $0.idleNanoseconds }), totalCount.load(ordering: .relaxed) > 0 else { return nil }
    return lastIdleRound.load(ordering: .relaxed) + idle / 4
  }

  /// Marks and gives back what is due. Returns how many bytes it gave back.
  @discardableResult
  func giveBackIdle(now: UInt64 = MonotonicTime.now) -> Int {
    guard let idle = budget.withLock({ $0.idleNanoseconds }) else { return 0 }
    lastIdleRound.store(now, ordering: .relaxed)
    let before = heldBytes
    for shard in shards {
      withState(shard) { state in
        for queue in EngineQueue.allCases { giveBackIdle(queue, idle, now, shard, &state) }
        sweepLost(shard, &state)
        shrinkIndex(shard, &state)
      }
    }
    return max(0, before - heldBytes)
  }

  private func giveBackIdle(
    _ queue: EngineQueue, _ idle: UInt64, _ now: UInt64, _ shard: EngineShard, _ state: inout ShardState
  ) {
    let stream = shard.streams[queue.rawValue]
    while let mark = state.idleMarks[queue.rawValue].first, now - min(now, mark.time) >= idle {
      state.idleMarks[queue.rawValue].removeFirst()
      var information = purgeable_slab_information_t()
      var slab = purgeable_slab_t(index: 0, generation: 0)
      // Gone already, and so is everything before it; handed to the young end, it is due later.
      while unsafe purgeable_slab_information(heap.raw, mark.slab, &information) == 0, information.stream == stream,
        unsafe purgeable_stream_oldest(heap.raw, stream, &slab) == 0
      {
        let isLast = slab.index == mark.slab.index && slab.generation == mark.slab.generation
        giveBackIdle(slab, queue, shard, &state)
        if isLast { break }
      }
    }
    let newest = state.idleMarks[queue.rawValue].last?.time ?? 0
    guard now - min(now, newest) >= idle / 4 else { return }
    // What is open now is older than what comes next.
    unsafe purgeable_stream_seal(heap.raw, stream)
    var slab = purgeable_slab_t(index: 0, generation: 0)
    if unsafe purgeable_stream_youngest(heap.raw, stream, &slab) == 0 {
      state.idleMarks[queue.rawValue].append(IdleMark(time: now, slab: slab))
    }
  }

  /// One slab whose time has come.
  private func giveBackIdle(
    _ slab: purgeable_slab_t, _ queue: EngineQueue, _ shard: EngineShard, _ state: inout ShardState
  ) {
    var information = purgeable_slab_information_t()
    guard unsafe purgeable_slab_information(heap.raw, slab, &information) == 0 else { return }
    if information.lost_page_count > 0 { sweepLost(shard, &state) }
    let entries = entries(of: slab, shard, state).living
    let usedBytes = entries.reduce(0) { $1.found.slot.counter > 0 ? $0 + $1.facts.payloadByteCount : $0 }
    // Mostly in use, or locked: it stays in one piece, and only what is idle leaves.
    let stays = information.lock_count > 0 || usedBytes * 2 > Int(information.held_bytes) || information.is_large && usedBytes > 0
    for entry in entries {
      let slot = Slot(bits: entry.found.pointer.relaxed)
      guard slot.isSameEntry(as: entry.found.slot) else { continue }
      if slot.counter == 0 {
        drop(entry.found, .idle, shard, &state, facts: entry.facts)
      } else if stays {
        setCounter(entry.found, 0)
      } else if case .kept = move(entry.found, to: .main, counter: 0, entry.facts, shard, &state) {
        continue
      }
    }
    if unsafe purgeable_slab_give_back(heap.raw, slab) != 0 {
      unsafe purgeable_slab_restream(heap.raw, slab, shard.streams[queue.rawValue])
      forgetIdleMarks(at: slab, queue, &state)
    }
  }

  /// A slab was the oldest and goes to the young end: what was marked by it has been dealt with.
  func forgetIdleMarks(at slab: purgeable_slab_t, _ queue: EngineQueue, _ state: inout ShardState) {
    state.idleMarks[queue.rawValue].removeAll { $0.slab.index == slab.index && $0.slab.generation == slab.generation }
  }
}
