// SPDX-License-Identifier: MIT
// Named numbers, and times by their distribution: what the stress processes tell each other.

/// Named numbers that go through a pipe, a line each. A name that is not there is 0.
struct Tally: Equatable, Sendable {
  private(set) var values: [String: UInt64] = [:]

  init(_ values: [String: UInt64] = [:]) {
    self.values = values
  }

  init(_ bytes: [UInt8]) {
    for line in String(decoding: bytes, as: UTF8.self).split(separator: "\n") {
      let words = line.split(separator: " ")
      if words.count == 2, let number = UInt64(words[1]) { values[String(words[0])] = number }
    }
  }

  subscript(name: String) -> UInt64 {
    get { values[name] ?? 0 }
    set { values[name] = newValue }
  }

  var bytes: [UInt8] { Array(values.map { "\($0) \($1)\n" }.joined().utf8) }
}

/// How many nanoseconds things took: counts in buckets that are 3 % wide at most, so that a percentile is that exact.
struct LatencyHistogram: Equatable, Sendable {
  /// Below 64 a bucket for each number, above 32 for each power of two.
  private var counts = [UInt32](repeating: 0, count: 64 + 58 * 32)
  private(set) var count: UInt64 = 0
  private(set) var most: UInt64 = 0

  mutating func add(_ nanoseconds: UInt64) {
    counts[Self.bucket(nanoseconds)] &+= 1
    count += 1
    most = max(most, nanoseconds)
  }

  mutating func add(_ other: LatencyHistogram) {
    for bucket in counts.indices { counts[bucket] &+= other.counts[bucket] }
    count += other.count
    most = max(most, other.most)
  }

  /// The time that so many of 100,000 stay within; 0 for none.
  func within(_ share: UInt64) -> UInt64 {
    if count == 0 { return 0 }
    let wanted = max(1, count.multipliedFullWidth(by: share).low / 100_000)
    var seen: UInt64 = 0
    for bucket in counts.indices {
      seen += UInt64(counts[bucket])
      if seen >= wanted { return min(most, Self.last(of: bucket)) }
    }
    return most
  }

  private static func bucket(_ value: UInt64) -> Int {
    if value < 64 { return Int(value) }
    let power = 63 - value.leadingZeroBitCount
    return 64 + (power - 6) * 32 + Int(value >> UInt64(power - 5)) - 32
  }

  /// The largest number of a bucket.
  private static func last(of bucket: Int) -> UInt64 {
    if bucket < 64 { return UInt64(bucket) }
    let (power, step) = (bucket - 64).quotientAndRemainder(dividingBy: 32)
    return (UInt64(step) + 33) << UInt64(power + 1) &- 1
  }
}

/// What a load did within some time.
struct Window: Equatable, Sendable {
  var reads: UInt64 = 0
  var hits: UInt64 = 0
  var wrongBytes: UInt64 = 0
  var stores: UInt64 = 0
  var refusals: UInt64 = 0
  var hitTimes = LatencyHistogram()
  var storeTimes = LatencyHistogram()

  mutating func add(_ other: Window) {
    reads += other.reads
    hits += other.hits
    wrongBytes += other.wrongBytes
    stores += other.stores
    refusals += other.refusals
    hitTimes.add(other.hitTimes)
    storeTimes.add(other.storeTimes)
  }

  var tally: Tally {
    [
      "reads": reads, "hits": hits, "wrongBytes": wrongBytes, "stores": stores, "refusals": refusals,
      "p50": hitTimes.within(50_000), "p99": hitTimes.within(99_000), "p99.9": hitTimes.within(99_900), "max": hitTimes.most,
      "store.p99.9": storeTimes.within(99_900), "store.max": storeTimes.most,
    ]
  }
}

extension Tally: ExpressibleByDictionaryLiteral {
  init(dictionaryLiteral elements: (String, UInt64)...) {
    self.init(Dictionary(elements) { $1 })
  }

  /// "61.0 %".
  var hitShare: String { Figures.share(self["hits"], of: self["reads"]) }
}
