// SPDX-License-Identifier: MIT
// Where a scenario takes place: a memory group with a limit, the processes in it, and an eye on all of them.
//
//   this process --orders--> cache, memory, rival   in the group
//        ^                      |
//        +-- beats, rows, results: one pipe for each; nobody may be silent for long while it has something to do

import Glibc
import Purgeable
import ToolSupport

/// What a scenario works with. One thread.
final class StressStage {
  let options: StressOptions
  let seed: UInt64
  let limitBytes: UInt64
  let group: PressureGroup
  private let scenario: String
  private var children: [StressChild] = []
  private var killBaseline: UInt64 = 0
  private var progress = Progress()
  private let spoiling: String?
  private let recorder: RunRecorder?
  private var phase: String?
  /// The last one of this phase.
  private var lastEvent: String?

  /// A process that has something to do says so twice a second. Under pressure it may be late.
  static let silenceLimit: UInt64 = 30_000_000_000

  init(
    _ scenario: String, options: StressOptions, seed: UInt64, allowsSwap: Bool, recorder: RunRecorder? = nil
  ) throws(StressFailure) {
    self.options = options
    self.recorder = recorder
    self.scenario = scenario
    self.seed = seed
    limitBytes = options.limitBytes
    spoiling = unsafe getenv("PURGEABLECTL_STRESS_SPOIL").map { unsafe String(cString: $0) }
    do throws(PressureGroup.Refusal) {
      group = try PressureGroup(inside: MemoryGroup.current(), for: "stress")
    } catch {
      throw .impossible("no memory group: \(error.reason)")
    }
    let error = group.files.setLimit(limitBytes, allowsSwap: allowsSwap)
    guard error == 0 else {
      group.remove()
      throw .impossible("a limit could not be set: \(SystemError.text(error))")
    }
    killBaseline = group.files.killCount ?? 0
  }

  /// Ends all processes and removes the group. False when it is still there.
  func end() -> Bool {
    progress.end()
    Children.endAll()
    children = []
    return group.remove()
  }

  // MARK: Sizes and times

  /// The length of a scenario's main part, in nanoseconds.
  func length(_ seconds: UInt64, short: Double) -> UInt64 {
    if let given = options.seconds { return given * 1_000_000_000 }
    return options.isShort ? UInt64(short * 1e9) : seconds * 1_000_000_000
  }

  /// What small entries are; somewhat larger, and so fewer, in short form.
  var smallSizes: ClosedRange<Int> { options.isShort ? 200...800 : 100...400 }

  /// So many hundredths of the limit.
  func share(_ percent: UInt64) -> UInt64 { limitBytes / 100 * percent }

  /// How many processes of the group the kernel has killed since the stage was made, or since they were forgiven.
  var killCount: UInt64 { max(killBaseline, group.files.killCount ?? 0) - killBaseline }

  /// From here on only what is killed later counts.
  func forgiveKills() { killBaseline = group.files.killCount ?? 0 }

  // MARK: Processes

  /// `settings`: options of the cache's process beside its content.
  func startCache(_ content: StressContent, _ settings: [String] = []) throws -> StressChild {
    var words = [StressRole.cache.command] + content.words + settings
    if let spoiling { words.append("--spoil=\(spoiling)") }
    if recorder != nil { words.append("--samples") }
    return try start("the cache", words)
  }

  func startRival(_ kind: RivalKind, _ content: StressContent, countLimit: UInt64) throws -> StressChild {
    try start(
      kind.title, [StressRole.rival.command, "--kind=\(kind.rawValue)", "--count=\(countLimit)"] + content.words, isQuiet: true)
  }

  func startMemory(_ name: String = "the neighbour", file: String? = nil) throws -> StressChild {
    try start(name, [StressRole.memory.command] + (file.map { ["--file=\($0)"] } ?? []))
  }

  private func start(_ name: String, _ words: [String], isQuiet: Bool = false) throws -> StressChild {
    // From the signal on none can be started.
    if Children.interruption != 0 { throw StressFailure.interrupted }
    let child = StressChild(name, try Children.start(words + GroupProcess.words(group.files), isQuiet: isQuiet))
    children.append(child)
    return child
  }

  /// Has a process end in good order, by closing its input; it may be gone already.
  @discardableResult
  func finish(_ child: StressChild) -> ChildEnd {
    child.process.closeInput()
    children.removeAll { $0 === child }
    while (try? child.process.reader.next()) ?? nil != nil {}
    return child.process.wait()
  }

  /// Ends a process at once, whatever it does.
  func end(_ child: StressChild) {
    children.removeAll { $0 === child }
    kill(child.id, SIGKILL)
    _ = child.process.wait()
  }

  /// Ends every process, and has the kernel take back what they left.
  func clear() {
    for child in children { end(child) }
    group.files.dropLeftovers()
  }

  // MARK: Orders

  /// Gives an order that goes on until it is done or another one stops it.
  func order(_ child: StressChild, _ order: StressOrder, _ numbers: Tally = [:]) throws {
    child.isBusy = true
    child.result = nil
    child.lastHeard = Clock.now
    try tell(child, order, numbers)
    if let its = order.phase { (phase, lastEvent) = (its, nil) }
    // One of many in a row is enough.
    guard let event = order.event, event != lastEvent else { return }
    lastEvent = event
    try note { $0.event = event }
  }

  /// Says something to a process that is busy.
  func tell(_ child: StressChild, _ order: StressOrder, _ numbers: Tally = [:]) throws {
    do throws(WireFailure) {
      try child.process.writer.write(.order, order.rawValue, numbers.bytes)
    } catch {
      throw gone(child)
    }
  }

  /// Waits for the result of the order that was given last.
  func result(of child: StressChild, onRow: (Tally) throws -> Void = { _ in }) throws -> Tally {
    while true {
      while let row = child.rows.popFirst() { try onRow(row) }
      if let result = child.result { return result }
      try listen(for: 500)
    }
  }

  /// Gives an order and waits for its result.
  func ask(
    _ child: StressChild, _ order: StressOrder, _ numbers: Tally = [:], onRow: (Tally) throws -> Void = { _ in }
  ) throws -> Tally {
    try self.order(child, order, numbers)
    return try result(of: child, onRow: onRow)
  }

  /// Has a process stop what it does, and waits for the result.
  func stop(_ child: StressChild, onRow: (Tally) throws -> Void = { _ in }) throws -> Tally {
    try tell(child, .stop)
    return try result(of: child, onRow: onRow)
  }

  /// Waits for the next row of a process.
  func nextRow(of child: StressChild) throws -> Tally {
    while true {
      if let row = child.rows.popFirst() { return row }
      try listen(for: 500)
    }
  }

  /// Lets some time pass.
  func pause(_ milliseconds: UInt64) throws {
    let end = Clock.now + milliseconds * 1_000_000
    var now = Clock.now
    while now < end {
      try listen(for: Int32((end - now) / 1_000_000) + 1)
      now = Clock.now
    }
  }

  /// Waits until a reaction has nothing to begin for: what is left of the limit is enough, by the library's own rule. Answers the
  /// nanoseconds.
  ///
  /// A version 1 kernel compares usage with a watched threshold only after each 128 pages that a processor has charged. Who stops
  /// that close to it, as this waiting neighbour may, is told of by nobody.
  func waitForRoom(by child: StressChild) throws -> UInt64 {
    let untold = UInt64(128 * sysconf(Int32(_SC_PAGESIZE)) * sysconf(Int32(_SC_NPROCESSORS_CONF)))
    let start = Clock.now
    while let room = group.files.room, MemoryRoom(room.byteCount + untold, of: room.total).missingBytes(isShort: false) > 0 {
      if Clock.now - start > Self.silenceLimit {
        throw StressFailure.hung(
          child.name, "no room made in \(Self.silenceLimit / 1_000_000_000) s, \(ProcessFacts.waiting(child.id))")
      }
      try pause(1)
    }
    return Clock.now - start
  }

  /// Hears whatever any process says within some time.
  private func listen(for milliseconds: Int32) throws {
    var watched = children.filter { $0.isBusy }.map {
      pollfd(fd: $0.process.reader.descriptor, events: Int16(POLLIN), revents: 0)
    }
    _ = unsafe poll(&watched, nfds_t(watched.count), milliseconds)
    if Children.interruption != 0 { throw StressFailure.interrupted }
    for entry in watched where entry.revents != 0 {
      guard let child = children.first(where: { $0.process.reader.descriptor == entry.fd }) else { continue }
      try hear(child)
    }
    if let recorder, recorder.isDue { try note() }
    let now = Clock.now
    for child in children where child.isBusy && !child.isStopped && now - min(now, child.lastHeard) > Self.silenceLimit {
      throw StressFailure.hung(child.name, "silent for \(Self.silenceLimit / 1_000_000_000) s, \(ProcessFacts.waiting(child.id))")
    }
  }

  private func note(_ fill: (inout RunSample) -> Void = { _ in }) throws {
    try recorder?.note { sample in
      (sample.phase, sample.groupBytes) = (phase, group.files.usageBytes)
      fill(&sample)
    }
  }

  /// What a cache tells of itself.
  private func note(_ numbers: Tally) throws {
    try note { sample in
      (sample.residentBytes, sample.heldBytes) = (numbers["residentBytes"], numbers["heldBytes"])
      (sample.offeredBytes, sample.wrongBytes) = (numbers["offeredBytes"], numbers["wrongBytes"])
      (sample.hits, sample.misses) = (numbers["hits"], numbers["reads"] - numbers["hits"])
    }
  }

  private func hear(_ child: StressChild) throws {
    // Frames are written whole: once one begins, the rest of it is there.
    guard let frame = try? child.process.reader.next() else { throw gone(child) }
    child.lastHeard = Clock.now
    let numbers = Tally(frame.bytes)
    switch frame.tag {
    case .result:
      child.isBusy = false
      child.result = numbers
    case .progress where frame.number == StressBeat.row: child.rows.append(numbers)
    case .progress where numbers["stalledThreads"] > 0:
      throw StressFailure.hung(
        child.name, "\(numbers["stalledThreads"]) of its threads do not get on, \(ProcessFacts.waiting(child.id))")
    case .progress where numbers["heldBytes"] > 0: try note(numbers)
    default: break
    }
  }

  private func gone(_ child: StressChild) -> StressFailure {
    children.removeAll { $0 === child }
    let end = child.process.wait()
    return Children.interruption != 0 ? .interrupted : .died(child.name, end)
  }

  // MARK: Progress

  func show(_ details: String, share: Double? = nil) { progress.show(scenario, share: share, details) }

  /// A line that a person should see as it comes, in full form.
  func note(_ line: String) { if !options.isShort { progress.note("\(scenario): \(line)") } }
}

/// A process on the stage, as seen from outside.
final class StressChild {
  let name: String
  let process: Child
  fileprivate(set) var isBusy = false
  /// By SIGSTOP: it cannot say anything.
  var isStopped = false
  fileprivate(set) var lastHeard: UInt64 = 0
  fileprivate(set) var rows: ArraySlice<Tally> = []
  fileprivate(set) var result: Tally?

  var id: pid_t { process.process }

  fileprivate init(_ name: String, _ process: Child) {
    self.name = name
    self.process = process
  }
}
