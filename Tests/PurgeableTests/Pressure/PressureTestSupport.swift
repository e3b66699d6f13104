// SPDX-License-Identifier: MIT
// What the tests of pressure share: a source that says what it is told to, patience, a memory group.

import Glibc
import Synchronization

@testable import Purgeable

/// Says what it is told to say, by an eventfd or when it is asked.
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

  /// Says so from now on; an event, if it has events.
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

/// Waits until it holds; whether it did before patience ran out.
func patiently(seconds: Int = 120, _ holds: () -> Bool) -> Bool {
  for _ in 0..<seconds * 100 {
    if holds() { return true }
    usleep(10_000)
  }
  return holds()
}

/// The open descriptors of this process, and where they lead. Without timers: the concurrency runtime opens one at some time, the
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

/// Whether the library's thread is there.
func hasLibraryThread() -> Bool {
  guard let directory = unsafe opendir("/proc/self/task") else { return false }
  defer { unsafe closedir(directory) }
  while let entry = unsafe readdir(directory) {
    let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) { name in
      // Safe: the kernel ends the name with a zero.
      unsafe name.withMemoryRebound(to: CChar.self, capacity: 256) { unsafe String(cString: $0) }
    }
    if SmallFile.text("/proc/self/task/\(name)/comm") == "purgeable\n" { return true }
  }
  return false
}

/// A memory group with a limit, inside of this process's own; this process is in it until `leave`. For exit tests.
struct TestGroup {
  let directory: String
  private let own: String

  /// nil, with the reason, where that is not allowed.
  static func make(version: MemoryGroup.Version, limitBytes: UInt64?) -> (TestGroup?, String) {
    let found = version == .v1 ? MemoryGroup.current() : MemoryGroup.currentUnified()
    guard let found, found.version == version, found.isOwnDirectory else { return (nil, "no own group of \(version) is visible") }
    let group = TestGroup(directory: found.directories[0] + "/purgeable-test-\(getpid())", own: found.directories[0])
    guard unsafe mkdir(group.directory, 0o755) == 0 else { return (nil, "mkdir in \(group.own): errno \(errno)") }
    if let limitBytes {
      let file = version == .v1 ? "memory.limit_in_bytes" : "memory.max"
      guard write("\(limitBytes)", group.directory + "/" + file) else {
        unsafe rmdir(group.directory)
        return (nil, "\(file) of a group in \(group.own) cannot be written")
      }
    }
    guard write("0", group.directory + "/cgroup.procs") else {
      unsafe rmdir(group.directory)
      return (nil, "this process may not enter \(group.directory)")
    }
    return (group, "")
  }

  /// Back to where we were; the children have to be gone.
  func leave() {
    _ = Self.write("0", own + "/cgroup.procs")
    _ = patiently(seconds: 5) { unsafe rmdir(directory) == 0 }
  }

  private static func write(_ text: String, _ path: String) -> Bool {
    guard let file = OwnedDescriptor.open(path, O_WRONLY) else { return false }
    defer { file.close() }
    return file.write(text)
  }
}

/// Fills memory, offers it, fills more: so that the kernel has to take what is on offer, again and again. For a forked child.
func churn(megabytes: Int, seconds: Int) {
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
  } while MonotonicTime.now < end
}
