// SPDX-License-Identifier: MIT
// The core: slabs that are kept off offer, so that the kernel cannot take them while there is room beside them.
//
//   share         up to a share of the bytes of both queues: the youngest slabs of main, and where that has less, the youngest of
//                 probation. A cache without a limit has nearly all in probation
//   used within   the slabs in which an entry was used within a time, by its last use (LastUses.swift); main's first
//   new slabs     of main, and of probation where the last round kept all of main, are withheld from their first element on, as
//                 far as there may be a core so large; the next round looks whether they stay
//   let go        all go on offer where memory is short (Engine/CacheEngine+Core.swift)
//
// Rounds decide by whole slabs. What is on offer already when it comes to the core is taken off by locking it once.

import CPurgeable
import Synchronization

extension HeldShard {
  /// Decides which slabs are kept off offer, `limit` bytes of them at most. Returns how many bytes. nil: none.
  mutating func reviewCore(_ core: CacheCore?, atMost limit: Int) -> Int {
    let now = base.clock.now()
    if case .usedWithin(let time) = core { markUsed(within: time.wholeNanoseconds, now) }
    let main = bytes(of: .main, core, now)
    let all = main + bytes(of: .probation, core, now)
    var most = min(limit, all)
    coreHasMain = false
    if case .share(let share) = core {
      most = min(limit, Int((Double(all) * share).rounded(.up)))
      coreHasMain = most >= main
    }
    let left = keep(most, of: .main, core, now)
    return most - keep(left, of: .probation, core, now)
  }

  /// Keeps a queue's youngest slabs off offer, so many bytes of those that may be in the core, and no others. Returns how many
  /// bytes are left of it.
  private func keep(_ byteCount: Int, of queue: EvictionQueue, _ core: CacheCore?, _ now: UInt64) -> Int {
    var left = byteCount
    for lane in usedLanes(of: queue) {
      var passed = bytes(of: lane, core, now) - left
      for slab in heap.slabs(of: stream(lane)) {
        let byteCount = heldBytes(of: slab)
        var stays = mayStay(slab, core, now)
        if stays, passed > 0 {
          passed -= byteCount
          stays = false
        }
        heap.withhold(slab, stays)
        if stays {
          left -= byteCount
          takeOffOffer(slab)
        }
      }
    }
    return left
  }

  private func mayStay(_ slab: purgeable_slab_t, _ core: CacheCore?, _ now: UInt64) -> Bool {
    if case .usedWithin = core { base.slabNotes[useOf: slab] == now } else { core != nil }
  }

  private func bytes(of queue: EvictionQueue, _ core: CacheCore?, _ now: UInt64) -> Int {
    usedLanes(of: queue).reduce(0) { $0 + bytes(of: $1, core, now) }
  }

  private func bytes(of lane: Lane, _ core: CacheCore?, _ now: UInt64) -> Int {
    heap.slabs(of: stream(lane)).reduce(0) { mayStay($1, core, now) ? $0 + heldBytes(of: $1) : $0 }
  }

  private func heldBytes(of slab: purgeable_slab_t) -> Int { heap.information(slab).map { Int($0.held_bytes) } ?? 0 }

  private func takeOffOffer(_ slab: purgeable_slab_t) {
    guard heap.pages(of: slab).contains(where: { heap.isOnOffer($0) }) else { return }
    var cursor: UInt32 = 0
    while let element = heap.nextElement(of: slab, &cursor) {
      if unsafe heap.lock(element).outcome == .intact { heap.unlock(element) }
    }
  }

  /// Marks the slabs in which an entry was used within a time. A pass over the index.
  private mutating func markUsed(within time: UInt64, _ now: UInt64) {
    keepLastUses()
    let (table, steps) = (index.current(), UInt32(clamping: time / Lifetime.useStep))
    guard let slots = table.slots else { return }
    for i in 0..<table.slotCount {
      let slot = Slot(bits: slots[i].relaxed)
      if !slot.isEmpty, table.lastUse(of: slots[i]).time.steps(until: UseTime(now)) <= steps {
        base.slabNotes[useOf: heap.slab(of: heap.reference(slot.place))] = now
      }
    }
  }

  /// A slab has come to a lane.
  @inline(__always)
  func noteCore(_ slab: purgeable_slab_t, in lane: Lane) {
    let from = base.coreFrom.load(ordering: .relaxed)
    if from == .max { return }
    let isKept = lane.queue == .main || lane.queue == .probation && coreHasMain
    heap.withhold(slab, from == 0 && isKept && entersCore(slab))
  }

  /// Counts a new slab in the core, unless that would be more than half of the memory or, until the next round, than twice the
  /// share.
  private func entersCore(_ slab: purgeable_slab_t) -> Bool {
    // It will be filled.
    let byteCount = max(heldBytes(of: slab), heap.slabBytes)
    let (totals, held) = (base.totals, heap.heldBytes)
    let most = base.coreLimit.load(ordering: .relaxed) - totals.pinnedBytes.load(ordering: .relaxed)
    let share = 2 * base.coreShare.load(ordering: .relaxed) * Double(held)
    let before = totals.coreBytes.add(byteCount, ordering: .relaxed).oldValue
    guard min(before + byteCount, held) <= min(most, Int(share)) else {
      totals.coreBytes.subtract(byteCount, ordering: .relaxed)
      return false
    }
    if before == 0 { WorkBell.beHeardAnew() }
    return true
  }
}

extension CacheBase {
  /// Which core is kept from here on; nil for none.
  func note(_ core: CacheCore?) {
    coreLimit.store(core == nil ? 0 : CacheCore.mostBytes, ordering: .relaxed)
    coreShare.store(core?.share ?? 0, ordering: .relaxed)
    coreFrom.store(core == nil ? .max : 0, ordering: .relaxed)
  }
}

extension CacheCore {
  var needsLastUses: Bool { if case .usedWithin = self { true } else { false } }
  /// The most of all slabs that may be in it.
  var share: Double { if case .share(let share) = self { share } else { 1 } }
  /// What a core and pinned entries may take together.
  static var mostBytes: Int { Int(clamping: ProcessMemory.limit() / 2) }
}
