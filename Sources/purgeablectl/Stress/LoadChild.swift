// SPDX-License-Identifier: MIT
// The process under a load: fills its store, reads by popularity, checks every hit byte by byte, and reports all times.

import Glibc
import Synchronization
import ToolSupport

/// A store and the orders that every store knows.
struct LoadChild<Store: StressStore> {
  let load: StressContent
  let store: Store
  private let content: Content
  private let spoils: Bool
  private let tellsSamples: Bool
  /// The reads of the orders that have ended.
  private var past = Tally()
  var port = StressPort()

  init(_ load: StressContent, _ store: Store, spoils: Bool = false, tellsSamples: Bool = false) {
    self.tellsSamples = tellsSamples
    if tellsSamples { port.interval = RunRecorder.interval }
    self.load = load
    self.store = store
    self.spoils = spoils
    content = load.content
  }

  /// Follows an order; false for one that it does not know.
  mutating func follow(_ order: StressOrder, _ numbers: Tally) throws -> Bool {
    switch order {
    case .fill: try port.finish(fill())
    case .run: try port.finish(run(numbers))
    case .check: try port.finish(check(numbers["keys"]))
    // Too late: the order that it refers to has ended by itself, and the result is on its way.
    case .stop, .mark: break
    default: return false
    }
    return true
  }

  /// Says that the process makes progress, and where samples are wanted, what the store holds, and reads so far.
  mutating func beat(stalledThreads: UInt64 = 0, _ window: @autoclosure () -> Window = Window()) throws {
    guard port.isDue else { return }
    var tally = tellsSamples ? store.facts : [:]
    tally["stalledThreads"] = stalledThreads
    if tellsSamples {
      let window = window()
      tally["reads"] = past["reads"] + window.reads
      tally["hits"] = past["hits"] + window.hits
      tally["wrongBytes"] = past["wrongBytes"] + window.wrongBytes
    }
    try port.beat(tally)
  }

  private mutating func finish(_ window: Window) -> Tally {
    past["reads"] += window.reads
    past["hits"] += window.hits
    past["wrongBytes"] += window.wrongBytes
    return window.tally
  }

  // MARK: One thread

  private mutating func fill() throws -> Tally {
    var (stored, refused, bytes): (UInt64, UInt64, UInt64) = (0, 0, 0)
    var buffer = [UInt8](repeating: 0, count: content.sizes.upperBound)
    for (index, number) in load.birthOrder.enumerated() {
      let key = content.key(number)
      let isStored = unsafe buffer.withUnsafeMutableBytes { buffer in
        let size = unsafe content.write(key, to: buffer)
        bytes += UInt64(size)
        return unsafe store.store(key, UnsafeRawBufferPointer(rebasing: buffer[..<size]))
      }
      if isStored { stored += 1 } else { refused += 1 }
      if index & 0xFF == 0 { try beat() }
      // Often enough that the last report says how far the process got.
      if index & 0x3FFF == 0 {
        var row = store.facts
        row["stored"] = stored
        row["bytes"] = bytes
        try port.row(row)
      }
    }
    return ["stored": stored, "refused": refused, "bytes": bytes]
  }

  private mutating func check(_ keyCount: UInt64) throws -> Tally {
    var worker = LoadWorker(store: store, content: content, spoils: spoils)
    var window = Window()
    for number in 0..<keyCount {
      worker.readOne(number, refills: false, &window)
      if number & 0xFF == 0 { try beat(window) }
    }
    return finish(window)
  }

  // MARK: Many threads

  private mutating func run(_ numbers: Tally) throws -> Tally {
    let shared = try (0..<max(1, numbers["threads"])).map { number in
      // Each thread has its share of a number of reads; with one thread the order is the seed's alone.
      let job = LoadJob(
        reads: numbers["reads"] == 0 ? .max : numbers["reads"], refills: numbers["refills"] != 0,
        zipf: ZipfNumbers(count: load.keyCount, seed: load.seed &+ number &+ numbers["salt"] << 32))
      let (store, content, spoils) = (store, content, spoils)
      let thread = try StressThread {
        LoadWorker(store: store, content: content, spoils: spoils).run(job)
      }
      return (job, thread)
    }
    let jobs = shared.map(\.0)
    let start = Clock.now
    let end = numbers["milliseconds"] == 0 ? UInt64.max / 2 : start + numbers["milliseconds"] * 1_000_000
    let interval = numbers["interval"] * 1_000_000
    var nextRow = interval == 0 ? UInt64.max : start + interval
    var whole = Window()
    var isStopped = false
    while !isStopped, Clock.now < end + (interval == 0 ? 0 : 5_000_000),
      !jobs.allSatisfy({ $0.isDone.load(ordering: .acquiring) })
    {
      let order = try port.next(within: 5)?.0
      isStopped = order == .stop
      if order == .mark || Clock.now >= nextRow {
        nextRow = interval == 0 ? .max : nextRow + interval
        try port.row(take(jobs, &whole).tally)
      }
      try beat(stalledThreads: stalledCount(jobs), Self.sum(jobs, whole))
    }
    for job in jobs { job.mustStop.store(true, ordering: .releasing) }
    let joined = Clock.now
    while !jobs.allSatisfy({ $0.isDone.load(ordering: .acquiring) }) {
      usleep(1000)
      try port.beat(["stalledThreads": Clock.now - joined > LoadJob.stallLimit ? 1 : 0])
    }
    for (_, thread) in shared { thread.join() }
    let last = take(jobs, &whole)
    // The remainder is no row of its own, unless it is the only one.
    if interval == 0 { try port.row(last.tally) }
    return finish(whole)
  }

  /// The threads' work since the last call.
  private func take(_ jobs: [LoadJob], _ whole: inout Window) -> Window {
    var all = Window()
    for job in jobs {
      all.add(
        job.window.withLock { window in
          defer { window = Window() }
          return window
        })
    }
    whole.add(all)
    return all
  }

  /// With the threads' work since the last call of `take`. Of the counts alone.
  private static func sum(_ jobs: [LoadJob], _ whole: Window) -> Window {
    var sum = whole
    for job in jobs {
      job.window.withLock { window in
        sum.reads += window.reads
        sum.hits += window.hits
        sum.wrongBytes += window.wrongBytes
      }
    }
    return sum
  }

  private func stalledCount(_ jobs: [LoadJob]) -> UInt64 {
    let now = Clock.now
    return jobs.reduce(0) { count, job in
      let last = job.lastBatch.load(ordering: .relaxed)
      return count + (last != 0 && now - min(now, last) > LoadJob.stallLimit ? 1 : 0)
    }
  }
}

/// The orders to one thread of a load, and its results.
final class LoadJob: Sendable {
  /// A batch takes far less than a millisecond where nothing hangs.
  static let stallLimit: UInt64 = 20_000_000_000

  let reads: UInt64
  let refills: Bool
  let zipf: ZipfNumbers
  let window = Mutex(Window())
  let mustStop = Atomic<Bool>(false)
  let isDone = Atomic<Bool>(false)
  /// When the last batch began.
  let lastBatch = Atomic<UInt64>(0)

  init(reads: UInt64, refills: Bool, zipf: ZipfNumbers) {
    self.reads = reads
    self.refills = refills
    self.zipf = zipf
  }
}

/// One thread's part of a load.
struct LoadWorker<Store: StressStore> {
  let store: Store
  let content: Content
  let spoils: Bool
  private var buffer: [UInt8]

  init(store: Store, content: Content, spoils: Bool) {
    self.store = store
    self.content = content
    self.spoils = spoils
    buffer = [UInt8](repeating: 0, count: content.sizes.upperBound)
  }

  consuming func run(_ job: LoadJob) {
    var worker = self
    var numbers = job.zipf
    var left = job.reads
    while left > 0, !job.mustStop.load(ordering: .acquiring) {
      job.lastBatch.store(Clock.now, ordering: .relaxed)
      // A reader of the window waits for one batch at most.
      job.window.withLock { window in
        for _ in 0..<min(left, 64) { worker.readOne(numbers.next() ?? 0, refills: job.refills, &window) }
      }
      left -= min(left, 64)
    }
    job.isDone.store(true, ordering: .releasing)
  }

  /// Reads one key, checks the bytes, and stores them again where a miss is to be refilled.
  mutating func readOne(_ number: UInt64, refills: Bool, _ window: inout Window) {
    let key = content.key(number)
    // Moved out of `self` for the call: the closure uses the rest of `self`.
    var bytes: [UInt8] = []
    swap(&bytes, &buffer)
    defer { swap(&bytes, &buffer) }
    unsafe bytes.withUnsafeMutableBytes { buffer in
      window.reads += 1
      let start = Clock.now
      let found = unsafe store.read(key, into: buffer)
      if let found {
        window.hitTimes.add(Clock.now - start)
        window.hits += 1
        // For a test, to check that the error is found.
        if spoils, window.hits == 1 { unsafe buffer[found / 2] ^= 0x10 }
        window.wrongBytes += unsafe content.wrongBytes(key, UnsafeRawBufferPointer(rebasing: buffer[..<found]))
      } else if refills {
        let size = unsafe content.write(key, to: buffer)
        let start = Clock.now
        let isStored = unsafe store.store(key, UnsafeRawBufferPointer(rebasing: buffer[..<size]))
        window.storeTimes.add(Clock.now - start)
        window.stores += 1
        if !isStored { window.refusals += 1 }
      }
    }
  }
}
