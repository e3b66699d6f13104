// SPDX-License-Identifier: MIT
// `purgeablectl advise`: whether the objects of a trace should be kept, purged or swapped when memory is wanted.

import Purgeable
import ToolSupport

extension Command {
  static let advise = Command(
    name: "advise",
    summary: "Tell what keeping, purging and swapping a trace's objects would each cost.",
    description: """
      When memory is wanted, an object that can be made again can go, and be made again by who asks for it; it can be swapped; or
      it can stay, so that something else is swapped. Reads the file TRACE of requests (as `replay` does), and tells for objects
      by size and number of uses how likely another request is, and what each choice costs:

        purge   chance x recompute
        swap    page-out + chance x page-in
        keep    page-out + chance of what is swapped instead x page-in

      The sentence below the table says what is cheapest for the most requests, and what is, as one choice for all, where that
      is something else.

      The chance is that of another request for the object within the window, of requests with all of their window in the trace;
      that of what is swapped instead is the mean of all objects, unless told. Costs of paging are measured on the disk of a
      directory, past the page cache, or told; in times such as 80us, 1.5ms, 2s. Where nothing says what recomputing takes, an
      object counts as read from that disk again.
      """,
    operands: ["TRACE"],
    options: [
      Option("recompute", value: "TIME", "What making an object again takes."),
      Option("cost", value: "COLUMN", "The same by object: a column of the trace, in microseconds."),
      Option("page-in", value: "TIME", "What reading a page of 4 KiB takes."),
      Option("page-out", value: "TIME", "What writing one takes."),
      Option("directory", value: "DIR", "Where to measure both (default /var/tmp)."),
      Option("window", value: "REQUESTS", "How soon a request counts as reuse (default a tenth of the trace)."),
      Option("others", value: "PERCENT", "The chance that what is swapped instead of a kept object is used again."),
      Option("format", value: "NAME", "\(TraceFormat.names) (default: by the file's name, or its first bytes)."),
      Option("json", "Print one JSON object."),
    ]
  ) { arguments in
    let report = try AdviceReport(AdviceOptions(arguments))
    print(arguments.has("json") ? report.json.text : report.table)
    return 0
  }
}

struct AdviceOptions: Equatable, Sendable {
  let trace: String
  let format: TraceFormat?
  let cost: TraceCost?
  let recompute: Double?
  let pageIn: Double?
  let pageOut: Double?
  let directory: String
  let window: UInt64?
  /// A share.
  let others: Double?

  init(_ arguments: Arguments) throws(UsageError) {
    trace = try TraceFile.path(arguments)
    format = try TraceFormat.named(arguments.text("format"))
    cost = arguments.text("cost").map { TraceCost($0) }
    if cost == .equal { throw UsageError("--cost: name a column, or say --recompute TIME where each object costs the same") }
    recompute = try Self.time(arguments, "recompute")
    if cost != nil, recompute != nil { throw UsageError("--cost or --recompute, not both") }
    (pageIn, pageOut) = (try Self.time(arguments, "page-in"), try Self.time(arguments, "page-out"))
    if pageIn != nil, pageOut != nil, arguments.text("directory") != nil {
      throw UsageError("--directory: nothing is measured where --page-in and --page-out are told")
    }
    directory = arguments.text("directory") ?? "/var/tmp"
    window = try arguments.number("window")
    others = try arguments.text("others").map { text throws(UsageError) in
      let digits = text.hasSuffix("%") ? text.dropLast() : text[...]
      guard digits.allSatisfy({ $0.isNumber || $0 == "." }), let percent = Double(digits), percent <= 100 else {
        throw UsageError("--others: \"\(text)\" is no share; write 0 to 100, in percent")
      }
      return percent / 100
    }
    if window == 0 { throw UsageError("--window: 0 requests are no window; write at least 1") }
  }

  /// In nanoseconds.
  private static func time(_ arguments: Arguments, _ name: String) throws(UsageError) -> Double? {
    guard let text = arguments.text(name) else { return nil }
    for (unit, factor) in [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)] where text.hasSuffix(unit) {
      let number = text.dropLast(unit.count)
      guard number.allSatisfy({ $0.isNumber || $0 == "." }), let value = Double(number) else { continue }
      guard value * factor <= 1e18 else { throw UsageError("--\(name): \"\(text)\" is more than 31 years") }
      return value * factor
    }
    throw UsageError("--\(name): \"\(text)\" is no time; write a number with ns, us, ms or s behind it")
  }
}

/// What a trace came to, as a table with a sentence, and as JSON.
struct AdviceReport {
  let options: AdviceOptions
  let sums: AdviceSums
  private let hasSizes: Bool

  init(_ options: AdviceOptions) throws {
    self.options = options
    var progress = Progress()
    defer { progress.end() }
    // Before a disk is measured. A pipe can be read once only.
    if try TraceFile.status(options.trace).isRegular {
      _ = try TraceFile(options.trace, format: options.format, cost: options.cost)
    }
    let costs = try Self.costs(options)
    var hasSizes = true
    func pass(_ title: String, _ body: ([TraceRequest]) -> Void) throws {
      let trace = try TraceFile(options.trace, format: options.format, cost: options.cost)
      hasSizes = trace.hasSizes
      try trace.forEachBatch(&progress, title) { requests in
        body(requests)
        return ""
      }
    }
    var window = options.window ?? 0
    if window == 0 {
      guard try TraceFile(options.trace, format: options.format).fileBytes != nil else {
        throw UsageError("\"\(options.trace)\" cannot be read twice, as a tenth of it needs; say --window REQUESTS")
      }
      var count: UInt64 = 0
      try pass("counting") { count += UInt64($0.count) }
      window = max(1, count / 10)
    }
    var sums = AdviceSums(costs, recompute: options.recompute, hasCosts: options.cost != nil, window: window)
    try pass("reading") { sums.note($0) }
    (self.sums, self.hasSizes) = (sums, hasSizes)
  }

  private static func costs(_ options: AdviceOptions) throws -> PagingCosts {
    if let pageIn = options.pageIn, let pageOut = options.pageOut {
      return PagingCosts(pageIn: pageIn, nextPageIn: pageIn, pageOut: pageOut, directory: nil)
    }
    var costs = try PagingCosts.measured(in: options.directory)
    if let pageIn = options.pageIn { (costs.pageIn, costs.nextPageIn) = (pageIn, pageIn) }
    if let pageOut = options.pageOut { costs.pageOut = pageOut }
    return costs
  }

  private var known: [(ObjectClass, ClassSums)] {
    sums.classes.indices.map { (ObjectClass(index: $0), sums.classes[$0]) }.filter { $0.1.requests > 0 }
  }

  private func costs(_ sums: ClassSums) -> ChoiceCosts { ChoiceCosts(sums, others: options.others ?? self.sums.all.chance) }

  /// Of one choice for all objects.
  private var costsOfAll: ChoiceCosts { ChoiceCosts(known.map { (sums: $0.1, costs: costs($0.1)) }) }

  /// How many requests a choice is cheapest for.
  private func requests(bestWith choice: Choice) -> UInt64 {
    known.reduce(0) { $0 + (costs($1.1).best == choice ? $1.1.requests : 0) }
  }

  /// What is cheapest for the most requests; of two with as many, what costs less for all.
  private var advice: Choice {
    let costs = costsOfAll
    func rank(_ choice: Choice) -> (requests: Int64, cost: Double) { (-Int64(requests(bestWith: choice)), costs[choice]) }
    return Choice.allCases.min { rank($0) < rank($1) }!
  }

  // MARK: The table

  /// What is longer than the clock can tell, 292 years, reads as that: sizes and costs are the trace's to say.
  private static func time(_ nanoseconds: Double) -> String { Figures.time(UInt64(max(0, min(nanoseconds.rounded(), 0x1p63)))) }
  private static func percent(_ share: Double) -> String { Figures.oneDecimal(100 * share) + " %" }

  private func cells(_ sums: ClassSums, _ costs: ChoiceCosts, _ best: String) -> [String] {
    [
      Figures.count(sums.requests), Self.percent(sums.chance), Self.time(sums.mean(sums.recompute)), Self.time(costs.purge),
      Self.time(costs.swap), Self.time(costs.keep), best,
    ]
  }

  var table: String {
    var rows = [["size", "uses", "requests", "chance", "recompute", "purge", "swap", "keep", "cheapest"]]
    for (one, sums) in known {
      let costs = costs(sums)
      rows.append([ObjectClass.sizeNames[one.size], ObjectClass.useNames[one.uses]] + cells(sums, costs, costs.best.rawValue))
    }
    if known.count > 1 { rows.append(["all", ""] + cells(sums.all, costsOfAll, costsOfAll.best.rawValue)) }
    let measured = sums.costs.directory.map { ", measured in \($0)" } ?? ""
    func page(_ cost: Double, _ told: Double?) -> String {
      Self.time(cost) + (told == nil || measured.isEmpty ? "" : " (told)")
    }
    let costs = "in \(page(sums.costs.pageIn, options.pageIn)), out \(page(sums.costs.pageOut, options.pageOut))"
    return """
      \(options.trace): \(Figures.count(sums.requests)) requests\(hasSizes ? "" : ", \(TraceFile.withoutSizes)")
      reuse within \(Figures.count(sums.window)), counted for \(counted)
      a page: \(costs)\(measured)

      \(tableLines(rows, leftColumns: 2).joined(separator: "\n"))

      \(sentence)
      """
  }

  /// Requests near the end do not count, whatever became of them.
  private var counted: String { "the first \(Figures.count(sums.all.requests))" }

  /// What to do with most of it, and with what of it something else.
  var sentence: String {
    let all = sums.all
    guard all.requests > 0 else {
      return options.window == nil
        ? "The trace is too short to tell." : "The window covers the whole trace; say a smaller --window."
    }
    let advice = advice
    let reason =
      switch advice {
      case .purge: "making an object again, times the chance that it is asked for, costs less than paging it"
      case .swap: "paging an object costs less than making it again, times the chance that it is asked for"
      case .keep: "what would be swapped instead is no more likely to be used"
      }
    let verb = advice.rawValue.prefix(1).uppercased() + advice.rawValue.dropFirst()
    let share = Double(requests(bestWith: advice)) / Double(all.requests)
    let rest = share < 1 ? "; so it is for \(Self.percent(share)) of the requests, and the table has the others" : ""
    let (costs, best) = (costsOfAll, costsOfAll.best)
    let otherwise = costs[advice] > costs[best] ? " As one choice for all of them, \(best.rawValue) costs least." : ""
    return "\(verb): \(reason)\(rest).\(otherwise)"
  }

  // MARK: JSON

  private func json(_ sums: ClassSums, _ costs: ChoiceCosts, _ best: Choice) -> [(name: String, value: JSON)] {
    [
      ("requests", .unsigned(sums.requests)), ("chance", .number(sums.chance)), ("bytes", .number(sums.mean(sums.bytes))),
      ("recomputeNanoseconds", .number(sums.mean(sums.recompute))), ("purge", .number(costs.purge)),
      ("swap", .number(costs.swap)), ("keep", .number(costs.keep)),
      ("advice", sums.requests == 0 ? .null : .string(best.rawValue)),
    ]
  }

  var json: JSON {
    let classes = known.map { one, sums in
      let (costs, names) = (costs(sums), (ObjectClass.sizeNames[one.size], ObjectClass.useNames[one.uses]))
      return JSON.object([("size", .string(names.0)), ("uses", .string(names.1))] + json(sums, costs, costs.best))
    }
    return .object(
      [
        ("trace", .string(options.trace)), ("traceRequests", .unsigned(sums.requests)), ("window", .unsigned(sums.window)),
        ("pageInNanoseconds", .number(sums.costs.pageIn)), ("pageOutNanoseconds", .number(sums.costs.pageOut)),
        ("othersChance", .number(options.others ?? sums.all.chance)),
        ("measuredIn", sums.costs.directory.map { .string($0) } ?? .null), ("classes", .array(classes)),
      ] + json(sums.all, costsOfAll, advice) + [("sentence", .string(sentence))])
  }
}
