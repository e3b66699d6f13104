// SPDX-License-Identifier: MIT
// How memory types and caches say that there is work for the library's thread, without knowing of it.
//
//   a region is idle, a value is stored --ring--> isRung --purgeable__thread_wake--> whoever hears it (Thread/Maintainer.swift)

import CPurgeablePressure
import Synchronization

/// Work for the library's thread. Outside of every mutex of this library.
enum WorkBell {
  /// Whether it was rung since the last round began. Set by the thread's side only.
  static let isRung = Atomic<Bool>(false)

  /// Something became idle or was stored. One load while it was rung before: it runs on every last unlock.
  @inline(__always)
  static func ring() {
    if !isRung.load(ordering: .relaxed) { purgeable__thread_wake() }
  }

  /// The next ring is heard at once, whoever rang before. Under any mutex.
  static func beHeardAnew() { isRung.store(false, ordering: .relaxed) }

  /// Somebody came who will ring: whoever hears it is made ready, which takes memory.
  static func expectWork() { purgeable__thread_expect_work() }

  /// The last of a kind is gone: a thread that is there looks whether it is still needed.
  static func review() { purgeable__thread_review() }
}
