// SPDX-License-Identifier: MIT
// Sources and the kernel of this machine: a group with a limit, and a child that needs more than there is.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("pressure: the real kernel", .serialized, .fullRun)
struct RealPressureTests {
  /// The limit of the test's group, in bytes.
  private static let limit: UInt64 = 96 << 20
  private static let smallLimit: UInt64 = 48 << 20

  /// Whether the condition comes to hold while a child keeps the kernel busy, which ends then.
  private static func comesUnderPressure(_ holds: () -> Bool) -> Bool {
    let enough = OwnedDescriptor.event()!
    return childSays {
      churn(megabytes: 64, seconds: 50, until: enough)
      return true
    } meanwhile: {
      let comes = patiently(seconds: 50, holds)
      enough.signal()
      return comes
    }
  }

  /// Waits for an event of a source under pressure. Returns whether there was one.
  private static func fires(_ source: any PressureSource) -> Bool {
    let descriptors = source.descriptors
    require(!descriptors.isEmpty, "something to wait for")
    return comesUnderPressure {
      var records = descriptors.map { pollfd(fd: $0.descriptor, events: $0.events, revents: 0) }
      // Safe: the array is used by no other code while its buffer is lent.
      _ = unsafe records.withUnsafeMutableBufferPointer { unsafe poll($0.baseAddress, nfds_t($0.count), 0) }
      let ready = records.filter { $0.revents != 0 }.map { PressureDescriptor(descriptor: $0.fd, events: $0.revents) }
      return !ready.isEmpty && source.level(ready: ready) >= .warning
    }
  }

  @Test("version 1: reclaim at the group's limit is told", .forks)
  func reclaim() async throws {
    try needGroup(.v1, limitBytes: Self.limit)
    await #expect(processExitsWith: .success) {
      let (group, reason) = TestGroup.make(version: .v1, limitBytes: Self.limit)
      guard let group else { fatalError(reason) }
      let source = ReclaimSource(group: MemoryGroup.current()!)
      let fired = source.map { Self.fires($0) }
      source?.close()
      group.leave()
      require(fired ?? true, "an event that limit and usage confirm")
    }
  }

  @Test("version 2: meeting the group's limit is told", .forks)
  func groupEvents() async throws {
    try needGroup(.v2, limitBytes: Self.limit)
    await #expect(processExitsWith: .success) {
      let (group, reason) = TestGroup.make(version: .v2, limitBytes: Self.limit)
      guard let group else { fatalError(reason) }
      let source = GroupEventsSource(group: MemoryGroup.current()!)
      let fired = source.map { Self.fires($0) }
      source?.close()
      group.leave()
      require(fired ?? false, "an event")
    }
  }

  @Test("stalls of the group are told, whichever version's limit is the cause", .forks)
  func stalls() async throws {
    try needGroup(.v2, limitBytes: nil)
    guard let unified = MemoryGroup.currentUnified(),
      let probe = StallSource(file: "/proc/pressure/memory", scope: .machine)
    else { try Test.cancel("no stalls (PSI) are told here") }
    probe.close()
    let limitsByVersion1 = MemoryGroup.current()?.version == .v1
    try needGroup(limitsByVersion1 ? .v1 : .v2, limitBytes: Self.limit)
    guard unsafe access(unified.directories[0] + "/memory.pressure", F_OK) == 0 else { try Test.cancel("no memory.pressure") }
    await #expect(processExitsWith: .success) {
      let isVersion1 = MemoryGroup.current()?.version == .v1
      let (limited, reason) = isVersion1 ? TestGroup.make(version: .v1, limitBytes: Self.limit) : (nil, "")
      let (group, why) = TestGroup.make(version: .v2, limitBytes: isVersion1 ? nil : Self.limit)
      guard let group else { fatalError(reason + why) }
      let source = StallSource(file: group.directory + "/memory.pressure", scope: .ownGroup)
      let names = SystemPressureSource()
      require(names.partNames.contains("stalls of the group (PSI)"), "the best has it: \(names.name)")
      names.close()
      let fired = source.map { Self.fires($0) }
      source?.close()
      group.leave()
      limited?.leave()
      require(fired ?? false, "a stall")
    }
  }

  @Test("a monitor and a cache in a group at its limit: pressure is heard of, told, and ends", .forks)
  func whole() async throws {
    try needGroup(MemoryGroup.current()?.version ?? .v1, limitBytes: Self.limit)
    await #expect(processExitsWith: .success) {
      let (group, reason) = TestGroup.make(version: MemoryGroup.current()!.version, limitBytes: Self.limit)
      guard let group else { fatalError(reason) }
      hearThisMachine()
      let cache = try PressureThreadTests.filled()
      let monitor = PressureMonitor()
      let heard = Self.comesUnderPressure {
        monitor.level >= .warning && PurgeableMemory.pressureStatistics.reactionCount > 0
      }
      let ended = patiently { monitor.level == .normal }
      let numbers = PurgeableMemory.pressureStatistics
      group.leave()
      require(heard, "heard of: \(numbers)")
      require(ended, "ended: \(numbers)")
      require(cache.count >= 0, "alive")
    }
  }

  @Test("in a small group, threads' stores of all lengths are never refused for want of memory, however small the share")
  func storesInSmallGroup() async throws {
    try needGroup(MemoryGroup.current()?.version ?? .v1, limitBytes: Self.smallLimit)
    await #expect(processExitsWith: .success) {
      let (group, reason) = TestGroup.make(version: MemoryGroup.current()!.version, limitBytes: Self.smallLimit)
      guard let group else { fatalError(reason) }
      hearThisMachine()
      for share in [0.005, 0.02, 0.1, 1] {
        let cache = try PurgeableCache<Int, [UInt8]>(memoryShare: share)
        let outcomes = Mutex<[StoreOutcome: Int]>([:])
        let wrongCount = Atomic<Int>(0)
        onThreads(3) { thread in
          var random = SplitMix64(seed: TestRun.seed + UInt64(thread))
          var own: [StoreOutcome: Int] = [:]
          for _ in 0..<6000 {
            let key = Int(random.next() % 5000)
            let byteCount = random.next() % 50 == 0 ? 327 << 10 : 16 + Int(random.next() % 4000)
            own[cache.setValue([UInt8](repeating: UInt8(key % 251), count: byteCount), forKey: key), default: 0] += 1
            let asked = Int(random.next() % 5000)
            if let value = cache.value(forKey: asked), value.first != UInt8(asked % 251) || value.last != value.first {
              wrongCount.add(1, ordering: .relaxed)
            }
          }
          outcomes.withLock { $0.merge(own, uniquingKeysWith: +) }
        }
        let told = outcomes.withLock { $0 }
        require(told[.outOfMemory] == nil && wrongCount.load(ordering: .relaxed) == 0, "a share of \(share): \(told)")
        require(told[.stored, default: 0] > 0, "a share of \(share): \(told)")
      }
      group.leave()
    }
  }

  @Test("many caches that grow at once go on offer as they grow: in a small group nobody is killed", arguments: [false, true])
  func manyGrow(hasThread: Bool) async throws {
    try needGroup(MemoryGroup.current()?.version ?? .v1, limitBytes: Self.smallLimit)
    await #expect(processExitsWith: .success) { [hasThread] in
      let (group, reason) = TestGroup.make(version: MemoryGroup.current()!.version, limitBytes: Self.smallLimit)
      guard let group else { fatalError(reason) }
      if hasThread { hearThisMachine() } else { keepLibraryThreadAway() }
      let caches = try (0..<48).map { _ in try PurgeableCache<Int, [UInt8]>() }
      let value = [UInt8](repeating: 7, count: 1000)
      for key in 0..<3000 { for cache in caches { cache[key] = value } }
      require(caches.allSatisfy { !$0.isEmpty }, "\(caches)")
      group.leave()
    }
  }
}
