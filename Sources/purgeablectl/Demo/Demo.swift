// SPDX-License-Identifier: MIT
// The demonstration's own process, outside of the group: starts the others, listens to them, judges.
//
//   this process --files, limit--> worker       in the group: the cache, hits checked by digest
//        ^                           |
//        +--progress, what is left --+          compared here with the files, byte for byte
//        |
//        +--> neighbour   in the group, while the worker reads          +--> dictionary   in the group, afterwards

import Glibc
import Purgeable
import ToolSupport

struct Demo {
  let options: DemoOptions
  private let start = Clock.now
  private var progress = Progress()
  private var corpus = Corpus()
  /// nil where none could be made.
  private var group: PressureGroup?
  /// Why there is no limit on a group; empty while nothing speaks against it.
  private var refusal = ""
  private var limitBytes: UInt64 = 0
  private var isRaised = false
  private var neighbour: Child?
  private var neighbourResult: NeighbourResult?
  /// How it ended, where that was not in good order.
  private var neighbourFailure: String?
  /// What the worker needs beside its cache.
  private var ownBytes: UInt64 = 0
  /// As `RoomReplay` wants them.
  private var reads: [UInt64] = []
  private var neighbourLog: [UInt64] = []
  private var recorder: RunRecorder?

  init(_ options: DemoOptions) {
    self.options = options
  }

  /// Runs the demonstration and prints the report. Leaves no child and no group behind, however it ends.
  mutating func run() throws -> Int32 {
    // Before signals are watched: to open a pipe waits for its reader.
    recorder = try options.recordPath.map { path throws(ToolFailure) in try RunRecorder(path) }
    try Children.watchSignals()
    defer {
      progress.end()
      Children.endAll()
      if let group, !group.remove() { complain("\(Tool.name) demo: could not remove \(group.files.directory)") }
    }
    do {
      let report = try makeReport()
      try recorder?.end(report.json)
      progress.end()
      print(options.isJSON ? report.json.text : report.table)
      return report.exitStatus
    } catch {
      progress.end()
      return try Children.exitStatus(of: "demo", after: error)
    }
  }

  private mutating func makeReport() throws -> DemoReport {
    progress.show(.loading, share: nil, "looking for files in \(options.directory)")
    corpus = Corpus.choose(in: options.directory, sizeBytes: options.sizeBytes, seed: options.seed) {
      Children.interruption == 0
    }
    try Children.checkInterruption()
    guard !corpus.files.isEmpty else {
      throw ToolFailure("\"\(options.directory)\" has no readable file that is not empty and fits into --size")
    }
    limitBytes = options.limitBytes ?? max(1, corpus.sizeBytes / 2)
    do throws(PressureGroup.Refusal) {
      group = try PressureGroup(inside: MemoryGroup.current(), for: "demo")
    } catch {
      refusal = error.reason
    }
    let (worker, check) = try runWorker()
    let hitsInRoom = try replayInRoom()
    let dictionary = try runDictionary(worker)
    return DemoReport(
      directory: options.directory, options: options, fileCount: UInt64(corpus.files.count), fileBytes: corpus.sizeBytes,
      limitBytes: limitBytes, pressure: pressureInWords(worker), worker: worker, check: check,
      hitsInRoom: hitsInRoom, neighbourFailure: neighbourFailure,
      dictionary: dictionary.description(
        limitBytes: limitBytes, totalBytes: worker[.loadedBytes], readCount: worker[.reads]),
      nanoseconds: Clock.now - start)
  }

  // MARK: The worker

  private mutating func runWorker() throws -> (WorkerResult, FinalCheck) {
    var words = [DemoCommands.worker, "--seed=\(options.seed)"] + GroupProcess.words(group?.files)
    if let spoiling = Self.spoiling { words.append("--spoil=\(spoiling.rawValue)") }
    if options.replaysInRoom { words.append("--log") }
    let child = try Children.start(words)
    var result: WorkerResult?
    var check = FinalCheck()
    do {
      try DemoProcess.send(corpus.files, to: child.writer)
      while let frame = try child.reader.next() {
        switch frame.tag {
        case .ready: try begin(child)
        case .progress: try follow(frame)
        case .entry:
          guard frame.number < UInt64(corpus.files.count) else { throw WireFailure() }
          check.check(frame.bytes, against: corpus.files[Int(frame.number)])
          progress.show(.comparing, share: nil, "\(ByteSize(check.bytes)), \(check.wrongBytes) wrong bytes")
        case .requests: reads = frame.words
        case .result: result = WorkerResult(frame.words)
        default: throw WireFailure()
        }
      }
    } catch is WireFailure {
      // The way the worker ended tells more.
    }
    child.closeInput()
    stopNeighbour()
    let end = child.wait()
    guard end == .exited(0), let result else {
      throw GroupProcess.failure(of: "the process with the cache", end, in: group?.files)
    }
    return (result, check)
  }

  /// The worker has its tables: now it shows what a process needs for itself, and so how low the limit can be.
  private mutating func begin(_ worker: Child) throws {
    if let files = group?.files {
      // For the neighbour as well, and some room to read files in.
      ownBytes = files.workingSetBytes ?? 0
      let possible = max(limitBytes, 2 * ownBytes + 8 << 20)
      if corpus.sizeBytes <= Neighbour.roomBytes(limit: possible) * 3 / 2 {
        refusal = "these files are too few to fill a group"
      } else if let largest = corpus.files.map(\.status.sizeBytes).max(), largest > possible / 8 {
        // Where it is read again it is there twice, beside the cache and the neighbour.
        refusal = "a file of \(ByteSize(largest)) is too large for a group of \(ByteSize(possible))"
      } else {
        let error = files.setLimit(possible)
        if error != 0 { refusal = "a limit could not be set: \(SystemError.text(error))" }
        isRaised = error == 0 && possible > limitBytes
        if error == 0 { limitBytes = possible }
      }
    }
    let about = "\(Figures.count(UInt64(corpus.files.count))) files of \(options.directory), \(ByteSize(corpus.sizeBytes))"
    recorder?.begin(
      RunHeader(
        run: "demo", format: RunHeader.format, about: "\(about), seed \(options.seed)",
        limitBytes: refusal.isEmpty ? limitBytes : nil))
    let kind: PressureKind = refusal.isEmpty ? .group : .pageOut
    try worker.writer.write(.begin, limitBytes, [kind.rawValue])
  }

  private mutating func follow(_ frame: Frame) throws {
    guard let phase = DemoPhase(rawValue: frame.number) else { throw WireFailure() }
    let words = frame.words
    switch phase {
    case .loading where words.count == 6:
      try note(phase, memory: words[3...])
      let share = Double(words[0]) / Double(max(1, words[1]))
      progress.show(phase, share: share, "\(ByteSize(words[2])) of \(ByteSize(corpus.sizeBytes))")
    case .reading where words.count == 8:
      try note(phase, memory: words[5...], reads: words[2..<5])
      if neighbour == nil, refusal.isEmpty, let files = group?.files {
        let log = options.replaysInRoom ? ["--log"] : []
        neighbour = try Children.start(
          [DemoCommands.neighbour, "--limit=\(limitBytes)"] + log + GroupProcess.words(files))
        try recorder?.note { $0.event = "a neighbour arrives" }
      }
      progress.show(
        phase, share: min(Double(words[0]) / 100, 1),
        "\(Figures.count(words[2])) hits, \(Figures.count(words[3])) misses, \(words[4]) wrong bytes")
    case .measuring:
      stopNeighbour()
      progress.show(phase, share: nil, "")
    default: throw WireFailure()
    }
  }

  /// `memory`: resident, held, on offer. `reads`: hits, misses, wrong bytes.
  private func note(_ phase: DemoPhase, memory: ArraySlice<UInt64>, reads: ArraySlice<UInt64> = [0, 0, 0]) throws(ToolFailure) {
    try recorder?.note { sample in
      sample.phase = phase.title
      let (memory, reads) = (Array(memory), Array(reads))
      (sample.residentBytes, sample.heldBytes, sample.offeredBytes) = (memory[0], memory[1], memory[2])
      (sample.hits, sample.misses, sample.wrongBytes) = (reads[0], reads[1], reads[2])
      sample.groupBytes = group?.files.usageBytes
    }
  }

  private mutating func stopNeighbour() {
    guard let child = neighbour else { return }
    neighbour = nil
    child.closeInput()
    if let frame = try? child.reader.next(), frame.tag == .result { neighbourResult = NeighbourResult(frame.words) }
    if options.replaysInRoom, let frame = try? child.reader.next(), frame.tag == .requests { neighbourLog = frame.words }
    let end = child.wait()
    if end != .exited(0) { neighbourFailure = "\(GroupProcess.failure(of: "the neighbour", end, in: group?.files))" }
  }

  // MARK: The dictionary

  private mutating func runDictionary(_ worker: WorkerResult) throws -> DictionaryOutcome {
    progress.show(.dictionary, share: nil, "")
    let files = refusal.isEmpty ? group?.files : nil
    files?.dropLeftovers()
    let killsBefore = files?.killCount
    var words = [DemoCommands.dictionary, "--seed=\(options.seed)", "--reads=\(worker[.reads])"] + GroupProcess.words(files)
    if files == nil { words.append("--address-space=\(limitBytes)") }
    let child = try Children.start(words, isQuiet: true)
    var outcome = DictionaryOutcome(end: .exited(0), hasGroup: files != nil)
    do {
      // As many as the worker had time for.
      try DemoProcess.send(Array(corpus.files.prefix(Int(worker[.entries]))), to: child.writer)
      while let frame = try child.reader.next() {
        guard frame.words.count == 2, frame.tag == .progress || frame.tag == .result else { throw WireFailure() }
        (outcome.loadedBytes, outcome.reads) = (frame.words[0], frame.words[1])
        outcome.isDone = frame.tag == .result
        progress.show(.dictionary, share: nil, "\(ByteSize(outcome.loadedBytes)), \(Figures.count(outcome.reads)) reads")
      }
    } catch is WireFailure {
      // The child is gone, as expected; the way it ended tells more.
    }
    child.closeInput()
    outcome.end = child.wait()
    try Children.checkInterruption()
    if let killsBefore, let kills = files?.killCount { outcome.wasKilledForMemory = kills > killsBefore }
    return outcome
  }

  /// nil where that is not wanted, or where there was no neighbour.
  private mutating func replayInRoom() throws -> UInt64? {
    guard options.replaysInRoom, !neighbourLog.isEmpty else { return nil }
    progress.show(.replaying, share: nil, "")
    return try RoomReplay(
      reads: reads, neighbour: neighbourLog, sizes: corpus.files.map(\.status.sizeBytes),
      sharedBytes: limitBytes - min(limitBytes, ownBytes)
    ).countHits()
  }

  // MARK: Words

  private func pressureInWords(_ worker: WorkerResult) -> String {
    let limit = "\(ByteSize(limitBytes))"
    guard refusal.isEmpty, let version = group?.files.version.rawValue else {
      if worker[.pageOutError] != 0 {
        return "none: no memory group (\(refusal)), and the kernel does not page out on demand"
      }
      return "MADV_PAGEOUT on what is on offer, down to \(limit) and less: \(ByteSize(worker[.pagedOutBytes])) were taken; "
        + "no memory group (\(refusal))"
    }
    let raised = isRaised ? " (raised to what the processes themselves need)" : ""
    guard let neighbourResult, neighbourResult.waveCount > 0 else { return "cgroup v\(version), limit \(limit)\(raised)" }
    return "cgroup v\(version), limit \(limit)\(raised), and a neighbour in it that took up to "
      + "\(ByteSize(neighbourResult.peakBytes)) in \(neighbourResult.waveCount) waves"
  }

  /// For the tool's own tests: the content to spoil, to check that the tool finds it out.
  private static var spoiling: Spoiling? {
    unsafe getenv("PURGEABLECTL_DEMO_SPOIL").flatMap { unsafe Spoiling(rawValue: String(cString: $0)) }
  }
}
