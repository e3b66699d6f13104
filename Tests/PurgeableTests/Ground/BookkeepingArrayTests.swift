// SPDX-License-Identifier: MIT
// Arrays that give a part of their memory back.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("bookkeeping arrays")
struct BookkeepingArrayTests {
  @Test(
    "an array shrinks to any length, twice, keeps what is left, and ends", arguments: [100, 4096, 8192, 8193, 16_384, 40_000])
  func shrink(_ count: Int) {
    for kept in stride(from: 1, to: count, by: max(1, count / (TestRun.isFull ? 40 : 15))) {
      guard var array = BookkeepingArray<UInt32>(zeros: count) else {
        Issue.record("no memory")
        return
      }
      let before = array.byteCount
      for i in 0..<count { array[i] = UInt32(i) }
      array.shrink(to: kept)
      #expect(array.count == kept && array.byteCount <= before && array.byteCount >= 4 * kept)
      #expect(array.byteCount < 4 * kept + 4096 || array.byteCount == before)
      var wrong = 0
      for i in 0..<kept where array[i] != UInt32(i) { wrong += 1 }
      array.shrink(to: (kept + 1) / 2)
      for i in 0..<(kept + 1) / 2 where array[i] != UInt32(i) { wrong += 1 }
      #expect(wrong == 0, "\(wrong) elements of \(kept)")
    }
  }
}
