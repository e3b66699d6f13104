// SPDX-License-Identifier: MIT
// A process that has no descriptor left, and one that closes descriptors that it did not open.

import Glibc
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable

@Suite("want of descriptors")
struct DescriptorTests {
  @Test("a descriptor is known again while none is left, also the one that was opened last; another's is not")
  func identity() async {
    await #expect(processExitsWith: .success) {
      let first = OwnedDescriptor.event()!
      let none = NoDescriptors(spare: 1)
      require(first.isOurs, "before the last one is taken")
      let last = OwnedDescriptor.event()!
      require(OwnedDescriptor.event() == nil && first.isOurs && last.isOurs, "without any")
      require(first.signal() && first.drain() == 1, "is used")
      none.end()
      require(first.isOurs && last.isOurs, "afterwards")
      let other = OwnedDescriptor.event()!
      require(dup2(other.number, first.number) == first.number && !first.isOurs && other.isOurs, "another eventfd")
      let file = unsafe open("/dev/null", O_RDONLY)
      require(dup2(file, last.number) == last.number && !last.isOurs, "a file")
    }
  }

  @Test("the library's thread goes on, loses none of its own, and hears as before when there are some again")
  func thread() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      let source = FakeSource()
      PurgeableMemory.pressureSource = source
      let cache = try PurgeableCache<Int, [UInt8]>()
      func isOffered(after key: Int) -> Bool {
        cache[key] = pattern(100_000)
        return patiently { !cache.engine.heap.hasPending && !WorkBell.isRung.load(ordering: .relaxed) }
      }
      require(isOffered(after: 0), "before")
      let event = Maintainer.shared.signal.descriptor
      let before = openDescriptors()
      for round in 1...4 {
        let none = NoDescriptors()
        require(isOffered(after: 2 * round), "without any")
        none.end()
        require(isOffered(after: 2 * round + 1), "with some again")
      }
      require(Maintainer.shared.signal.descriptor == event && event != nil, "the same eventfd")
      require(
        openDescriptors().filter { $0.value.contains("eventfd") } == before.filter { $0.value.contains("eventfd") }, "no more")
      require(libraryThreadCount() == 1, "\(libraryThreadCount()) threads")
      source.set(.warning)
      require(patiently { PurgeableMemory.pressureLevel == .warning }, "hears")
    }
  }

  @Test("limits by a share of the memory, and our group, stay what they were while nothing can be read")
  func share() async {
    await #expect(processExitsWith: .success) {
      keepLibraryThreadAway()
      let (cache, objects) = (try PurgeableCache<Int, [UInt8]>(memoryShare: 0.5), try ObjectCache<Int, Int>(memoryShare: 0.5))
      for key in 0..<100 {
        cache[key] = pattern(1000)
        objects[key] = key
      }
      let (limit, ofObjects) = (cache.statistics.limitInForce, objects.statistics.limitInForce)
      let group = ProcessMemory.group
      let none = NoDescriptors()
      for _ in 0..<3 { _ = (cache.engine.upkeepRound(), objects.store.upkeepRound()) }
      let (inWant, groupInWant) = (ProcessMemory.limit(), ProcessMemory.group)
      none.end()
      require(cache.statistics.limitInForce == limit && objects.statistics.limitInForce == ofObjects, "\(cache.statistics)")
      require(cache.count == 100 && objects.count == 100 && inWant == ProcessMemory.limit(), "\(inWant)")
      require(group == groupInWant && group == ProcessMemory.group, "\(groupInWant as Any)")
    }
  }

  @Test("a source of the system's closes what it has open when it ends, whoever had it")
  func dropped() async throws {
    try Self.needDescriptors()
    await #expect(processExitsWith: .success) {
      var source: SystemPressureSource? = SystemPressureSource()
      func opened() -> [OwnedDescriptor] { source!.descriptors.compactMap { OwnedDescriptor($0.descriptor) } }
      let first = opened()
      require(!first.isEmpty && first.allSatisfy(\.isOurs), "open")
      source = nil
      require(!first.contains(where: \.isOurs), "\(first.filter(\.isOurs))")
      source = SystemPressureSource()
      let second = opened()
      do {
        let monitor = PressureMonitor(source: source)
        source = nil
        require(patiently { monitor.statistics.sourceName != "" } && second.allSatisfy(\.isOurs), "asked")
      }
      require(patiently { !hasLibraryThread() && !second.contains(where: \.isOurs) }, "\(second.filter(\.isOurs))")
    }
  }

  private static func needDescriptors() throws {
    let probe = SystemPressureSource()
    if probe.descriptors.isEmpty { try Test.cancel("nothing tells of pressure by a descriptor here: \(probe.name)") }
  }

  @Test("what the program has put in the place of a source's descriptors is given up, and opened anew", arguments: [false, true])
  func replaced(isTold: Bool) async throws {
    try Self.needDescriptors()
    await #expect(processExitsWith: .success) { [isTold] in
      let clock = SetClock()
      let source = SystemPressureSource(root: "/", clock: clock.monotonic)
      let numbers = source.descriptors.map(\.descriptor)
      // Never ready.
      let file = unsafe open("/dev/null", O_RDONLY)
      for number in numbers { require(dup2(file, number) == number, "dup2") }
      _ = source.level(ready: [])
      require(source.descriptors.map(\.descriptor) == numbers, "is not looked at each time")
      if isTold { source.doubt() } else { clock.advance(seconds: 6) }
      _ = source.level(ready: [])
      let open = openDescriptors()
      require(source.descriptors.count == numbers.count, "all are there")
      require(source.descriptors.allSatisfy { open[$0.descriptor] != "/dev/null" }, "\(open)")
      require(numbers.allSatisfy { open[$0] == "/dev/null" }, "the program's stay")
    }
  }

  @Test("a thread that can poll no more sleeps all the same")
  func poll() async {
    await #expect(processExitsWith: .success) {
      let signal = WakeSignal()
      signal.prepare()
      var list = DescriptorList()
      for _ in 0..<4 { list.append(PressureDescriptor(descriptor: OwnedDescriptor.event()!.number, events: Int16(POLLIN))) }
      // The kernel polls no more descriptors than may be open.
      withoutDescriptors {
        let begin = MonotonicTime.now
        require(signal.wait(signal.sleeper, for: 200_000_000, list)?.isEmpty == true, "nothing is ready")
        require(MonotonicTime.now - begin >= 190_000_000, "it slept")
        require(signal.wake() && signal.wait(signal.sleeper, for: 600_000_000_000, list)?.isEmpty == true, "and can be woken")
      }
    }
  }
}
