// SPDX-License-Identifier: MIT
// Pressure without a memory group: the kernel is asked to page out what is on offer, as a limit and a neighbour would make it do.

import Purgeable
import ToolSupport

struct PageOutPressure {
  /// What may stay in memory while the neighbour is not hungry; while it is, two thirds of it.
  let limitBytes: UInt64
  /// What was taken so far.
  private(set) var takenBytes: UInt64 = 0
  /// 0, or why the kernel does not page out.
  private(set) var errorNumber: Int32 = 0
  private var hand = PageOutHand()
  private var isHungry = false
  private var nextTime: UInt64 = 0

  init(limitBytes: UInt64) {
    self.limitBytes = limitBytes
  }

  /// Several times a second.
  var isDue: Bool { Clock.now >= nextTime }

  mutating func make<Key, Value>(on cache: PurgeableCache<Key, Value>) throws {
    nextTime = Clock.now + 200_000_000
    guard errorNumber == 0 else { return }
    isHungry.toggle()
    // Twice: one offer skips pages.
    cache.offerIdle()
    cache.offerIdle()
    let stay = isHungry ? limitBytes / 3 * 2 : limitBytes
    let resident = UInt64(cache.statistics.memory.residentBytes ?? 0)
    guard resident > stay else { return }
    do {
      takenBytes += UInt64(try cache.pageOut(Int(resident - stay), hand: &hand))
    } catch {
      errorNumber = error.errorNumber
    }
  }
}
