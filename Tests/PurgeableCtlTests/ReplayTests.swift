// SPDX-License-Identifier: MIT
// Replays of traces: the real tool against a plain simulation.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable
@testable import purgeablectl

@Suite("replay")
struct ReplayTests {
  private static func run(_ words: [String]) throws -> ChildProcess {
    try ChildProcess.runBuilt("purgeablectl", ["replay"] + words)
  }

  private static func object(_ words: [String]) throws -> [String: Any] {
    let child = try run(words + ["--json"])
    #expect(child.status == 0, "\(child.errors)")
    return try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any], "\(child.output)")
  }

  private static func number(_ object: [String: Any], _ name: String) throws -> Int {
    try #require(object[name] as? Int, "\(name)")
  }

  // MARK: Traces

  /// Few objects of 1 to 400 bytes, most requests for the first of them; one object in forty is larger. Sizes change at times.
  private static let requests: [TraceRequest] = {
    var random = SplitMix64(seed: 7)
    return (0..<(TestRun.isFull ? 3000 : 1000)).map { number in
      let key = UInt64(random.index(below: 1 + random.index(below: 400)))
      let change: UInt64 = number % 10 == 0 ? 100 : 0
      return TraceRequest(key: key, size: key % 40 == 39 ? 5000 : 1 + SplitMix64.mix(key) % 300 + change)
    }
  }()

  /// The misses of an exact LRU, and those of objects above the limit. `limit`: of the costs' sum.
  private static func exactLRU(
    _ requests: [TraceRequest], limit: UInt64, cost: (TraceRequest) -> UInt64
  ) -> (misses: Int, tooLarge: Int) {
    // The most recently used last.
    var entries: [TraceRequest] = []
    var (misses, tooLarge, sum) = (0, 0, UInt64(0))
    for request in requests {
      if let place = entries.firstIndex(where: { $0.key == request.key }) {
        entries.append(entries.remove(at: place))
        continue
      }
      misses += 1
      guard cost(request) <= limit else {
        tooLarge += 1
        continue
      }
      entries.append(request)
      sum += cost(request)
      while sum > limit { sum -= cost(entries.removeFirst()) }
    }
    return (misses, tooLarge)
  }

  // MARK: The tool

  @Test("with --order lru, it misses exactly what a plain LRU misses: by entries, by bytes of values, by a share of both")
  func lru() throws {
    let root = try FakeRoot([
      "plain.csv": TestTrace.csv(Self.requests, sizes: false), "sizes.csv": TestTrace.csv(Self.requests, sizes: true),
    ])
    defer { root.remove() }
    let objects = Dictionary(Self.requests.map { ($0.key, $0.size) }) { first, _ in first }
    let bytes = objects.values.reduce(0, +)
    for (file, capacity, limit) in [
      ("plain.csv", "50", 50), ("plain.csv", "10%", UInt64(objects.count) / 10), ("sizes.csv", "4000", 4000),
      ("sizes.csv", "4KiB", 4096), ("sizes.csv", "12.5%", bytes / 8),
    ] {
      let object = try Self.object([root.path + "/" + file, "--order", "lru", "--capacity", capacity])
      let (misses, tooLarge) = Self.exactLRU(Self.requests, limit: limit) { file == "plain.csv" ? 1 : $0.size }
      #expect(try Self.number(object, "misses") == misses, "\(capacity)")
      #expect(try Self.number(object, "hits") == Self.requests.count - misses)
      #expect(object["missRatio"] as? Double == Double(misses) / Double(Self.requests.count))
      #expect(try Self.number(object, "capacity") == Int(limit))
      #expect(object["capacityUnit"] as? String == (file == "plain.csv" ? "objects" : "payloadBytes"))
      #expect(try Self.number(object, "objects") == objects.count)
      #expect(try Self.number(object, "footprint") == (file == "plain.csv" ? objects.count : Int(bytes)))
      #expect(try Self.number(object, "tooLarge") == tooLarge)
    }
  }

  @Test("both formats give the same, told apart by content too; all that the JSON object has to have is there")
  func formats() throws {
    let root = try FakeRoot(["text": TestTrace.csv(Self.requests, sizes: true)])
    defer { root.remove() }
    try TestTrace.records(Self.requests).write(to: URL(fileURLWithPath: root.path + "/records"))
    var objects = try ["text", "records"].map { name in
      try Self.object([root.path + "/" + name, "--order", "lru", "--capacity", "4000"])
    }
    #expect(objects.map { $0["format"] as? String } == ["csv", "oracleGeneral"])
    for index in objects.indices {
      #expect(try Self.number(objects[index], "requests") == Self.requests.count)
      #expect(objects[index]["nanosecondsPerRequest"] as? Double ?? 0 > 0)
      #expect(objects[index]["byteMissRatio"] as? Double ?? 0 > 0)
      #expect(objects[index]["order"] as? String == "lru")
      #expect(objects[index]["trace"] as? String == root.path + (index == 0 ? "/text" : "/records"))
      #expect(try Self.number(objects[index], "wrongBytes") == 0)
      for name in ["trace", "format", "nanosecondsPerRequest"] { objects[index][name] = nil }
    }
    #expect(NSDictionary(dictionary: objects[0]) == NSDictionary(dictionary: objects[1]))
  }

  @Test("with room for all, it misses each object once, in either order; the table says so", arguments: EvictionOrder.allCases)
  func roomForAll(order: EvictionOrder) throws {
    let root = try FakeRoot(["plain": TestTrace.csv(Self.requests, sizes: false)])
    defer { root.remove() }
    let count = Set(Self.requests.map(\.key)).count
    let object = try Self.object([root.path + "/plain", "--order=\(order.name)", "--capacity=100%"])
    #expect(try Self.number(object, "misses") == count)
    #expect(try Self.number(object, "entries") == count)
    let table = try Self.run([root.path + "/plain", "--order=\(order.name)", "--capacity", "16MB"])
    #expect(table.output.contains("at most 15.3 MiB in all, order \(order.name)\n"))
    #expect(table.output.contains("No wrong byte."))
    #expect(table.status == 0)
  }

  @Test(
    "with --expiry, an object misses again once its time is over, by the times of the trace", arguments: EvictionOrder.allCases)
  func expiry(order: EvictionOrder) throws {
    let root = try FakeRoot()
    defer { root.remove() }
    // A request a second.
    let lines = Self.requests.enumerated().map { "\($0),\($1.key),\($1.size)\n" }.joined()
    try root.write("trace.csv", "time,key,bytes\n" + lines)
    try TestTrace.records(Self.requests).write(to: URL(fileURLWithPath: root.path + "/trace.oracleGeneral"))
    for (seconds, name) in TestRun.isFull
      ? [(1, "csv"), (40, "oracleGeneral"), (700, "csv"), (4000, "csv")] : [(1, "oracleGeneral"), (700, "csv")]
    {
      let path = root.path + "/trace." + name
      var stored: [UInt64: Int] = [:]
      let misses = Self.requests.enumerated().count { now, request in
        if let time = stored[request.key], now < time + seconds { return false }
        stored[request.key] = now
        return true
      }
      let object = try Self.object([path, "--order=\(order.name)", "--capacity=100000000", "--expiry", "\(seconds)"])
      #expect(try Self.number(object, "misses") == misses)
      #expect(try Self.number(object, "expiries") + Self.number(object, "entries") == misses)
      #expect(try Self.number(object, "evictions") == 0 && Self.number(object, "expiry") == seconds)
    }
    let table = try Self.run([root.path + "/trace.csv", "--capacity=100000000", "--expiry=40"])
    #expect(table.output.contains("after 40 s by the trace's times") && table.status == 0)
  }

  @Test("with --cost, what the misses cost is told, and the cache keeps what is dear unless it is not told")
  func costs() throws {
    // A tenth of the objects are dear; the column stands before the sizes, beside one that nobody asks for.
    func cost(_ key: UInt64) -> Double { key % 10 == 3 ? 250.5 : 0.5 }
    var random = SplitMix64(seed: 11)
    let objectCount = TestRun.isFull ? 1000 : 400
    let keys = (0..<objectCount * 6).map { _ in UInt64(random.index(below: 1 + random.index(below: objectCount))) }
    // There is room for as many as are dear.
    let (room, bytes) = ("--capacity=\(objectCount / 10)", "--capacity=\(objectCount / 10 * 64)")
    let root = try FakeRoot([
      "sizes.csv": keys.reduce(into: "key,cost,host,bytes\n") { $0 += "\($1),\(cost($1)),a,64\n" },
      "plain.csv": keys.reduce(into: "key,ms\n") { $0 += "\($1),\(cost($1))\n" },
    ])
    defer { root.remove() }
    let all = keys.reduce(0) { $0 + cost($1) }
    for words in [["sizes.csv", "--cost=cost", bytes], ["plain.csv", "--cost=ms", room]] {
      let words = [root.path + "/" + words[0]] + words.dropFirst()
      let told = try Self.object(words)
      let untold = try Self.object(words + ["--without-credit"])
      for object in [told, untold] {
        #expect(try abs(#require(object["cost"] as? Double) - all) < 1e-6 * all)
        let missCost = try #require(object["missCost"] as? Double)
        #expect(try abs(#require(object["costMissRatio"] as? Double) - missCost / all) < 1e-9)
        #expect(try Self.number(object, "wrongBytes") == 0)
      }
      #expect(told["withoutCredit"] as? Bool == false && untold["withoutCredit"] as? Bool == true)
      let costs = try [told, untold].map { try #require($0["missCost"] as? Double) }
      #expect(costs[0] < 0.8 * costs[1], "\(costs)")
      // Exactly the misses' costs: an exact LRU is told, and does not heed it.
      let requests = keys.map { TraceRequest(key: $0, size: 64) }
      var misses = 0.0
      var recent: [UInt64] = []
      for key in keys {
        if let place = recent.firstIndex(of: key) { recent.remove(at: place) } else { misses += cost(key) }
        recent.append(key)
        if recent.count > objectCount / 10 { recent.removeFirst() }
      }
      let lru = try Self.object(words + ["--order=lru"])
      #expect(try #require(lru["missCost"] as? Double) == misses)
      #expect(requests.count == (try Self.number(lru, "requests")))
    }
    let equal = try Self.object([root.path + "/sizes.csv", "--cost=equal", bytes])
    #expect(try equal["missCost"] as? Double == Double(Self.number(equal, "misses")))
    let table = try Self.run([root.path + "/plain.csv", "--cost=ms", room, "--without-credit"])
    #expect(table.output.contains("cost of misses") && table.output.contains("the cache was not told"))
    #expect(try Self.object([root.path + "/plain.csv", room])["missCost"] is NSNull)
  }

  @Test(
    "with --record, the run is on record to its last count, and can be drawn", arguments: ["--capacity=90", "--memory-limit=64M"])
  func recorded(bound: String) throws {
    let root = try FakeRoot(["sizes.csv": TestTrace.csv(Self.requests, sizes: true)])
    defer { root.remove() }
    let path = root.path + "/run"
    let child = try Self.run([root.path + "/sizes.csv", bound, "--json", "--record", path])
    if bound.hasPrefix("--memory"), child.errors.contains("no memory group") { return }
    #expect(child.status == 0, "\(child.errors)")
    let object = try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any])
    let record = try RunRecord(path: path)
    let last = try #require(record.samples.last)
    #expect(record.header.run == "replay" && record.header.about.contains("sizes.csv, "))
    #expect(try last.hits == UInt64(Self.number(object, "hits")) && last.misses == UInt64(Self.number(object, "misses")))
    #expect(last.wrongBytes == 0 && last.heldBytes ?? 0 > 0 && last.residentBytes ?? 0 > 0)
    #expect(
      (last.groupBytes != nil) == bound.hasPrefix("--memory") && (record.header.limitBytes != nil) == (last.groupBytes != nil))
    // However short: it begins with nothing.
    #expect(record.samples.first?.hits == 0 && record.samples.first?.misses == 0)
    #expect(RunChart(record).svg.contains("<polyline class=\"ratio\" points="))
    let text = try String(contentsOfFile: path, encoding: .utf8)
    #expect(text.split(separator: "\n").last?.hasPrefix("{\"result\": {\"trace\"") == true)
    let refused = try Self.run([root.path + "/sizes.csv", bound, "--record", "/nowhere/run"])
    #expect(refused.status == 1 && refused.errors.contains("/nowhere/run"))
    // A mistake costs neither the trace nor the last record.
    let trace = try Self.run([root.path + "/sizes.csv", bound, "--record", root.path + "/sizes.csv"])
    #expect(trace.status == 2 && trace.errors.contains("is the trace"))
    #expect(try String(contentsOfFile: root.path + "/sizes.csv", encoding: .utf8) == TestTrace.csv(Self.requests, sizes: true))
    for record in [path, root.path + "/new"] {
      #expect(try Self.run([root.path + "/none", bound, "--record", record]).status == 2)
    }
    #expect(!FileManager.default.fileExists(atPath: root.path + "/new"))
    try root.write("wrong.csv", "key,bytes\n1,-2\n")
    for record in [path, root.path + "/new"] {
      #expect(try Self.run([root.path + "/wrong.csv", bound, "--record", record]).status == 2)
    }
    #expect(!FileManager.default.fileExists(atPath: root.path + "/new"))
    #expect(try String(contentsOfFile: path, encoding: .utf8) == text)
  }

  @Test("called wrongly, or with a trace that is cut off, it says so, prints nothing else and ends with 2")
  func refuses() throws {
    let root = try FakeRoot()
    defer { root.remove() }
    let path = root.path + "/cut.oracleGeneral"
    try TestTrace.records(Array(Self.requests.prefix(8))).dropLast().write(to: URL(fileURLWithPath: path))
    for (words, message) in [
      ([path, "--capacity", "10"], "record 8: cut off after 23 of 24 bytes"),
      ([path, "--capacity", "10%"], "record 8: cut off after 23 of 24 bytes"),
      ([path, "--memory-limit", "1M"], "--memory-limit: 1048576 bytes; between 32M and 1T"),
      ([root.path + "/nothing", "--capacity", "10", "--json"], "No such file"),
      ([path, "--capacity", "10", "--cost", "ms"], "is oracleGeneral, which has no column \"ms\"; write equal"),
    ] {
      let child = try Self.run(words)
      #expect(child.status == 2)
      #expect(child.errors.contains(message), "\(child.errors)")
      #expect(child.output.isEmpty)
    }
  }

  @Test(
    "in a memory group pressure alone evicts: the library's reaction, or the kernel; nothing is left behind",
    .fullRun, .disabled(if: Sanitizer.isAddress || Sanitizer.isThread, "does not fit into the group"))
  func memoryGroup() throws {
    let groups = GroupsOfTheDead(of: "replay")
    // Three times what there is room for.
    let requests = (0..<24_000).map { TraceRequest(key: $0, size: 4000) }
    let root = try FakeRoot(["trace.csv": TestTrace.csv(requests, sizes: true)])
    defer { root.remove() }
    for words in [[], ["--kernel-alone"]] {
      let child = try Self.run([root.path + "/trace.csv", "--memory-limit", "32M", "--json"] + words)
      if child.errors.contains("no memory group") {
        #expect(child.status == 1)
        #expect(child.output.isEmpty)
        continue
      }
      #expect(child.status == 0, "\(child.errors)")
      let object = try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any])
      #expect(try Self.number(object, "misses") == requests.count)
      #expect(try Self.number(object, "memoryLimit") == 32 << 20)
      let (losses, evictions) = (try Self.number(object, "losses"), try Self.number(object, "evictions"))
      #expect(try losses + evictions + Self.number(object, "entries") == requests.count)
      #expect(losses + evictions > requests.count / 2)
      if words == ["--kernel-alone"] { #expect(evictions == 0) }
    }
    #expect(groups.added == [])
  }

  // MARK: The parts

  @Test("a hit with wrong bytes is counted, byte by byte")
  func wrongBytes() throws {
    for size in [1, 7, 8, 64, 77] {
      var bytes = [UInt8](repeating: 0, count: size)
      unsafe bytes.withUnsafeMutableBytes { unsafe TraceContent.write(5, to: $0) }
      func wrong(_ key: UInt64, _ bytes: [UInt8]) -> UInt64 {
        unsafe bytes.withUnsafeBytes { unsafe TraceContent.wrongBytes(key, $0) }
      }
      #expect(wrong(5, bytes) == 0)
      for place in 0..<size {
        bytes[place] ^= 0x10
        #expect(wrong(5, bytes) == 1)
        bytes[place] ^= 0x10
      }
      #expect(wrong(6, bytes) > 0)
      if size > 8 { #expect(wrong(5, Array(bytes.dropLast(8))) > size / 2) }
    }
    var cache = try ReplayCache(.objects(10), order: .s3FIFO)
    let requests = [TraceRequest(key: 1, size: 64), TraceRequest(key: 2, size: 64)]
    cache.run(requests)
    cache.run(requests)
    #expect(cache.counts.hits == 2)
    #expect(cache.counts.wrongBytes == 0)
    let right = try #require(cache.cache.value(forKey: 2))
    cache.cache[2] = [right[0] ^ 1] + right[1..<40] + [right[40] ^ 1] + right[41...]
    cache.run(requests)
    #expect(cache.counts.hits == 4)
    #expect(cache.counts.wrongBytes == 2)
    cache.cache[2] = []
    cache.run(requests)
    #expect(cache.counts.wrongBytes == 3)
    cache.cache[2] = Array(repeating: 0, count: 65)
    cache.run(requests)
    #expect(cache.counts.wrongBytes == 68)
  }

  @Test("values of no bytes are hits, and in a memory group an object above a quarter of the limit always misses")
  func sizes() throws {
    var cache = try ReplayCache(.group(1 << 20), order: .s3FIFO)
    let requests = [0, 1 << 18, 1 << 18 + 1].map { TraceRequest(key: $0, size: $0) }
    cache.run(requests)
    cache.run(requests)
    cache.finish()
    #expect(cache.counts.hits == 2)
    #expect(cache.counts.entries == 2)
    #expect(cache.counts.tooLarge == 2)
    #expect(cache.counts.hitBytes == 1 << 18)
    #expect(cache.counts.bytes == 1 << 20 + 2)
    #expect(cache.counts.wrongBytes == 0)
  }

  @Test("options that make no sense are refused by name")
  func wrongOptions() throws {
    func options(_ words: [String]) throws -> ReplayOptions {
      try ReplayOptions(try Arguments(words, options: Command.replay.options, operandCount: 1))
    }
    for (words, message) in [
      ([], "a trace is missing"), (["x"], "--capacity or --memory-limit is missing"),
      (["x", "--capacity=1", "--memory-limit=64M"], "not both"),
      (["x", "--capacity=1", "--kernel-alone"], "--kernel-alone goes with"),
      (["x", "--capacity=1", "--without-credit"], "--without-credit goes with --cost"),
      (["x", "--capacity=1", "--order=fifo"], "\"fifo\" is unknown; there are: s3fifo, lru"),
      (["x", "--capacity=1", "--format=xml"], "\"xml\" is unknown; there are: csv, oracleGeneral"),
      (["x", "--capacity=1", "--expiry=0"], "--expiry: \"0\" is no time"),
      (["x", "--capacity=1", "--expiry=-1"], "is no time"), (["x", "--capacity=1", "--expiry=1.5"], "is no time"),
      (["x", "--memory-limit=31M"], "bytes; between 32M and 1T"), (["x", "--memory-limit=2T"], "bytes; between 32M and 1T"),
      (["x", "--record", "--capacity=1"], "--record needs a value"),
    ] {
      let error = #expect(throws: UsageError.self) { try options(words) }
      #expect(error?.message.contains(message) == true, "\(words): \(error?.message ?? "")")
    }
    for text in [
      "0", "0%", "0M", "-1", "x", "1.5", "101%", "1e1%", "nan%", "%", "18446744073709551616", "9000000000000000000", "8Q",
    ] {
      #expect(throws: UsageError.self, "\(text)") { try ReplayCapacity(text) }
    }
    #expect(try ReplayCapacity("12") == .number(12))
    #expect(try ReplayCapacity("0.5%") == .percent(0.5))
    #expect(try ReplayCapacity("10MB") == .bytes(10_000_000))
    #expect(try options(["x", "--memory-limit=64M"]).bound == .group(limitBytes: 64 << 20))
    // Less than one object, and less than an empty cache.
    let root = try FakeRoot(["plain": "key\n1\n2\n"])
    defer { root.remove() }
    let trace = try TraceFile(root.path + "/plain")
    var footprint = Footprint()
    footprint.note([TraceRequest(key: 1, size: 64), TraceRequest(key: 2, size: 64)])
    #expect(throws: UsageError.self) { try ReplayCapacity.percent(49).limit(of: trace, footprint) }
    #expect(try ReplayCapacity.percent(50).limit(of: trace, footprint) == .objects(1))
    // What is whole is not rounded down.
    var thousand = Footprint()
    thousand.note((0..<1000).map { TraceRequest(key: $0, size: 64) })
    for tenths in 1...1000 {
      let limit = try ReplayCapacity("\(tenths / 10).\(tenths % 10)%").limit(of: trace, thousand)
      #expect(limit == .objects(UInt64(tenths)))
    }
    #expect(try ReplayCapacity("32.39%").limit(of: trace, thousand) == .objects(323))
    #expect(throws: UsageError.self) { try ReplayCache(.heldBytes(4096), order: .s3FIFO) }
    // No share of nothing is something.
    try root.write("empty", "key,bytes\n1,0\n")
    let error = #expect(throws: UsageError.self) {
      try ReplayCapacity.percent(100).limit(of: TraceFile(root.path + "/empty"), Footprint())
    }
    #expect(error?.message.contains("have no bytes; write a number") == true)
  }
}
