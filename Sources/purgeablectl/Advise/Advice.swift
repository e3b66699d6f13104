// SPDX-License-Identifier: MIT
// Keep, purge or swap: what each would cost for the objects of a trace, when their memory is wanted.
//
//   purge   chance of reuse x recompute             nothing is written; who asks again makes the object again
//   swap    page-out + chance of reuse x page-in    each of the object's pages is written, and read again where it is used
//   keep    page-out + their chance x page-in       as many pages of something else are swapped instead
//
// The chance is the trace's: of all requests for objects of that size and so many uses, how many were followed by another one for
// the same object within the window.

import ToolSupport

/// Objects of about one size that have been used about as often.
struct ObjectClass: Hashable, Sendable {
  /// 0: a page, 1: to 64 KiB, 2: to a MiB, 3: more.
  let size: Int
  /// 0: once, 1: 2 and 3 times, 2: 4 to 15, 3: more.
  let uses: Int

  static let sizeNames = ["up to 4 KiB", "up to 64 KiB", "up to 1 MiB", "more"]
  static let useNames = ["1", "2-3", "4-15", "16+"]
  static let count = 16

  init(byteCount: UInt64, uses: UInt32) {
    size = byteCount <= 4096 ? 0 : byteCount <= 64 << 10 ? 1 : byteCount <= 1 << 20 ? 2 : 3
    self.uses = uses < 2 ? 0 : uses < 4 ? 1 : uses < 16 ? 2 : 3
  }

  init(index: Int) { (size, uses) = (index / 4, index % 4) }
  var index: Int { size * 4 + uses }
}

/// What is known of a class.
struct ClassSums: Equatable, Sendable {
  /// Of objects whose next request, or its absence, is in the trace.
  var requests: UInt64 = 0
  var reused: UInt64 = 0
  var bytes = 0.0
  /// Sums over the requests, in nanoseconds.
  var recompute = 0.0
  var pageOut = 0.0
  var pageIn = 0.0

  var chance: Double { requests == 0 ? 0 : Double(reused) / Double(requests) }
  func mean(_ sum: Double) -> Double { requests == 0 ? 0 : sum / Double(requests) }
}

/// Of two that cost the same, the first is done: it writes nothing, or moves nothing.
enum Choice: String, CaseIterable, Sendable {
  case purge, keep, swap
}

/// What each choice costs an object, on average, in nanoseconds.
struct ChoiceCosts: Equatable, Sendable {
  var purge: Double
  var swap: Double
  var keep: Double

  /// `others`: how likely what is swapped instead of a kept object is used again.
  init(_ sums: ClassSums, others: Double) {
    let (out, back) = (sums.mean(sums.pageOut), sums.mean(sums.pageIn))
    purge = sums.chance * sums.mean(sums.recompute)
    swap = out + sums.chance * back
    keep = out + others * back
  }

  /// The same for all objects: what it costs one of them, from what it costs those of each class.
  init(_ classes: [(sums: ClassSums, costs: ChoiceCosts)]) {
    let requests = Double(classes.reduce(0) { $0 + $1.sums.requests })
    func mean(_ choice: Choice) -> Double {
      classes.reduce(0) { $0 + Double($1.sums.requests) * $1.costs[choice] } / max(1, requests)
    }
    (purge, swap, keep) = (mean(.purge), mean(.swap), mean(.keep))
  }

  subscript(choice: Choice) -> Double {
    switch choice {
    case .purge: purge
    case .swap: swap
    case .keep: keep
    }
  }

  /// The cheapest.
  var best: Choice { Choice.allCases.min { self[$0] < self[$1] }! }
}

/// Adds up a trace.
struct AdviceSums {
  let costs: PagingCosts
  /// Of an object, in nanoseconds; nil: the trace says, or it is read from the disk again.
  let recompute: Double?
  let hasCosts: Bool
  private(set) var classes = [ClassSums](repeating: ClassSums(), count: ObjectClass.count)
  /// Of each object: its last request, and how many there were.
  private var last: [UInt64: (request: UInt64, uses: UInt32)] = [:]

  /// A request whose window is not over.
  private struct Waiting {
    let uses: UInt32
    var isReused = false
    let size: UInt64
    let cost: Double
  }
  /// In the order of the requests, from the one behind the first `forgotten` on.
  private var waiting: [Waiting] = []
  private var forgotten: UInt64 = 0
  private var oldest = 0
  private(set) var requests: UInt64 = 0
  let window: UInt64

  init(_ costs: PagingCosts, recompute: Double?, hasCosts: Bool, window: UInt64) {
    (self.costs, self.recompute, self.hasCosts, self.window) = (costs, recompute, hasCosts, window)
  }

  mutating func note(_ batch: [TraceRequest]) {
    for request in batch {
      requests += 1
      let before = last[request.key]
      if let before, requests - before.request <= window { waiting[Int(before.request - 1 - forgotten)].isReused = true }
      let uses = (before?.uses ?? 0) &+ 1
      last[request.key] = (requests, uses)
      waiting.append(Waiting(uses: uses, size: request.size, cost: request.cost))
      // Only requests with all of their window in the trace count: near its end what is not asked for again may be so later.
      while oldest < waiting.count, requests - forgotten - UInt64(oldest) > window {
        count(waiting[oldest])
        oldest += 1
      }
      if oldest > 1 << 16, oldest * 2 > waiting.count {
        waiting.removeFirst(oldest)
        forgotten += UInt64(oldest)
        oldest = 0
      }
    }
  }

  private mutating func count(_ request: Waiting) {
    let pages = PagingCosts.pages(request.size)
    let reload = costs.pageIn + (pages - 1) * costs.nextPageIn
    let at = ObjectClass(byteCount: request.size, uses: request.uses).index
    classes[at].requests += 1
    if request.isReused { classes[at].reused += 1 }
    classes[at].bytes += Double(request.size)
    classes[at].recompute += recompute ?? (hasCosts ? request.cost * 1000 : reload)
    classes[at].pageOut += pages * costs.pageOut
    // Swapped pages come back as they are touched: one after the other, with what reclaim has put beside them.
    classes[at].pageIn += pages * costs.pageIn
  }

  var all: ClassSums {
    classes.reduce(into: ClassSums()) { all, one in
      all.requests += one.requests
      all.reused += one.reused
      all.bytes += one.bytes
      all.recompute += one.recompute
      all.pageOut += one.pageOut
      all.pageIn += one.pageIn
    }
  }
}
