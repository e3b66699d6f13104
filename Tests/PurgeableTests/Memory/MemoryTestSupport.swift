// SPDX-License-Identifier: MIT
// Shared by the tests of the memory types: content, real discards, real threads, real forks.

import Glibc
import Purgeable
import Synchronization
import Testing
import ToolSupport

// MARK: Content

/// Bytes that differ from place to place and from seed to seed, none of them zero.
func pattern(_ count: Int, seed: UInt8 = 1) -> [UInt8] {
  // Copied, not computed byte by byte, which takes debug builds far longer. It repeats every 255 bytes, and a seed begins
  // somewhere else in it: 31 times 181 is 1 modulo 255.
  let start = 181 * 7 * Int(seed) % 255
  return unsafe [UInt8](unsafeUninitializedCapacity: count) { buffer, made in
    made = count
    guard let bytes = buffer.baseAddress else { return }
    let first = min(255, count)
    unsafe twoPeriods.withUnsafeBufferPointer { unsafe bytes.update(from: $0.baseAddress! + start, count: first) }
    var filled = first
    while filled < count {
      let more = min(filled, count - filled)
      unsafe (bytes + filled).update(from: bytes, count: more)
      filled += more
    }
  }
}

/// As the standard library's `==`, which debug builds run byte by byte, and which takes them a hundred times as long.
/// Comparisons of bytes choose these functions by themselves, also those of `#expect`.
func == (left: [UInt8], right: [UInt8]) -> Bool {
  guard left.count == right.count, !left.isEmpty else { return left.count == right.count }
  return unsafe left.withUnsafeBytes { left in
    // Safe: both are valid for the length of the comparison, and have the same length.
    unsafe right.withUnsafeBytes { unsafe memcmp(left.baseAddress!, $0.baseAddress!, left.count) == 0 }
  }
}

func == (left: [UInt8]?, right: [UInt8]?) -> Bool {
  guard let left, let right else {
    // Not by `==`, which would be this one.
    if case (.none, .none) = (left, right) { return true }
    return false
  }
  return left == right
}

func != (left: [UInt8], right: [UInt8]) -> Bool { !(left == right) }
func != (left: [UInt8]?, right: [UInt8]?) -> Bool { !(left == right) }

private let twoPeriods: [UInt8] = (0..<510).map { UInt8($0 * 31 % 255 + 1) }

let pageSize = Int(sysconf(Int32(_SC_PAGESIZE)))

extension RawSpan {
  var array: [UInt8] { [UInt8](copying: self) }
}

extension MutableRawSpan {
  mutating func write(_ bytes: [UInt8], at offset: Int = 0) {
    for (index, byte) in bytes.enumerated() { storeBytes(of: byte, toByteOffset: offset + index, as: UInt8.self) }
  }
}

extension PurgeableRegion {
  func array() -> [UInt8]? { withBytes { $0.array } }
}

extension PurgeableData {
  func array() -> [UInt8]? { withBytes { $0.array } }
}

// MARK: Discards

/// The pages of some bytes. Kept only to tell the kernel about them; never read or written through.
struct PageRange: Sendable {
  let start: UInt
  let byteCount: Int

  init(of span: RawSpan) {
    (start, byteCount) = unsafe span.withUnsafeBytes { (UInt(bitPattern: $0.baseAddress), $0.count) }
  }

  /// Calls madvise for the pages from `page` on.
  @discardableResult
  func advise(_ advice: Int32, page: Int = 0, pageCount: Int? = nil) -> Bool {
    let first = start & ~UInt(pageSize - 1)
    let last = (start + UInt(byteCount) + UInt(pageSize - 1)) & ~UInt(pageSize - 1)
    let length = pageCount.map { $0 * pageSize } ?? Int(last - first) - page * pageSize
    // Safe for the tests' purposes: the pages are mapped for as long as the region, heap or data under test lives.
    return unsafe madvise(UnsafeMutableRawPointer(bitPattern: first + UInt(page * pageSize)), length, advice) == 0
  }
}

let adviceDontneed: Int32 = 4
let advicePageout: Int32 = 21

/// Ends the test as skipped where the kernel cannot be made to discard by MADV_PAGEOUT.
func needRealDiscards() throws {
  let support = try KernelSupport.probe()
  guard support.behavior == .works, support.isConfirmed else {
    try Test.cancel("this kernel does not discard on MADV_PAGEOUT: \(support.behavior)")
  }
}

/// Has the kernel take what is on offer, until `isGone`. Repeated, because the kernel skips pages in a processor's batch.
/// `offerAgain` may find the content busy: the library's thread offers it too.
func waitForDiscard(of range: PageRange, isGone: () throws -> Bool, offerAgain: () throws -> Void) throws -> Bool {
  for _ in 0..<6000 {
    range.advise(advicePageout)
    if try isGone() { return true }
    drainBatches()
    do { try offerAgain() } catch let error as PurgeableError where error.kind == .busy {}
    usleep(1000)
  }
  return false
}

extension PurgeableRegion {
  /// Offers the region, again while the library's thread is at it.
  borrowing func offerBesideOthers() throws(PurgeableError) {
    for _ in 0..<60_000 {
      do throws(PurgeableError) { return try offer() } catch {
        guard error.kind == .busy else { throw error }
        usleep(1000)
      }
    }
    try offer()
  }
}

/// Has every processor put the pages in its batch on the kernel's lists: until then they can be neither offered nor taken. Any
/// madvise(MADV_FREE) does that for the processor it runs on, so it runs on each of them once. Swift does not import the function
/// that chooses the processor, so it is looked up by name.
func drainBatches() {
  typealias SetAffinity = @convention(c) (pid_t, Int, UnsafeRawPointer?) -> Int32
  // Safe: the C library's function has exactly this type.
  let setAffinity = unsafe unsafeBitCast(dlsym(nil, "sched_setaffinity"), to: SetAffinity.self)
  let thread = TestThread {
    let scratch = unsafe mmap(nil, pageSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    for processor in 0..<min(1024, sysconf(Int32(_SC_NPROCESSORS_CONF))) {
      var set = [UInt64](repeating: 0, count: 16)
      set[processor / 64] = 1 << (UInt64(processor) % 64)
      // Safe: the call reads as many bytes as it is told of. A processor that this process may not use is passed over.
      _ = unsafe set.withUnsafeBytes { bytes in unsafe setAffinity(0, bytes.count, bytes.baseAddress) }
      unsafe madvise(scratch, pageSize, 8)
    }
    unsafe munmap(scratch, pageSize)
  }
  thread.join()
}

// MARK: Threads

/// Runs the closure on so many real threads at once (task groups have missed races that threads showed), and waits for all.
func onThreads(_ count: Int, _ body: @escaping @Sendable (Int) -> Void) {
  let gate = Atomic<Int>(0)
  let start: @Sendable (Int) -> Void = { index in
    gate.add(1, ordering: .acquiringAndReleasing)
    while gate.load(ordering: .acquiring) < count { sched_yield() }
    body(index)
  }
  let threads = (0..<count).map { index in TestThread { start(index) } }
  for thread in threads { thread.join() }
}

final class TestThread: @unchecked Sendable {
  // Written once before any other thread knows of this, read once by `join`.
  private var thread = pthread_t()

  init(_ body: @escaping () -> Void) {
    final class Box {
      let body: () -> Void
      init(_ body: @escaping () -> Void) { self.body = body }
    }
    let box = unsafe Unmanaged.passRetained(Box(body)).toOpaque()
    let status = unsafe pthread_create(
      &thread, nil,
      { box in
        // Safe: retained above for exactly this one release.
        unsafe Unmanaged<Box>.fromOpaque(box!).takeRetainedValue().body()
        return nil
      }, box)
    precondition(status == 0, "pthread_create: \(status)")
  }

  func join() { pthread_join(thread, nil) }
}

// MARK: Forks

/// Forks; returns what the child says, which is whether all is well. Only for exit tests: their processes have no other threads
/// that hold a mutex.
///
/// The runtime makes the types it needs under locks of its own, which a fork may catch another thread in: a child that needs the
/// same type then waits for ever. So the types of the children's loops are made here first, and a child that hangs is ended after
/// `seconds`.
///
/// `meanwhile` runs here while the child runs, and has to return true too.
func childSays(seconds: Int = 300, _ isWell: () -> Bool, meanwhile: () -> Bool = { true }) -> Bool {
  for range in [0..<1] { for number in range { _ = [number: [UInt8](repeating: 0, count: number)] } }
  let child = fork()
  if child == 0 {
    endAfter(seconds: seconds)
    _exit(isWell() ? 0 : 1)
  }
  let holds = meanwhile()
  return child > 0 && endsWell(child, seconds: seconds) && holds
}

/// For a forked child of which the parent may have no time to wait: an alarm ends it.
func endAfter(seconds: Int) {
  // The threads of the concurrency runtime block the alarm signal.
  var signals = sigset_t()
  unsafe sigemptyset(&signals)
  unsafe sigaddset(&signals, SIGALRM)
  unsafe pthread_sigmask(SIG_UNBLOCK, &signals, nil)
  alarm(UInt32(seconds))
}

/// Waits until a child has ended, and says whether with 0. Ends it after `seconds`: an alarm of the child's own cannot, while the
/// child is still inside of fork.
func endsWell(_ child: pid_t, seconds: Int) -> Bool {
  for _ in 0..<seconds * 1000 {
    var end: Int32 = 0
    let ended = unsafe waitpid(child, &end, WNOHANG)
    if ended == child { return end == 0 }
    guard ended == 0 || errno == EINTR else { return false }
    usleep(1000)
  }
  kill(child, SIGKILL)
  _ = ChildEnd.of(child)
  return false
}

/// For exit tests: stops the process unless the condition holds, and reports the place, since the output of such a process is not
/// shown.
func require(_ condition: Bool, _ what: @autoclosure () -> String, at place: SourceLocation = #_sourceLocation) {
  guard !condition else { return }
  let text = what()
  Issue.record("\(text)", sourceLocation: place)
  fatalError("\(place): \(text)")
}
