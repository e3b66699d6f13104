// SPDX-License-Identifier: MIT
// What the worker counted and measured, in a form that goes through a pipe.

import Purgeable

struct WorkerResult: Equatable, Sendable {
  enum Field: Int, CaseIterable, Sendable {
    case entries, loadedBytes, loadNanoseconds
    case reads, hits, wrongBytes, changedFiles, readNanoseconds
    /// Entries, and the bytes of those, that were found lost to the kernel; and what was paged out on demand.
    case discardedEntries, discardedBytes, pagedOutBytes
    /// 0 or an errno.
    case pageOutError
    case residentBytes, offeredBytes, heldBytes, ordinaryBytes, refusedStores
    /// Medians; zero where nothing could be measured.
    case hitNanoseconds, reloadNanoseconds, coldReloadNanoseconds, sampleCount, sampleBytes
  }

  private var values = [UInt64](repeating: 0, count: Field.allCases.count)
  var misses = [UInt64](repeating: 0, count: MissReason.allCases.count)

  init() {}

  subscript(field: Field) -> UInt64 {
    get { values[field.rawValue] }
    set { values[field.rawValue] = newValue }
  }

  var words: [UInt64] { values + misses }

  init?(_ words: [UInt64]) {
    guard words.count == values.count + misses.count else { return nil }
    values = Array(words.prefix(values.count))
    misses = Array(words.suffix(misses.count))
  }

  var missCount: UInt64 { misses.reduce(0, +) }

  /// The reasons that occurred, the most frequent first.
  var missesByReason: [(reason: MissReason, count: UInt64)] {
    MissReason.allCases.map { ($0, misses[$0.rawValue]) }.filter { $0.1 > 0 }.sorted { $0.1 > $1.1 }
  }
}
