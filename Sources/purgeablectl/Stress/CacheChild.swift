// SPDX-License-Identifier: MIT
// The process with the cache: the orders that every store knows, and those that only the cache knows.

import Glibc
import Purgeable
import ToolSupport

struct CacheChild {
  private let load: StressContent
  private let spoils: Bool
  private var child: LoadChild<PurgeableCache<UInt64, [UInt8]>>
  private var cache: PurgeableCache<UInt64, [UInt8]> { child.store }

  init(_ load: StressContent, _ options: CacheOptions, spoils: Bool, tellsSamples: Bool) throws {
    self.load = load
    self.spoils = spoils
    child = LoadChild(load, try PurgeableCache<UInt64, [UInt8]>(options), spoils: spoils, tellsSamples: tellsSamples)
  }

  /// Runs until the input ends.
  mutating func run() throws {
    while let (order, numbers) = try child.port.next() {
      if try child.follow(order, numbers) { continue }
      switch order {
      case .settle: try settle()
      case .hold: try hold(numbers)
      case .fork: try fork(numbers)
      case .leaveItToTheKernel:
        GroupProcess.leaveItToTheKernel()
        try child.port.finish(cache.facts)
      default: throw WireFailure()
      }
    }
  }

  /// Waits until everything idle is on offer and the library's thread has nothing left to do.
  private mutating func settle() throws {
    for _ in 0..<3 {
      // More than once: one offer skips pages.
      cache.offerIdle()
      for _ in 0..<3 {
        usleep(100_000)
        try child.beat()
      }
    }
    try child.port.finish(cache.facts)
  }

  /// Threads that hold entries locked.
  private mutating func hold(_ numbers: Tally) throws {
    let end = Clock.now + numbers["milliseconds"] * 1_000_000
    let work = HoldWork(capBytes: numbers["bytes"], depth: Int(numbers["depth"]), end: end)
    let content = load.content
    try cache.setLockedByteLimit(Int(work.capBytes))
    work.running.store(Int(numbers["threads"]), ordering: .relaxed)
    let threads = try (0..<numbers["threads"]).map { number in
      let (cache, load, spoils) = (cache, load, spoils)
      return try StressThread { Holder(cache, load, content, work, seed: load.seed &+ number, spoils: spoils).run() }
    }
    while work.running.load(ordering: .acquiring) > 0 {
      if try child.port.next(within: 100) != nil { throw WireFailure() }
      let isLate = Clock.now > end + LoadJob.stallLimit
      try child.port.beat(["stalledThreads": isLate ? UInt64(work.running.load(ordering: .relaxed)) : 0])
    }
    for thread in threads { thread.join() }
    try child.port.finish(work.tally)
  }

  /// Forks while a thread continues the load.
  private mutating func fork(_ numbers: Tally) throws {
    let content = load.content
    let job = LoadJob(reads: .max, refills: true, zipf: ZipfNumbers(count: load.keyCount, seed: load.seed))
    let (cache, spoils) = (cache, spoils)
    let thread = try StressThread { LoadWorker(store: cache, content: content, spoils: spoils).run(job) }
    var storm = ForkStorm(cache, load, content, spoils: spoils)
    let end = Clock.now + numbers["milliseconds"] * 1_000_000
    while Clock.now < end {
      try storm.forkOnce()
      let last = job.lastBatch.load(ordering: .relaxed)
      let now = Clock.now
      try child.port.beat(["stalledThreads": last != 0 && now - min(now, last) > LoadJob.stallLimit ? 1 : 0])
      if storm.result["hungChildren"] > 0 { break }
    }
    job.mustStop.store(true, ordering: .releasing)
    thread.join()
    var result = storm.result
    let window = job.window.withLock { $0 }.tally
    for (name, value) in window.values { result[name] += value }
    try child.port.finish(result)
  }
}
