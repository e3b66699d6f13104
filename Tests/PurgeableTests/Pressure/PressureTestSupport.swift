// SPDX-License-Identifier: MIT
// Shared by the tests of pressure: a source with levels that the test sets, a memory group.

import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// A source whose level the test sets, with an eventfd or without.
final class FakeSource: PressureSource {
  let name = "fake"
  let pollingInterval: Duration?
  private let event: Guarded<OwnedDescriptor?>
  private let raw = Atomic<Int32>(0)
  let askCount = Atomic<Int>(0)
  let reopenCount = Atomic<Int>(0)
  let closeCount = Atomic<Int>(0)

  init(hasEvents: Bool = true, pollingInterval: Duration? = nil) {
    self.pollingInterval = pollingInterval
    event = Guarded(hasEvents ? OwnedDescriptor.event() : nil)
  }

  deinit { event.withLock { $0?.close() } }

  var descriptors: [PressureDescriptor] {
    event.withLock { $0 }.map { [PressureDescriptor(descriptor: $0.number, events: Int16(POLLIN))] } ?? []
  }

  /// Sets the level, with an event if the source has events.
  func set(_ level: PressureLevel) {
    raw.store(level.rawValue, ordering: .releasing)
    event.withLock { _ = $0?.signal() }
  }

  func level(ready: [PressureDescriptor]) -> PressureLevel {
    askCount.add(1, ordering: .relaxed)
    event.withLock { event in
      if ready.contains(where: { $0.descriptor == event?.number }) { event?.drain() }
    }
    return PressureLevel(rawValue: raw.load(ordering: .acquiring))!
  }

  func reopen() {
    event.withLock { event in
      guard event != nil else { return }
      event?.close()
      event = OwnedDescriptor.event()
    }
    reopenCount.add(1, ordering: .relaxed)
  }

  func close() { closeCount.add(1, ordering: .relaxed) }
}

extension PressureFeed {
  /// The descriptors to wait for now.
  func descriptors(at now: UInt64) -> [PressureDescriptor] {
    var list = DescriptorList()
    addDescriptors(to: &list, at: now)
    return Array(list)
  }

  mutating func ask(ready: [PressureDescriptor], at now: UInt64) -> Answer { ask(ready: DescriptorList(ready), at: now) }
}

/// The open descriptors of this process and their targets. Without timers: the concurrency runtime opens one at some time, the
/// library never.
func openDescriptors() -> [Int32: String] {
  var found: [Int32: String] = [:]
  for number in Int32(0)..<1024 where fcntl(number, F_GETFD) >= 0 {
    var buffer = [CChar](repeating: 0, count: 1024)
    // In bounds: one less than there are, so that a zero remains.
    let count = unsafe buffer.withUnsafeMutableBufferPointer { buffer in
      unsafe readlink("/proc/self/fd/\(number)", buffer.baseAddress!, buffer.count - 1)
    }
    let path = String(decoding: buffer.prefix(max(0, count)).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    if path != "anon_inode:[timerfd]" { found[number] = path }
  }
  return found
}

/// From here on this process can open nothing, until `end`. For exit tests.
struct NoDescriptors {
  private static let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
  private var usual = rlimit()
  private var fillers: [Int32] = []

  /// `spare`: how many it can open all the same.
  init(spare: Int = 0) {
    require(unsafe getrlimit(Self.resource, &usual) == 0, "getrlimit")
    var limit = usual
    limit.rlim_cur = rlim_t(openDescriptors().keys.max()! + 2)
    require(unsafe setrlimit(Self.resource, &limit) == 0, "setrlimit")
    while true {
      let number = dup(0)
      if number < 0 { break }
      fillers.append(number)
    }
    require(errno == EMFILE && fillers.count >= spare, "none is left")
    for number in fillers.prefix(spare) { close(number) }
    fillers.removeFirst(spare)
  }

  func end() {
    for number in fillers { close(number) }
    var usual = usual
    require(unsafe setrlimit(Self.resource, &usual) == 0, "setrlimit")
  }
}

/// Whether the library's thread exists.
func hasLibraryThread() -> Bool { libraryThreadCount() > 0 }

func libraryThreadCount() -> Int {
  guard let directory = unsafe opendir("/proc/self/task") else { return 0 }
  defer { unsafe closedir(directory) }
  var count = 0
  while let entry = unsafe readdir(directory) {
    let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) { name in
      // Safe: the kernel ends the name with a zero.
      unsafe name.withMemoryRebound(to: CChar.self, capacity: 256) { unsafe String(cString: $0) }
    }
    if SmallFile.text("/proc/self/task/\(name)/comm") == "purgeable\n" { count += 1 }
  }
  return count
}

/// A memory group with a limit inside this process's own group; this process is in it until `leave`. For exit tests.
struct TestGroup {
  private let files: GroupFiles
  private let own: GroupFiles

  var directory: String { files.directory }

  /// The group; nil, with the reason, where none can be made.
  static func make(version: MemoryGroup.Version, limitBytes: UInt64?) -> (TestGroup?, String) {
    let found = version == .v1 ? MemoryGroup.current() : MemoryGroup.currentUnified()
    guard let found, found.version == version, found.isOwnDirectory else { return (nil, "no own group of \(version) is visible") }
    let own = GroupFiles(version: version, directory: found.directories[0])
    let files = GroupFiles(version: version, directory: own.file("purgeable-test-\(getpid())"))
    var error = files.make()
    guard error == 0 else { return (nil, "\(files.directory) cannot be made: \(SystemError.text(error))") }
    if let limitBytes { error = files.setLimit(limitBytes, allowsSwap: true) }
    if error == 0 { error = files.enter() }
    guard error == 0 else {
      _ = files.remove()
      return (nil, "\(files.directory) cannot be limited or entered: \(SystemError.text(error))")
    }
    return (TestGroup(files: files, own: own), "")
  }

  func setLimit(_ bytes: UInt64) -> Bool { files.setLimit(bytes, allowsSwap: true) == 0 }

  /// Goes back to the old group. The children have to have ended.
  func leave() {
    _ = own.enter()
    _ = files.remove()
  }
}

/// Cancels the test where a group of that kind cannot be made, limited or entered, and says why.
func needGroup(_ version: MemoryGroup.Version, limitBytes: UInt64?) throws {
  let why = PossibleGroups.whyNot(version, limitBytes: limitBytes)
  if !why.isEmpty { try Test.cancel("\(why)") }
}

/// What groups this machine allows, each kind asked once. A child enters the group: this process, which all tests share, would
/// have its memory charged and reclaimed there.
private enum PossibleGroups {
  private struct Kind: Hashable {
    var version: MemoryGroup.Version
    var limitBytes: UInt64?
  }

  private static let known = Mutex<[Kind: String]>([:])

  static func whyNot(_ version: MemoryGroup.Version, limitBytes: UInt64?) -> String {
    known.withLock { known in
      let kind = Kind(version: version, limitBytes: limitBytes)
      if let why = known[kind] { return why }
      let why = tryOut(kind)
      known[kind] = why
      return why
    }
  }

  /// Empty where all went well.
  private static func tryOut(_ kind: Kind) -> String {
    let found = kind.version == .v1 ? MemoryGroup.current() : MemoryGroup.currentUnified()
    guard let found, found.version == kind.version, found.isOwnDirectory else {
      return "no own group of \(kind.version) is visible"
    }
    let directory = MemoryGroup.join(found.directories[0], "purgeable-possible-\(getpid())")
    let files = GroupFiles(version: kind.version, directory: directory)
    var error = files.make()
    guard error == 0 else { return "\(directory) cannot be made: \(SystemError.text(error))" }
    defer { _ = files.remove() }
    if let limitBytes = kind.limitBytes { error = files.setLimit(limitBytes, allowsSwap: true) }
    guard error == 0 else { return "\(directory) cannot be limited: \(SystemError.text(error))" }
    guard let child = try? ChildProcess.run("/bin/sh", ["-c", "echo 0 >\"$0\"", files.processes]), child.status == 0 else {
      return "\(directory) cannot be entered"
    }
    return ""
  }
}

/// Fills memory, offers it and fills more, so that the kernel has to take what is on offer, again and again, until it is told
/// that this is enough. For a forked child.
func churn(megabytes: Int, seconds: Int, until enough: OwnedDescriptor) {
  let count = megabytes << 20
  let end = MonotonicTime.now + UInt64(seconds) * 1_000_000_000
  // Two mappings in turn: while one is filled the other is on offer.
  let places = unsafe (0..<2).map { _ in
    unsafe mmap(nil, count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)!
  }
  var number = 0
  repeat {
    let place = unsafe places[number % 2]
    // Safe: both are mapped for as long as the child lives, which ends right after this.
    unsafe memset(place, 1, count)
    unsafe madvise(place, count, 8)
    number += 1
  } while MonotonicTime.now < end && enough.drain() == 0
}
