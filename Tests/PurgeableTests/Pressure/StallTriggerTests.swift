// SPDX-License-Identifier: MIT
// Triggers that fire wrongly after they were armed, and the sums that reveal it: with given files, and with the real kernel.

import Glibc
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("pressure: which stalls are believed", .serialized)
struct StallTriggerTests {
  static func text(some: UInt64, full: UInt64) -> String {
    """
    some avg10=1.50 avg60=0.20 avg300=0.00 total=\(some)
    full avg10=0.00 avg60=0.10 avg300=0.00 total=\(full)

    """
  }

  @Test("an event counts only if the time lost has grown by the threshold since the arming", arguments: [true, false])
  func fakeFile(isMachine: Bool) throws {
    let root = try FakeRoot(["memory.pressure": Self.text(some: 330_000, full: 300_000)])
    defer { root.remove() }
    let file = root.path + "/memory.pressure"
    // The machine's stalls count when no file says that the machine has room.
    let clock = SetClock()
    let source = try #require(
      StallSource(file: file, scope: isMachine ? .machine : .ownGroup, root: root.path, clock: clock.monotonic))
    defer { source.close() }
    let descriptors = source.descriptors
    try #require(descriptors.count == 2)
    func level(some: UInt64, full: UInt64, after: Double = 0, _ ready: [PressureDescriptor]) throws -> PressureLevel {
      clock.advance(seconds: after)
      try Self.overwrite(file, Self.text(some: some, full: full))
      return source.level(ready: ready)
    }
    #expect(try level(some: 352_660, full: 307_915, descriptors) == .normal, "what fires after 22.7 and 7.9 ms")
    #expect(try level(some: 356_660, full: 311_915, after: 1.6, descriptors) == .normal, "and a window later")
    #expect(try level(some: 456_659, full: 511_914, after: 1.6, descriptors) == .normal, "a microsecond too little")
    #expect(try level(some: 556_659, full: 711_913, after: 1.6, [descriptors[0]]) == .warning)
    #expect(try level(some: 556_659, full: 711_914, [descriptors[1]]) == .critical)
    // Armed anew, as after a fork: sums count from here.
    source.reopen()
    clock.advance(seconds: 1.1)
    #expect(source.level(ready: source.descriptors) == .normal)
    #expect(try level(some: 600_000, full: 911_914, source.descriptors) == .critical)
    #expect(try level(some: 0, full: 0, after: 1.6, source.descriptors) == .normal, "sums that fell")
  }

  @Test("a file without sums arms nothing: no event could be believed")
  func withoutTotals() throws {
    for text in ["", "some avg10=0.00\n", "full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n", "some total=x\n"] {
      let root = try FakeRoot(["memory.pressure": text])
      defer { root.remove() }
      #expect(StallSource(file: root.path + "/memory.pressure", scope: .ownGroup) == nil)
    }
  }

  @Test("a lasting stall keeps its level, however late it is looked at")
  func late() {
    let second: UInt64 = 1_000_000_000
    var ledger = StallLedger(thresholdMicroseconds: 100_000, total: 5_000_000, at: 10 * second)
    func believes(_ total: UInt64, at time: UInt64) -> Bool { ledger.believes(total: total, at: time) }
    // The first event was looked at 1.9 s late, and so took in half of the next window's stall.
    #expect(!believes(5_060_000, at: 14 * second - second / 10))
    #expect(believes(5_120_000, at: 14 * second + second / 10), "60 ms before the late look, 60 after it")
    #expect(!believes(5_180_000, at: 16 * second + second / 10), "60 ms in this window")
    #expect(believes(5_280_000, at: 18 * second))
    // After hours of stalls of a millisecond each, the kernel's window has forgotten them, and its event is true.
    #expect(believes(5_400_000, at: 90_000 * second))
    // Clock and sums never go back; if they did, nothing would trap.
    #expect(!believes(0, at: 0))
  }

  @Test("sums are read from lines of any order and length")
  func parsing() {
    func totals(_ text: String) -> StallTotals { StallTotals(Array(text.utf8).span) }
    #expect(totals(Self.text(some: 1, full: .max / 2)).some == 1)
    #expect(totals(Self.text(some: 1, full: .max / 2)).full == UInt64.max / 2)
    #expect(totals("full avg10=0.00 total=7\nsome total=8").full == 7)
    #expect(totals("full avg10=0.00 total=7\nsome total=8").some == 8)
    for text in ["", "\n\n", "some", "some 5", "some total=", "total=5", "somtotal=5\nf=5", "some total=18446744073709551616"] {
      #expect(totals(text).full == nil)
      #expect(totals(text).some == (text.hasPrefix("somtotal") ? 5 : nil))
    }
  }

  // MARK: The real kernel

  /// The file that both processes watch, and the group's limit.
  private static let machineFile = "/proc/pressure/memory"
  private static let limit: UInt64 = 96 << 20

  @Test(
    "20 armings by an ordinary user in a group and on a machine that have stalled before: not one wrong level", .forks, .fullRun)
  func realKernel() async throws {
    try needGroup(.v2, limitBytes: nil)
    let limitsByVersion1 = MemoryGroup.current()?.version == .v1
    try needGroup(limitsByVersion1 ? .v1 : .v2, limitBytes: Self.limit)
    guard let unified = MemoryGroup.currentUnified(),
      unsafe access(unified.directories[0] + "/memory.pressure", F_OK) == 0, unsafe access(Self.machineFile, W_OK) == 0
    else { try Test.cancel("no stalls (PSI) are told here") }
    let result = await #expect(processExitsWith: .success, observing: [\.standardOutputContent]) {
      let isVersion1 = MemoryGroup.current()?.version == .v1
      let (limited, reason) = isVersion1 ? TestGroup.make(version: .v1, limitBytes: Self.limit) : (nil, "")
      let (group, why) = TestGroup.make(version: .v2, limitBytes: isVersion1 ? nil : Self.limit)
      guard let group else { fatalError(reason + why) }
      let rounds = StallRounds(groupFile: group.directory + "/memory.pressure", machineFile: Self.machineFile)
      let verdict = rounds.run()
      group.leave()
      limited?.leave()
      print(verdict.isWell ? "well:" : "not well:", verdict.summary)
    }
    let output = String(decoding: result?.standardOutputContent ?? [], as: UTF8.self)
    if output.contains("cannot tell") { try Test.cancel("\(output)") }
    #expect(output.contains("\nwell:") || output.hasPrefix("well:"), "\(output)")
  }

  /// Written in place, so that the open descriptors see it.
  private static func overwrite(_ path: String, _ text: String) throws {
    let file = try #require(OwnedDescriptor.open(path, O_WRONLY | O_TRUNC))
    defer { file.close() }
    #expect(file.write(text))
  }
}

/// A process that stalls by small amounts when told, in a group with a limit, and 20 sources that an ordinary user arms anew. For
/// exit tests, as root: privileges are dropped while the files are opened, since the kernel checks them then.
private struct StallRounds {
  struct Verdict {
    var summary: String
    var isWell: Bool
  }

  private static let ordinaryUser: uid_t = 65534
  private static let armingCount = 20
  private static let pastMicroseconds: UInt64 = 250_000
  private static let smallMicroseconds: UInt64 = 1_000
  /// Where no stalls are to be had within this time, there are none in minutes either.
  private static let patienceSeconds = 10
  private static let placeByteCount = 64 << 20
  private static let placeMask = placeByteCount - 1

  let groupFile: String
  let machineFile: String
  private let go = OwnedDescriptor.event()!
  private let done = OwnedDescriptor.event()!
  private let over = OwnedDescriptor.event()!

  init(groupFile: String, machineFile: String) {
    self.groupFile = groupFile
    self.machineFile = machineFile
  }

  func run() -> Verdict {
    require(unsafe chown(groupFile, Self.ordinaryUser, 0) == 0, "the group's file is the user's")
    var verdict = Verdict(summary: "cannot tell: no stalls to be had within ten seconds", isWell: false)
    // The child first makes the stalls of the past, and then a small stall each time it is told to.
    let ended = childSays {
      // On a busy machine, making the past takes a while.
      alarm(300)
      guard let file = OwnedDescriptor.open(groupFile, O_RDONLY) else { return false }
      let places = unsafe (0..<2).map { _ in
        unsafe mmap(nil, Self.placeByteCount, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)!
      }
      var offset = 0
      guard unsafe stall(Self.pastMicroseconds, file, places, &offset) else { return false }
      done.signal()
      while true {
        if over.drain() > 0 { return true }
        if go.drain() == 0 {
          usleep(5_000)
          continue
        }
        guard unsafe stall(Self.smallMicroseconds, file, places, &offset) else { return false }
        done.signal()
      }
    } meanwhile: {
      guard patiently(seconds: 2 * Self.patienceSeconds, { done.drain() > 0 }) else { return false }
      for _ in 0..<3 {
        verdict = round()
        if verdict.isWell == false || !verdict.summary.contains("cannot tell") { break }
      }
      over.signal()
      return true
    }
    return ended || !verdict.isWell ? verdict : Verdict(summary: "the process that stalls did not end well", isWell: false)
  }

  /// Touches page after page until the group has stalled for that long. The touched pages are offered again and again, so the
  /// kernel can take them.
  private func stall(
    _ microseconds: UInt64, _ file: OwnedDescriptor, _ places: [UnsafeMutableRawPointer], _ offset: inout Int
  ) -> Bool {
    guard let before = StallTotals(of: file)?.some else { return false }
    let end = MonotonicTime.now + UInt64(Self.patienceSeconds) * 1_000_000_000
    while MonotonicTime.now < end {
      let place = unsafe places[offset >> 26 & 1]
      // In bounds: both mappings have 64 MiB, which the step divides.
      unsafe memset(place + (offset & Self.placeMask), 1, 64 << 10)
      offset += 64 << 10
      if (offset & Self.placeMask) == 0 { unsafe madvise(place, Self.placeByteCount, 8) }
      if let now = StallTotals(of: file)?.some, now - before >= microseconds { return true }
    }
    return false
  }

  /// The results for one watched file.
  private struct Watched {
    let file: OwnedDescriptor
    let before: StallTotals
    let sources: [StallSource]
    var eventCount = 0
    /// Levels that the sums over the whole round contradict.
    var wrongCount = 0

    var grown: (some: UInt64, full: UInt64) {
      let now = StallTotals(of: file)!
      return (now.some! - before.some!, now.full! - before.full!)
    }

    mutating func look() {
      for source in sources {
        var records = source.descriptors.map { pollfd(fd: $0.descriptor, events: $0.events, revents: 0) }
        // Safe: the array is used by no other code while its buffer is lent.
        _ = unsafe records.withUnsafeMutableBufferPointer { unsafe poll($0.baseAddress, nfds_t($0.count), 0) }
        let ready = records.filter { $0.revents != 0 }.map { PressureDescriptor(descriptor: $0.fd, events: $0.revents) }
        guard !ready.isEmpty else { continue }
        eventCount += ready.count
        let level = source.level(ready: ready)
        let grown = grown
        if level == .warning && grown.some < 100_000 || level == .critical && grown.full < 200_000 { wrongCount += 1 }
      }
    }
  }

  /// Arms all sources anew, has the child stall a little three times, in windows of their own, and listens.
  private func round() -> Verdict {
    require(seteuid(Self.ordinaryUser) == 0, "an ordinary user")
    var watched = [(groupFile, StallSource.Scope.ownGroup), (machineFile, .machine)].map { path, scope in
      let file = OwnedDescriptor.open(path, O_RDONLY)!
      // Without /proc/meminfo, the machine's stalls count as they are.
      let before = StallTotals(of: file)!
      return Watched(
        file: file, before: before,
        sources: (0..<Self.armingCount).map { _ in StallSource(file: path, scope: scope, root: "/nowhere")! })
    }
    require(seteuid(0) == 0, "root again")
    var isTold = true
    for _ in 0..<3 {
      go.signal()
      isTold = isTold && patiently(seconds: 2 * Self.patienceSeconds) { done.drain() > 0 }
      for _ in 0..<24 {
        usleep(100_000)
        for index in watched.indices { watched[index].look() }
      }
    }
    // The round tested something only if the kernel reported stalls that had not happened.
    let isTried = watched[0].eventCount >= Self.armingCount && watched[0].grown.some < 100_000
    var summary = ""
    for (name, each) in zip(["group", "machine"], watched) {
      let grown = each.grown
      summary += "\(name): \(each.eventCount) events of \(each.sources.count * 2) triggers, \(each.wrongCount) wrong levels; "
      summary += "some grew by \(grown.some), full by \(grown.full) us; "
      for source in each.sources { source.close() }
      each.file.close()
    }
    let wrong = watched.reduce(0) { $0 + $1.wrongCount }
    guard wrong == 0 else { return Verdict(summary: summary, isWell: false) }
    // The kernel may find memory for a while without a stall.
    guard isTold else { return Verdict(summary: summary + "cannot tell: no more stalls to be had", isWell: false) }
    if !isTried { summary += "cannot tell: no wrong events" }
    return Verdict(summary: summary, isWell: true)
  }
}
