// SPDX-License-Identifier: MIT
// The first and the last deadline of each slab's entries, in ordinary memory that is mapped when the first entry has one.

import CPurgeable

/// The first and the last of some deadlines, in nanoseconds of the cache's clock.
struct DeadlineRange: Equatable {
  var first: UInt64
  var last: UInt64
}

/// The first and the last deadline of each slab.
struct SlabDeadlines: Sendable {
  private let words: SlabWords

  init(at word: SlotPointer) { words = SlabWords(at: word, perSlab: 2) }

  func destroy() { words.destroy() }

  /// nil where none was set. Setting does nothing where there is no memory: a slab without a range is never due.
  subscript(slab: purgeable_slab_t) -> DeadlineRange? {
    get {
      guard let first = words.first(of: slab) else { return nil }
      let range = DeadlineRange(first: first.relaxed, last: first[1].relaxed)
      return range.last == 0 ? nil : range
    }
    nonmutating set {
      guard let first = words.first(of: slab, isMade: newValue != nil) else { return }
      first.store(relaxed: newValue?.first ?? 0)
      first[1].store(relaxed: newValue?.last ?? 0)
    }
  }

  /// The slab begins another life.
  func forget(_ slab: purgeable_slab_t) { self[slab] = nil }

  func include(_ deadline: UInt64, _ slab: purgeable_slab_t) {
    let range = self[slab] ?? DeadlineRange(first: deadline, last: 0)
    if deadline < range.first || deadline > range.last {
      self[slab] = DeadlineRange(first: min(range.first, deadline), last: max(range.last, deadline))
    }
  }
}
