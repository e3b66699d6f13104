// SPDX-License-Identifier: MIT
// What eviction needs to know of slabs: their ages, and which of them are sparse.
//
// Ages count the elements that a cache's shards allocated, so that several shards keep one order. Each slab carries the ages of
// its first and last elements, and the ages between are interpolated. With a thousand entries a slab, they are right to some
// hundredths of the slab.
//
//     shard 16   |first_age ....... last_age|first_age ... now|
//     shard 17        |first_age .......... last_age|first now|

import CPurgeable

extension SlabInformation {
  /// The age of the element at a granule of the slab. `now`: the age of the next element to be allocated.
  func age(at granule: UInt32, now: UInt64) -> UInt64 {
    let last = last_age == 0 ? max(first_age, now) : max(first_age, last_age)
    guard used_granule_count > 0, !is_large else { return first_age }
    assert(last >= first_age, "PurgeableCache: a slab's last age is below its first")
    let part = Double(min(granule, used_granule_count)) / Double(used_granule_count)
    return first_age &+ UInt64(Double(last - first_age) * part)
  }

  /// What the order of eviction needs to know.
  var facts: SlabFacts {
    // Headers and padding are most of a small element, so they count. They are left out where pages are lost: `element_count`
    // includes lost elements, and `payload_bytes` does not.
    let overhead = lost_page_count == 0 ? SlabHeap.elementOverhead * Int(element_count) : 0
    return SlabFacts(
      heldBytes: Int(held_bytes), livingBytes: Int(payload_bytes) + overhead, isOpen: is_open, isLarge: is_large,
      isLocked: lock_count > 0)
  }
}

extension SlabHeap {
  /// The age of the element at a place; 0 when its slab is gone.
  func age(at place: UInt64, now: UInt64) -> UInt64 {
    information(slab(of: reference(place)))?.age(at: UInt32(truncatingIfNeeded: place & (granulesPerSlab - 1)), now: now) ?? 0
  }

  func firstAge(ofOldestIn stream: purgeable_stream_t) -> UInt64? {
    oldest(of: stream).flatMap { information($0)?.first_age }
  }
}
