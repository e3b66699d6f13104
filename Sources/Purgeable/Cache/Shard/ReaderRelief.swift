// SPDX-License-Identifier: MIT
// Overlapping readers of an entry keep its slab from ever being idle. The entries they use move to a fresh slab, so that the rest
// of the old slab can be offered again; unless most of the slab is in use, since the fresh slab would then be as busy.

import CPurgeable

struct ReaderRelief {
  /// Relieves slabs that readers have kept off offer for long, a few in each queue.
  func run(in held: inout HeldShard) {
    for queue in EvictionQueue.both {
      var busy = InlineArray<16, purgeable_slab_t>(repeating: .none)
      var count = 0
      for slab in held.heap.slabs(of: held.stream(queue)) {
        if count == busy.count { break }
        guard let information = held.heap.information(slab), information.busy_round_count > 0,
          information.busy_round_count % 8 == 0,
          !information.is_large
        else { continue }
        busy[count] = slab
        count += 1
      }
      for i in 0..<count { relieve(busy[i], queue, &held) }
    }
  }

  private func relieve(_ slab: purgeable_slab_t, _ queue: EvictionQueue, _ held: inout HeldShard) {
    let heap = held.heap
    /// Whether the entry is on a page that its readers keep off offer.
    func isHot(_ entry: FoundEntry) -> Bool { !heap.isOnOffer(entry.found.slot.place) }
    var notes = SlabNotes()
    while notes.takeUp(slab, of: held) {
      var hotBytes = 0
      var allBytes = 0
      for i in 0..<notes.count {
        guard let entry = notes[i] else { continue }
        allBytes += entry.facts.payloadByteCount
        if isHot(entry) { hotBytes += entry.facts.payloadByteCount }
      }
      guard hotBytes <= held.order.room(ofBytes: allBytes) else { continue }
      for i in 0..<notes.count {
        guard let entry = notes[i], isHot(entry) else { continue }
        _ = held.move(entry, to: queue, counter: entry.found.slot.counter)
      }
    }
  }
}
