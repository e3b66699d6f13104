// SPDX-License-Identifier: MIT
// Regions by themselves: neighbours of two threads, a sparse region, and who comes while many regions are being offered.

import CPurgeable
import CPurgeable.Testing
import Foundation
import Synchronization
import ToolSupport

/// `@safe`: a region lives as long as somebody uses it here. `@unchecked`: the core's calls may come from any thread.
@safe private struct Region: @unchecked Sendable {
  let raw: OpaquePointer

  /// Locked for writing.
  init(byteCount: Int, _ offering: purgeable_offering_t = .deferred) throws {
    var options = purgeable_region_options_t(offering: offering)
    var made: OpaquePointer?
    guard unsafe purgeable_region_create(byteCount, &options, &made) == 0, let region = unsafe made else {
      throw ToolFailure("no memory for a region")
    }
    unsafe raw = region
  }

  /// One page with content, unlocked.
  static func page() throws -> Region {
    let region = try Region(byteCount: Int(purgeable_page_size_bytes()))
    try region.write(0)
    guard region.unlock() else { throw ToolFailure("an unlock failed") }
    return region
  }

  func write(_ offset: Int) throws {
    let length = Int(unsafe purgeable_region_length_bytes(raw))
    guard let bytes = unsafe purgeable_region_bytes(raw), offset < length else { throw ToolFailure("no bytes") }
    unsafe bytes.storeBytes(of: 7, toByteOffset: offset, as: UInt8.self)
  }

  @inline(__always) func lock() -> purgeable_outcome_t { unsafe purgeable_region_lock(raw) }
  @inline(__always) func unlock() -> Bool { unsafe purgeable_region_unlock(raw) == 0 }
  var line: Int { Int(unsafe purgeable_testing_region_line(raw)) }
}

extension Core {
  // MARK: Neighbours

  static func neighbours(_ scale: Scale) throws -> [Figure] {
    guard ThreadPair.isPossible else { return [] }
    let numbers = try ChildRun.run("core-neighbours", [scale(3_000_000, quick: 1_000_000), scale(25, quick: 15)])
    let (near, far) = (Figure.text(try numbers.value("near")), Figure.text(try numbers.value("far")))
    return [
      Figure(
        "lock and unlock of two regions side by side by two threads, against far apart", .time, try Spread(numbers, "near/far"),
        .atMost(1.1), "times its time", note: "side by side \(near) ns, far apart \(far) ns")
    ]
  }

  /// Arguments: locks of each thread, rounds. Each round has pairs of its own, since two regions may count in the same place.
  @Sendable static func measureNeighbours(_ arguments: [Int]) throws -> Numbers {
    let (count, rounds) = (arguments[0], arguments[1])
    let apart = 4 * (rounds + 1)
    purgeable_set_pending_byte_limit(.max)
    let regions = try (0..<2 * apart).map { _ in try Region.page() }
    var times: [[Double]] = []
    for round in 0...rounds {
      let first = 4 * round
      let near = [regions[first], regions[first + 1]]
      let far = [regions[first + 2], regions[first + 2 + apart]]
      guard abs(near[0].line - near[1].line) == 1, abs(far[0].line - far[1].line) >= apart else {
        throw ToolFailure("the words of the regions do not lie as they were to")
      }
      let row = try [near, far].map { pair in
        let done = Atomic<Int>(0)
        let time = ThreadPair.wallNanoseconds(threads: 2) { thread in
          done.add(relock(pair[thread], count), ordering: .relaxed)
        }
        let all = done.load(ordering: .relaxed)
        guard all == 2 * count else { throw ToolFailure("\(all) locks, not \(2 * count)") }
        return time / Double(count)
      }
      if round > 0 { times.append(row) }
    }
    var numbers: Numbers = ["near": Spread(times.map { $0[0] }).median, "far": Spread(times.map { $0[1] }).median]
    Rounds.ratio(times, 0, over: 1).write(to: &numbers, "near/far")
    return numbers
  }

  /// How many times that went well.
  @inline(never)
  private static func relock(_ region: Region, _ count: Int) -> Int {
    var done = 0
    for _ in 0..<count where region.lock() == .intact && region.unlock() { done += 1 }
    return done
  }

  // MARK: A sparse region

  static func sparse() throws -> [Figure] {
    let (gibibytes, pages) = (8, 8)
    let numbers = try ChildRun.run("core-sparse", [gibibytes, pages, 25])
    let never = Figure.text(try numbers.value("never"))
    return [
      Figure(
        "unlock of a writer of a sparse region of \(gibibytes) GiB", .time, try Spread(numbers, "offered"), .atMost(1), "ms",
        note: "\(pages) pages hold anything; the offer is part of the unlock; of a region that is never offered \(never) ms")
    ]
  }

  /// Arguments: GiB, pages that are written each time, rounds.
  @Sendable static func measureSparse(_ arguments: [Int]) throws -> Numbers {
    let (byteCount, pages) = (arguments[0] << 30, arguments[1])
    let page = Int(purgeable_page_size_bytes())
    let regions = try [purgeable_offering_t.immediate, .never].map { try Region(byteCount: byteCount, $0) }
    var times: [[Double]] = []
    for round in 0...arguments[2] {
      let row = try regions.map { region in
        if round > 0, unsafe purgeable_region_lock_for_writing(region.raw) != .intact {
          throw ToolFailure("a page was discarded")
        }
        // Far from each other, and not at the beginning.
        for i in 0..<pages { try region.write((2 * i + 1) * (byteCount / (2 * pages)) / page * page) }
        return try Rounds.nanoseconds {
          guard region.unlock() else { throw ToolFailure("an unlock failed") }
        } / 1e6
      }
      guard unsafe purgeable_region_offered_bytes(regions[0].raw) == pages * page else { throw ToolFailure("not on offer") }
      if round > 0 { times.append(row) }
    }
    var numbers: Numbers = ["never": Spread(times.map { $0[1] }).median]
    Spread(times.map { $0[0] }).write(to: &numbers, "offered")
    return numbers
  }

  // MARK: The queue

  static func queue(_ scale: Scale) throws -> [Figure] {
    guard ThreadPair.isPossible else { return [] }
    let count = isLarge ? scale(1_000_000, quick: 100_000) : 100_000
    let numbers = try ChildRun.run("core-queue", [count, scale(7, quick: 5)])
    return try [("lock", "longest wait of a locker"), ("destroy", "longest destroy")].map { key, name in
      let (calls, alone) = (Int(try numbers.value("\(key)-calls")), Figure.text(try numbers.value("\(key)-alone")))
      return Figure(
        "\(name) beside \(count) queued regions", .time, try Spread(numbers, key), .atMost(2), "ms",
        note:
          "while another thread offers them, at least \(calls) calls; beside a thread that only computes, as long, \(alone) ms")
    }
  }

  /// Arguments: regions, rounds. The regions are of one page each, and lie in the chunks that all regions share.
  @Sendable static func measureQueue(_ arguments: [Int]) throws -> Numbers {
    let queue = try RegionQueue(count: arguments[0])
    var longest: [String: [Double]] = [:]
    var calls: [String: Int] = [:]
    for _ in 0..<arguments[1] {
      for (key, visit) in [("lock", RegionQueue.lockOne), ("destroy", RegionQueue.destroyOne)] {
        try queue.fill()
        let beside = queue.run(visit) { offerAll(arguments[0]) }
        try queue.fill()
        let alone = queue.run(visit) { compute(beside.nanoseconds) }
        guard beside.isWell, alone.isWell, beside.calls != 0 else {
          throw ToolFailure("\(key) beside the queue: \(beside), alone: \(alone)")
        }
        longest[key, default: []].append(beside.longest / 1e6)
        longest["\(key)-alone", default: []].append(alone.longest / 1e6)
        calls[key] = min(calls[key] ?? .max, beside.calls)
      }
    }
    var numbers: Numbers = [:]
    for (key, values) in longest { Spread(values).write(to: &numbers, key) }
    for (key, count) in calls { numbers["\(key)-calls"] = Double(count) }
    return numbers
  }

  /// Whether at least half of the regions went on offer: the others may have been locked or destroyed before their turn.
  private static func offerAll(_ count: Int) -> Bool {
    var offered = 0
    return unsafe purgeable_offer_pending(&offered) == 0 && offered >= count / 2 * Int(purgeable_page_size_bytes())
  }

  /// Keeps a processor busy, as the offers do, without touching a region.
  private static func compute(_ nanoseconds: Double) -> Bool {
    let end = ThreadPair.clock() + nanoseconds
    while ThreadPair.clock() < end {}
    return true
  }
}

/// Regions of a page each that wait for an offer. They end with the process.
private final class RegionQueue: Sendable {
  typealias Visit = @Sendable (RegionQueue, Int) -> Double?

  struct Run: Sendable {
    var longest = 0.0
    var nanoseconds = 0.0
    var calls = 0
    var isWell = true
  }

  private let count: Int
  /// nil: destroyed, to be made again.
  private let regions: Mutex<[Region?]>

  init(count: Int) throws {
    self.count = count
    // Nothing is offered but where the figure wants it.
    purgeable_set_pending_byte_limit(.max)
    regions = Mutex([Region?](repeating: nil, count: count))
  }

  /// Has every region in the queue.
  func fill() throws {
    try regions.withLock { regions in
      for i in 0..<count {
        guard let region = regions[i] else {
          regions[i] = try Region.page()
          continue
        }
        if region.lock() != .intact {
          // The kernel has taken it.
          guard unsafe purgeable_region_refill(region.raw) == 0 else { throw ToolFailure("a refill failed") }
          try region.write(0)
        }
        guard region.unlock() else { throw ToolFailure("an unlock failed") }
      }
    }
    var statistics = purgeable_region_statistics_t()
    guard unsafe purgeable_region_statistics(&statistics) == 0, statistics.pending_count == count else {
      throw ToolFailure("\(statistics.pending_count) regions are queued, not \(count)")
    }
  }

  /// Visits regions on a second thread for as long as `other` runs on this one, and answers the longest call.
  func run(_ visit: @escaping Visit, _ other: @escaping @Sendable () -> Bool) -> Run {
    let isDone = Atomic<Bool>(false)
    let result = Mutex(Run())
    let count = count
    ThreadPair.run(threads: 2) { [self] thread in
      if thread == 0 {
        let start = ThreadPair.clock()
        let isWell = other()
        let end = ThreadPair.clock()
        isDone.store(true, ordering: .relaxed)
        result.withLock { ($0.nanoseconds, $0.isWell) = (end - start, $0.isWell && isWell) }
        return
      }
      var (longest, calls, isWell) = (0.0, 0, true)
      while !isDone.load(ordering: .relaxed), isWell {
        // Each region comes once before any comes again.
        if let time = visit(self, calls * 7919 % count) {
          longest = max(longest, time)
          calls += 1
        } else {
          isWell = false
        }
      }
      result.withLock { ($0.longest, $0.calls, $0.isWell) = (longest, calls, $0.isWell && isWell) }
    }
    return result.withLock { $0 }
  }

  /// The longer of two calls, in nanoseconds; nil where one failed.
  @Sendable static func lockOne(_ queue: RegionQueue, _ i: Int) -> Double? {
    guard let region = queue.regions.withLock({ $0[i] }) else { return nil }
    let start = ThreadPair.clock()
    let outcome = region.lock()
    let middle = ThreadPair.clock()
    // The kernel may have taken it meanwhile.
    guard outcome == .intact else { return outcome == .discarded ? middle - start : nil }
    let isWell = region.unlock()
    return isWell ? max(middle - start, ThreadPair.clock() - middle) : nil
  }

  /// Now and then: a call that waits for milliseconds is met all the same, and regions are left until the end.
  @Sendable static func destroyOne(_ queue: RegionQueue, _ i: Int) -> Double? {
    usleep(10)
    guard let region = queue.regions.withLock({ $0[i].take() }) else { return nil }
    let start = ThreadPair.clock()
    let error = unsafe purgeable_region_destroy(region.raw)
    return error == 0 ? ThreadPair.clock() - start : nil
  }
}
