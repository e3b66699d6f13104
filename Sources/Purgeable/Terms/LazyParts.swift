// SPDX-License-Identifier: MIT
// What few caches of either kind need, made when it is first wanted.

import Synchronization

struct LazyParts: ~Copyable, Sendable {
  /// Who changes several entries in one call, and who looks at them all.
  let batches = BatchGate()
  private let lazyIntervals = AtomicLazyReference<IntervalThread>()
  private let lazySaves = AtomicLazyReference<IntervalThread>()
  private let lazyFiles = AtomicLazyReference<FileGate>()

  /// What the program wants done at intervals.
  var intervals: IntervalThread { lazyIntervals.load() ?? Self.publish(IntervalThread(), lazyIntervals) }
  var knownIntervals: IntervalThread? { lazyIntervals.load() }
  /// Saves at intervals: apart, since they wait for the disk.
  var saves: IntervalThread { lazySaves.load() ?? Self.publish(IntervalThread(), lazySaves) }
  var knownSaves: IntervalThread? { lazySaves.load() }
  /// Who saves or restores.
  var files: FileGate { lazyFiles.load() ?? Self.publish(FileGate(), lazyFiles) }
  var knownFiles: FileGate? { lazyFiles.load() }

  /// Of several that were made at the same time the first is taken.
  static func publish<Part>(_ new: Part, _ lazy: borrowing AtomicLazyReference<Part>) -> Part {
    ForkGuard.shared.betweenForks { lazy.storeIfNil(new) }
  }

  /// The cache has ended.
  func endIntervals() {
    knownIntervals?.remove(nil)
    knownSaves?.remove(nil)
  }

  /// Those that are there, for forks.
  func forEach(_ body: (any ForkProtected) -> Void) {
    if let knownFiles { body(knownFiles) }
    if let knownSaves { body(knownSaves) }
    if let knownIntervals { body(knownIntervals) }
  }
}
