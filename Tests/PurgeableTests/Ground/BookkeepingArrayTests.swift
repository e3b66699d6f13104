// SPDX-License-Identifier: MIT
// Arrays that give a part of their memory back.

import Testing

@testable import Purgeable

@Suite("bookkeeping arrays")
struct BookkeepingArrayTests {
  @Test(
    "an array shrinks to any length, twice, keeps what is left, and ends", arguments: [100, 4096, 8192, 8193, 16_384, 40_000])
  func shrink(_ count: Int) {
    for kept in stride(from: 1, to: count, by: max(1, count / 40)) {
      guard var array = BookkeepingArray<UInt32>(zeros: count) else {
        Issue.record("no memory")
        return
      }
      let before = array.byteCount
      for i in 0..<count { array[i] = UInt32(i) }
      array.shrink(to: kept)
      #expect(array.count == kept && array.byteCount <= before && array.byteCount >= 4 * kept)
      #expect(array.byteCount < 4 * kept + 4096 || array.byteCount == before)
      for i in 0..<kept { #expect(array[i] == UInt32(i)) }
      array.shrink(to: (kept + 1) / 2)
      for i in 0..<(kept + 1) / 2 { #expect(array[i] == UInt32(i)) }
    }
  }
}
