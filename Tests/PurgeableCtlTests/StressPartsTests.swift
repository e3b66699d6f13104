// SPDX-License-Identifier: MIT
// The parts of the stress scenarios: contents, orders of keys, percentiles, the hits of an ideal LRU, verdicts.

import Testing
import ToolSupport

@testable import Purgeable
@testable import purgeablectl

@Suite("parts of stress")
struct StressPartsTests {
  @Test("content: right as written, one wrong byte for one flipped, more for another length or another key")
  func content() {
    let content = Content(seed: 5, sizes: 100...400)
    var buffer = [UInt8](repeating: 0, count: 400)
    var sizes: Set<Int> = []
    for number in 0..<UInt64(200) {
      let key = content.key(number)
      let size = unsafe buffer.withUnsafeMutableBytes { unsafe content.write(key, to: $0) }
      sizes.insert(size)
      func wrong(_ key: UInt64, _ bytes: ArraySlice<UInt8>) -> UInt64 {
        let bytes = Array(bytes)
        return unsafe bytes.withUnsafeBytes { unsafe content.wrongBytes(key, $0) }
      }
      #expect(wrong(key, buffer[..<size]) == 0)
      for place in [0, 7, 8, size / 2, size - 1] {
        buffer[place] ^= 0x40
        #expect(wrong(key, buffer[..<size]) == 1)
        buffer[place] ^= 0x40
      }
      #expect(wrong(key, buffer[..<(size - 1)]) == 1)
      #expect(wrong(content.key(number + 1), buffer[..<size]) > 50)
      #expect(wrong(key, []) == UInt64(size))
    }
    #expect(sizes.count > 50)
    #expect(sizes.isSubset(of: Set(100...400)))
  }

  @Test("zeros are never the content: a discarded page is found out")
  func zeros() {
    let content = Content(seed: 1, sizes: 8...8)
    for number in 0..<UInt64(1000) {
      let zeros = [UInt8](repeating: 0, count: 8)
      #expect(unsafe zeros.withUnsafeBytes { unsafe content.wrongBytes(content.key(number), $0) } > 0)
    }
  }

  @Test("keys by popularity: the first as often as Zipf's law says, all of them below the count")
  func popularity() {
    let count: UInt64 = 1000
    var hits = [Int](repeating: 0, count: Int(count))
    for number in ZipfNumbers(count: count, seed: 9).prefix(200_000) { hits[Int(number)] += 1 }
    var sum = 0.0
    for rank in 1...1000 { sum += 1 / Double(rank).squareRoot() / Double(rank).squareRoot() }
    // The exponent 0.99 is nearly 1, for which the sum is the harmonic number.
    #expect(abs(Double(hits[0]) / 200_000 - 1 / sum) < 0.02)
    #expect(abs(Double(hits[0]) / Double(hits[9]) - 9.77) < 1.5)
    #expect(hits[500...].reduce(0, +) > 10_000)
    #expect(Array(ZipfNumbers(count: 1, seed: 1).prefix(5)) == [0, 0, 0, 0, 0])
  }

  @Test("the order of birth has every key once", arguments: [1, 2, 3, 10, 4096, 9973])
  func birthOrder(count: Int) throws {
    let load = StressContent(seed: 1, totalBytes: UInt64(count * 108), sizes: 100...100)
    #expect(load.keyCount == count)
    #expect(Set(load.birthOrder).count == count)
    #expect(load.birthOrder.max() == UInt64(count - 1))
  }

  @Test("percentiles are right within 4 %, the most is exact")
  func percentiles() {
    var times = LatencyHistogram()
    #expect(times.within(50_000) == 0)
    for value in 1...100_000 { times.add(UInt64(value)) }
    for (share, value) in [(50_000, 50_000.0), (99_000, 99_000), (99_900, 99_900)] {
      let found = Double(times.within(UInt64(share)))
      #expect(found >= value && found <= value * 1.04, "\(share)")
    }
    #expect(times.most == 100_000)
    #expect(times.within(100_000) == 100_000)
    var small = LatencyHistogram()
    for value in 0..<UInt64(64) { small.add(value) }
    #expect(small.within(50_000) == 31)
    small.add(.max)
    #expect(small.within(100_000) == .max)
  }

  @Test("numbers go through a pipe by name; what is not there is 0")
  func tally() {
    var tally: Tally = ["a": 1, "p99.9": .max]
    tally["b"] += 7
    let again = Tally(tally.bytes)
    #expect(again == tally)
    #expect(again["nothing"] == 0)
    #expect(Tally([]) == Tally())
  }

  @Test("an ideal LRU answers everything when all is left, nothing when nothing is, and more than its share of what is hot")
  func idealLRU() throws {
    let load = StressContent(seed: 2, totalBytes: 108 * 1000, sizes: 100...100)
    #expect(try IdealLRU.answered(load: load, warmReads: 5000, size: 1000, reads: 1000) == 1000)
    #expect(try IdealLRU.answered(load: load, warmReads: 5000, size: 0, reads: 1000) == 0)
    let half = try IdealLRU.answered(load: load, warmReads: 5000, size: 500, reads: 1000)
    #expect((700..<1000).contains(half))
  }

  @Test("a spread as cells of a table")
  func spread() {
    #expect(Spread([4, 1]).cells == ["2.50", "1.00", "4.00"])
    #expect(Spread([]).cells == ["-", "-", "-"])
  }

  @Test("verdicts: passed, failed with every reason, skipped with its one")
  func verdicts() throws {
    func verdict(_ outcome: StressOutcome) throws -> String {
      let command = try #require(Command.all.first { $0.name == "stress" })
      let arguments = try Arguments(["hot"], options: command.options, operandCount: command.operands.count)
      return StressReport(
        scenario: .hot, options: try StressOptions(arguments), seed: 1, pressure: "none", swap: "off", outcome: outcome,
        nanoseconds: 1
      ).verdict
    }
    let passed = try verdict(StressOutcome(highlights: ["hits 61 %"]))
    #expect(passed == "hot         passed  0 wrong bytes, nobody killed, nothing hung, hits 61 %")
    let wrong = try verdict(StressOutcome(wrongBytes: 3))
    #expect(wrong == "hot         FAILED  3 wrong bytes")
    let hung = try verdict(StressOutcome(failures: ["the cache hangs"]))
    #expect(hung == "hot         FAILED  0 wrong bytes, the cache hangs")
    let skipped = try verdict(StressOutcome(skipped: "no memory group"))
    #expect(skipped == "hot         skipped  no memory group")
  }

  @Test("a record is of one run: of several it is refused")
  func recordOfOne() throws {
    func options(_ words: [String]) throws -> StressOptions {
      try StressOptions(try Arguments(words, options: Command.stress.options, operandCount: 1))
    }
    #expect(try options(["hot", "--record", "run"]).recordPath == "run")
    for words in [
      ["--all", "--record=run"], ["hot", "--repeat=2", "--record=run"], ["hot", "--repeat=18446744073709551615", "--record=a"],
    ] {
      let error = #expect(throws: UsageError.self) { try options(words) }
      #expect(error?.message.contains("--record") == true)
    }
  }
}
