// SPDX-License-Identifier: MIT
// Random numbers, the clock, patience, figures of several rounds, columns, the system's errors.

import Glibc
import Testing
import ToolSupport

@Suite("small parts of the tools")
struct SmallPartsTests {
  @Test("random numbers are those of SplitMix64 from the same seed, whatever the version of Swift")
  func random() {
    // As the authors' own program in C prints them.
    var random = SplitMix64(seed: 1_234_567)
    #expect(
      (0..<5).map { _ in random.next() } == [
        6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423, 4_593_380_528_125_082_431,
        16_408_922_859_458_223_821,
      ])
  }

  @Test("choices are within bounds, reach both ends, and an order has every index once")
  func choices() {
    var random = SplitMix64(seed: 9)
    let indices = (0..<10_000).map { _ in random.index(below: 7) }
    #expect(Set(indices) == Set(0..<7))
    #expect((0..<10_000).allSatisfy { _ in (0..<1).contains(random.fraction()) })
    #expect(random.shuffled(100).sorted() == Array(0..<100))
    #expect(random.shuffled(100) != Array(0..<100))
    #expect(random.shuffled(0).isEmpty)
    #expect(Set((0..<UInt64(1000)).map(SplitMix64.mix)).count == 1000)
  }

  @Test("the clock runs in nanoseconds and never goes back")
  func clock() {
    let before = Clock.now
    usleep(20_000)
    let after = Clock.now
    #expect(after - before >= 20_000_000)
    var last = after
    for _ in 0..<10_000 {
      let now = Clock.now
      #expect(now >= last)
      last = now
    }
  }

  @Test("patience ends when the condition holds, or with false")
  func patience() {
    var asked = 0
    let holds = patiently(seconds: 60) {
      asked += 1
      return asked == 3
    }
    #expect(holds && asked == 3)
    #expect(!patiently(seconds: 0) { false })
    #expect(patiently(seconds: 0) { true })
  }

  @Test("the median of rounds, and how far they are apart")
  func spread() {
    #expect(Spread([3, 1, 2]).median == 2)
    #expect(Spread([4, 1, 2, 3]) == Spread(median: 2.5, least: 1, most: 4, count: 4))
    #expect(Spread([]) == Spread(median: 0, least: 0, most: 0, count: 0))
  }

  @Test("columns are as wide as their widest cell, and padding never cuts")
  func columns() {
    #expect(columnWidths([["a", "bb"], ["ccc"], []]) == [3, 2])
    #expect(columnWidths([]) == [])
    #expect(tableLines([["a", "1", "22"], ["bbb", "333"], []]) == ["a      1  22", "bbb  333", ""])
    #expect(tableLines([["a", "b", "1"], ["cc", "dd", "22"]], leftColumns: 2) == ["a   b    1", "cc  dd  22"])
    #expect("ab".padded(to: 4) == "ab  " && "ab".indented(to: 4) == "  ab")
    #expect("abc".padded(to: 2) == "abc" && "abc".indented(to: 2) == "abc")
  }

  @Test("errors are told in words")
  func errors() {
    #expect(SystemError.text(ENOENT) == "No such file or directory")
    #expect("\(ToolFailure("no luck"))" == "no luck")
  }
}
