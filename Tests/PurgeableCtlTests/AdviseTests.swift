// SPDX-License-Identifier: MIT
// `purgeablectl advise`: chances against a count by hand, costs against the formula, words for what is wrong.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import purgeablectl

@Suite("advise")
struct AdviseTests {
  private static let told = PagingCosts(pageIn: 100_000, nextPageIn: 10_000, pageOut: 5000, directory: nil)

  private static func run(_ words: [String]) throws -> ChildProcess {
    try ChildProcess.runBuilt("purgeablectl", ["advise"] + words)
  }

  private static func options(_ words: [String]) throws -> AdviceOptions {
    try AdviceOptions(try Arguments(words, options: Command.advise.options, operandCount: 1))
  }

  @Test("chances by size and uses are those of a count by hand", arguments: [1, 7, 100, 5000] as [UInt64])
  func chances(window: UInt64) {
    var random = SplitMix64(seed: window)
    let sizes: [UInt64] = [0, 4096, 4097, 65_536, 65_537, 1 << 20, 1 << 20 + 1]
    let requests = (0..<3000).map { _ -> TraceRequest in
      let key = UInt64(random.index(below: 1 + random.index(below: 300)))
      return TraceRequest(key: key, size: sizes[Int(key) % sizes.count], cost: Double(key))
    }
    var sums = AdviceSums(Self.told, recompute: nil, hasCosts: true, window: window)
    // In batches of odd lengths.
    for start in stride(from: 0, to: requests.count, by: 701) {
      sums.note(Array(requests[start..<min(start + 701, requests.count)]))
    }
    var expected = [ClassSums](repeating: ClassSums(), count: ObjectClass.count)
    var uses: [UInt64: UInt32] = [:]
    for (at, request) in requests.enumerated() {
      uses[request.key, default: 0] += 1
      let rest = requests[(at + 1)...].prefix(Int(window))
      let isReused = rest.contains { $0.key == request.key }
      guard rest.count == window else { continue }
      let one = ObjectClass(byteCount: request.size, uses: uses[request.key]!).index
      expected[one].requests += 1
      if isReused { expected[one].reused += 1 }
      expected[one].bytes += Double(request.size)
      expected[one].recompute += 1000 * request.cost
      expected[one].pageOut += PagingCosts.pages(request.size) * 5000
      expected[one].pageIn += PagingCosts.pages(request.size) * 100_000
    }
    #expect(sums.requests == 3000)
    for (one, other) in zip(sums.classes, expected) {
      #expect(one.requests == other.requests && one.reused == other.reused)
      for (value, wanted) in [
        (one.bytes, other.bytes), (one.recompute, other.recompute), (one.pageOut, other.pageOut), (one.pageIn, other.pageIn),
      ] { #expect(abs(value - wanted) <= 1e-9 * max(1, wanted)) }
    }
  }

  @Test("each choice costs what the formula says; of equal ones it is the one that writes or moves nothing")
  func formula() {
    var sums = ClassSums()
    (sums.requests, sums.reused) = (10, 4)
    (sums.recompute, sums.pageOut, sums.pageIn) = (10_000, 500, 2000)
    let costs = ChoiceCosts(sums, others: 0.5)
    #expect(costs.purge == 400 && costs.swap == 50 + 0.4 * 200 && costs.keep == 50 + 0.5 * 200)
    #expect(costs.best == .swap && ChoiceCosts(sums, others: 0.1).best == .keep)
    #expect(ChoiceCosts(sums, others: 0.4).best == .keep)
    // With all objects alike: the mean of what it costs those of each class, not the product of means.
    var hot = ClassSums()
    (hot.requests, hot.reused, hot.recompute) = (30, 30, 30)
    let both = ChoiceCosts([(sums, costs), (hot, ChoiceCosts(hot, others: 0.5))])
    #expect(both.purge == (10 * 400 + 30 * 1) / 40 && both.swap == 10 * costs.swap / 40 && both.keep == 10 * costs.keep / 40)
    sums.recompute = 100
    #expect(ChoiceCosts(sums, others: 0.5).best == .purge)
    #expect(ChoiceCosts(ClassSums(), others: 1).best == .purge)
    #expect(PagingCosts.pages(0) == 1 && PagingCosts.pages(4096) == 1 && PagingCosts.pages(4097) == 2)
  }

  @Test("the tool says keep, purge or swap, in a sentence and in JSON")
  func tool() throws {
    // Objects of one page: of three in a row, the third and a fourth are one that is asked for all the time.
    let text = (0..<250).reduce(into: "key,bytes,us\n") { $0 += "\($1),100,1000\n\($1),100,1000\n1000,100,1\n1000,100,1\n" }
    // Beside it, one of ten is asked for a second time.
    let cold = (0..<300).reduce(into: "key,bytes,us\n") {
      $0 += "\($1 % 10 == 9 ? $1 - 1 : $1),100,1\n" + ($1 % 2 == 1 ? "1000,100,1\n" : "")
    }
    let root = try FakeRoot(["trace.csv": text, "cold.csv": cold])
    defer { root.remove() }
    let paging = ["--page-in=100us", "--page-out=20us", "--window=10"]
    for (name, words, advice) in [
      ("trace", ["--recompute=10us"], "purge"), ("trace", ["--recompute=2ms"], "keep"), ("trace", ["--cost=us"], "purge"),
      ("cold", ["--recompute=2ms"], "swap"), ("cold", ["--recompute=2ms", "--others=1%"], "keep"),
    ] {
      let child = try Self.run([root.path + "/\(name).csv", "--json"] + paging + words)
      #expect(child.status == 0, "\(child.errors)")
      let object = try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any])
      #expect(object["advice"] as? String == advice, "\(name) \(words)")
      #expect(object["traceRequests"] as? Int == (name == "cold" ? 450 : 1000) && object["window"] as? Int == 10)
      let sentence = try #require(object["sentence"] as? String)
      #expect(sentence.lowercased().hasPrefix(advice + ":"))
      let costs = try ["purge", "swap", "keep"].map { try #require(object[$0] as? Double) }
      let isDearer = try #require(object[advice] as? Double) > costs.min()!
      #expect(sentence.contains(" As one choice for all of them, ") == isDearer, "\(sentence)")
      // It is what is best for most of the requests, and each class's is the cheapest there.
      let classes = try #require(object["classes"] as? [[String: Any]])
      var requests: [String: Int] = [:]
      for one in classes {
        let best = try #require(one["advice"] as? String)
        requests[best, default: 0] += try #require(one["requests"] as? Int)
        let costs = try ["purge", "swap", "keep"].map { try #require(one[$0] as? Double) }
        #expect(one[best] as? Double == costs.min())
      }
      #expect(requests[advice] == requests.values.max())
      #expect(requests.values.reduce(0, +) == object["requests"] as? Int)
    }
    let table = try Self.run([root.path + "/cold.csv", "--recompute=1s"] + paging)
    #expect(table.output.contains("cheapest") && table.output.contains("Swap: ") && table.output.contains("% of the requests"))
    #expect(table.status == 0)
  }

  @Test("sizes that no machine has, and a trace of one request, are answered too")
  func hostile() throws {
    let root = try FakeRoot(["huge.csv": "key,bytes\n1,1152921504606846970\n2,1\n3,1\n4,1\n", "one.csv": "key,bytes\n1,100\n"])
    defer { root.remove() }
    let paging = ["--page-in=90us", "--page-out=10us"]
    let huge = try Self.run([root.path + "/huge.csv"] + paging)
    #expect(huge.status == 0 && huge.output.contains("Purge: "), "\(huge.errors)")
    let one = try Self.run([root.path + "/one.csv"] + paging)
    #expect(one.status == 0 && one.output.contains("too short"), "\(one.output)")
    let child = try Self.run([root.path + "/one.csv", "--json"] + paging)
    let object = try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any])
    #expect(object["advice"] is NSNull && object["requests"] as? Int == 0)
  }

  @Test("on this machine's disk paging costs something; what is no directory is refused", .fullRun)
  func measured() throws {
    let root = try FakeRoot(["trace.csv": "key\n1\n2\n1\n3\n1\n2\n1\n4\n1\n2\n"])
    defer { root.remove() }
    let words = [root.path + "/trace.csv", "--json", "--window=3"]
    let child = try Self.run(words + ["--directory=/var/tmp"])
    if child.status == 2 {
      // No disk there.
      #expect(child.errors.contains("--page-in and --page-out"))
    } else {
      let object = try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any])
      #expect(try #require(object["pageInNanoseconds"] as? Double) >= 3000)
      #expect(try #require(object["pageOutNanoseconds"] as? Double) > 0)
      #expect(object["measuredIn"] as? String == "/var/tmp")
    }
    let nowhere = try Self.run(words + ["--directory=/nothing"])
    #expect(nowhere.status != 0 && nowhere.errors.contains("/nothing") && nowhere.output.isEmpty)
    // What is wrong with the trace is said first.
    try root.write("wrong.csv", "1\n2\n")
    let wrong = try Self.run([root.path + "/wrong.csv", "--directory=/nothing"])
    #expect(wrong.status == 2 && wrong.errors.contains("line 1"), "\(wrong.errors)")
  }

  @Test("options that make no sense are refused by name")
  func wrongOptions() throws {
    for (words, message) in [
      ([], "a trace is missing"), (["x", "--recompute=5"], "--recompute: \"5\" is no time; write a number with ns, us, ms or s"),
      (["x", "--recompute=-5us"], "is no time"), (["x", "--page-in=nanus"], "is no time"),
      (["x", "--page-out=us"], "is no time"),
      (["x", "--page-in=1e3us"], "is no time"), (["x", "--cost=us", "--recompute=1us"], "not both"),
      (["x", "--cost=equal"], "--cost: name a column"), (["x", "--window=0"], "--window: 0 requests"),
      (["x", "--window=x"], "--window"), (["x", "--others=101"], "--others: \"101\" is no share"),
      (["x", "--others=x"], "is no share"), (["x", "--page-in=1us", "--page-out=1us", "--directory=/"], "nothing is measured"),
      (["x", "--format=xml"], "\"xml\" is unknown"),
    ] {
      let error = #expect(throws: UsageError.self) { try Self.options(words) }
      #expect(error?.message.contains(message) == true, "\(words): \(error?.message ?? "")")
    }
    #expect(try Self.options(["x", "--recompute=1.5ms", "--others=25%"]).recompute == 1_500_000)
    #expect(try Self.options(["x", "--others=25%"]).others == 0.25)
  }
}
