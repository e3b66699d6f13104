// SPDX-License-Identifier: MIT
// The process under pressure: fills the cache with files, reads them in a skewed order, checks every hit, shows what is left.

import Glibc
import Purgeable
import ToolSupport

/// What a test has the worker spoil, to see that it is found out.
enum Spoiling: String, Sendable {
  /// A byte of every hundredth hit, before it is checked.
  case hits
  /// A byte of the first entry that is sent to be compared with its file.
  case rest
}

struct DemoWorker {
  let seed: UInt64
  let spoiling: Spoiling?
  private let input = WireReader(descriptor: STDIN_FILENO)
  private let output = WireWriter(descriptor: STDOUT_FILENO)
  private var progress = ProgressReport(writer: WireWriter(descriptor: STDOUT_FILENO))
  private let cache: PurgeableCache<String, [UInt8]>
  private let paths: [String]
  /// As they were found.
  private let sizes: [UInt64]
  /// By file; nil for those that could not be read.
  private var digests: [Digest?]
  /// The files that can be read, by their index in `paths`.
  private var readable: [Int] = []
  private var result = WorkerResult()
  private var pressure: PageOutPressure?
  private var limitBytes: UInt64 = 0
  /// What was missed, by reason, in bytes.
  private var missedBytes = [UInt64](repeating: 0, count: MissReason.allCases.count)
  /// A read's time and its file, in turn; nil where nobody wants to know.
  private var log: [UInt64]?

  init(seed: UInt64, spoiling: Spoiling?, logs: Bool) throws {
    self.seed = seed
    self.spoiling = spoiling
    log = logs ? [] : nil
    cache = try PurgeableCache<String, [UInt8]>(name: "demo")
    (paths, sizes) = try DemoProcess.receiveFiles(input)
    digests = Array(repeating: nil, count: paths.count)
    readable.reserveCapacity(paths.count)
  }

  mutating func run() throws {
    try output.write(.ready)
    guard let begin = try input.next(), begin.tag == .begin, let kind = begin.bytes.first.flatMap(PressureKind.init) else {
      throw WireFailure()
    }
    limitBytes = begin.number
    if kind == .pageOut { pressure = PageOutPressure(limitBytes: limitBytes) }
    try load()
    try read()
    takeStock()
    try measure()
    try showWhatIsLeft()
    if let log { try output.write(.requests, 0, Frame.bytes(of: log)) }
    try output.write(.result, 0, Frame.bytes(of: result.words))
  }

  /// What is resident, held and on offer.
  private static func memory(of cache: PurgeableCache<String, [UInt8]>) -> [UInt64] {
    let memory = cache.statistics.memory
    return [UInt64(memory.residentBytes ?? 0), UInt64(memory.heldBytes), UInt64(memory.offeredBytes)]
  }

  // MARK: Filling

  private mutating func load() throws {
    let start = Clock.now
    for index in paths.indices where Clock.now - start < DemoTimes.loading {
      guard let bytes = Self.contents(paths[index]) else { continue }
      digests[index] = Digest(bytes)
      readable.append(index)
      store(bytes, index)
      result[.loadedBytes] += UInt64(bytes.count)
      if pressure?.isDue == true { try makePressure() }
      try progress.tell(.loading, [UInt64(index), UInt64(paths.count), result[.loadedBytes]] + Self.memory(of: cache))
    }
    guard !readable.isEmpty else { throw ToolFailure("none of the files could be read") }
    result[.entries] = UInt64(readable.count)
    result[.loadNanoseconds] = Clock.now - start
  }

  /// A file's bytes, for the cache: page cache of the same file would only compete with it in the group.
  private static func contents(_ path: String) -> [UInt8]? { DiskFile.read(path, leavesPageCache: false) }

  private mutating func store(_ bytes: [UInt8], _ index: Int) {
    if cache.setValue(bytes, forKey: paths[index]) != .stored { result[.refusedStores] += 1 }
  }

  // MARK: Reading

  private mutating func read() throws {
    let start = Clock.now
    let wanted = UInt64(readable.count) * 4
    var elapsed: UInt64 = 0
    for place in ReadOrder(count: readable.count, seed: seed) {
      elapsed = Clock.now - start
      if elapsed >= DemoTimes.readingAtMost { break }
      if elapsed >= DemoTimes.readingAtLeast && result[.reads] >= wanted { break }
      readOne(readable[place])
      if pressure?.isDue == true { try makePressure() }
      try progress.tell(
        .reading,
        [max(result[.reads] * 100 / wanted, 1), elapsed, result[.hits], result.missCount, result[.wrongBytes]]
          + Self.memory(of: cache))
    }
    result[.readNanoseconds] = elapsed
  }

  private mutating func readOne(_ index: Int) {
    result[.reads] += 1
    log?.append(Clock.now)
    log?.append(UInt64(index))
    switch cache.lookUpValue(forKey: paths[index]) {
    case .hit(var bytes):
      result[.hits] += 1
      if spoiling == .hits, result[.hits] % 100 == 0, !bytes.isEmpty { bytes[bytes.count / 2] ^= 0x10 }
      guard let digest = digests[index] else { return }
      result[.wrongBytes] += HitCheck.wrongBytes(bytes, digest: digest) { DiskFile.read(paths[index]) }
    case .miss(let reason):
      result.misses[reason.rawValue] += 1
      guard let bytes = Self.contents(paths[index]) else {
        result[.changedFiles] += 1
        return
      }
      missedBytes[reason.rawValue] += UInt64(bytes.count)
      let digest = Digest(bytes)
      if digest != digests[index] {
        // Somebody has written to the file: from now on this is right.
        result[.changedFiles] += 1
        digests[index] = digest
      }
      store(bytes, index)
    }
  }

  private mutating func makePressure() throws {
    guard pressure != nil else { return }
    try pressure?.make(on: cache)
    result[.pagedOutBytes] = pressure?.takenBytes ?? 0
    result[.pageOutError] = UInt64(pressure?.errorNumber ?? 0)
  }

  // MARK: Afterwards

  private mutating func takeStock() {
    // The books are incomplete until here: a sweep finds what the kernel took.
    cache.sweep()
    let statistics = cache.statistics
    result[.residentBytes] = UInt64(statistics.memory.residentBytes ?? 0)
    result[.offeredBytes] = UInt64(statistics.memory.offeredBytes)
    result[.heldBytes] = UInt64(statistics.memory.heldBytes)
    result[.ordinaryBytes] = UInt64(statistics.memory.ordinaryBytes)
    result[.discardedEntries] = UInt64(statistics.departures[.discarded] ?? 0)
    result[.discardedBytes] = missedBytes[MissReason.discarded.rawValue]
    // Everything that is asked for was stored at some time. What the cache remembers nothing of was lost to the kernel as well,
    // unless it evicted anything by itself.
    let evicted = statistics.departures.filter { $0.key != .discarded && $0.key != .replaced }.values.reduce(0, +)
    if evicted == 0 { result[.discardedBytes] += missedBytes[MissReason.unknown.rawValue] }
    for index in readable where !cache.containsValue(forKey: paths[index]) {
      result[.discardedBytes] += evicted == 0 ? sizes[index] : 0
    }
  }

  /// Hits and reloads of the same entries, chosen evenly: nobody else asks for much memory now.
  private mutating func measure() throws {
    try progress.tell(.measuring, [])
    var random = SplitMix64(seed: seed)
    let deadline = Clock.now + DemoTimes.measuring
    var hits = Sample()
    var warm = Sample()
    var cold = Sample()
    var sampled: [Int] = []
    for place in random.shuffled(readable.count) where sampled.count < 400 && Clock.now < deadline {
      let path = paths[readable[place]]
      let time = Clock.now
      guard case .hit(let bytes) = cache.lookUpValue(forKey: path) else { continue }
      hits.add(Clock.now - time)
      result[.sampleBytes] += UInt64(bytes.count)
      sampled.append(readable[place])
    }
    for index in sampled where Clock.now < deadline {
      // The first brings it into the page cache, should it not be there.
      _ = DiskFile.read(paths[index])
      warm.time { DiskFile.read(paths[index]) }
    }
    for index in sampled where Clock.now < deadline {
      cold.time { DiskFile.read(paths[index], fromDisk: true) }
    }
    result[.hitNanoseconds] = hits.median
    result[.reloadNanoseconds] = warm.median
    result[.coldReloadNanoseconds] = cold.median
    result[.sampleCount] = UInt64(sampled.count)
  }

  /// Every remaining entry, for somebody else to compare.
  private mutating func showWhatIsLeft() throws {
    var isFirst = true
    for index in readable {
      guard case .hit(var bytes) = cache.lookUpValue(forKey: paths[index]) else { continue }
      if spoiling == .rest && isFirst { bytes[bytes.count / 2] ^= 0x10 }
      isFirst = false
      try output.write(.entry, UInt64(index), bytes)
    }
  }
}

/// Times of the same thing done to different entries.
struct Sample {
  private var times: [UInt64] = []

  mutating func add(_ nanoseconds: UInt64) { times.append(nanoseconds) }

  /// Times a reload; one that fails does not count.
  mutating func time(_ body: () -> [UInt8]?) {
    let start = Clock.now
    if body() != nil { add(Clock.now - start) }
  }

  /// 0 for none.
  var median: UInt64 { times.isEmpty ? 0 : times.sorted()[times.count / 2] }
}
