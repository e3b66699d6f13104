// SPDX-License-Identifier: MIT
// Errors that stop the program, errors that are only reported, forks, and failing system calls: a process for each.

import CPurgeable.Testing
import Glibc
import Testing

@testable import Purgeable

@Suite("memory, in a process of its own")
struct PurgeableDataTrapTests {
  private static func says(_ result: ExitTest.Result?, _ part: String) -> Bool {
    text(result?.standardErrorContent).contains(part)
  }

  private static func text(_ bytes: [UInt8]?) -> String { String(decoding: bytes ?? [], as: UTF8.self) }

  private static func unused() -> PurgeableData {
    let data = try? PurgeableData([1, 2, 3], name: "page 7")
    data?.endContentAccess()
    guard let data else { exit(0) }
    return data
  }

  @Test("the length is out of reach without access, and the message names the object")
  func count() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { _ = Self.unused().count }
    #expect(Self.says(result, "PurgeableData 'page 7': count needs an access"))
  }

  @Test("appending stops without access")
  func append() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      try Self.unused().append(contentsOf: [4])
    }
    #expect(Self.says(result, "PurgeableData 'page 7': append needs an access"))
  }

  @Test("replacing, resizing, changing in place and asking for the room stop without access")
  func changes() async {
    await #expect(processExitsWith: .failure) { try Self.unused().replaceBytes(with: [4]) }
    await #expect(processExitsWith: .failure) { try Self.unused().resize(to: 1) }
    await #expect(processExitsWith: .failure) { try Self.unused().withMutableBytes { _ throws(PurgeableError) in } }
    await #expect(processExitsWith: .failure) { _ = Self.unused().capacity }
  }

  @Test("reading within a change of the same object stops, and so does changing")
  func overlapping() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let data = try PurgeableData([1], name: "page 8")
      try data.withMutableBytes { _ throws(PurgeableError) in _ = data.array() }
    }
    #expect(Self.says(result, "'page 8': withBytes within withMutableBytes"))
    let second = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let data = try PurgeableData([1], name: "page 8")
      try data.withMutableBytes { _ throws(PurgeableError) in try data.append(contentsOf: [1]) }
    }
    #expect(Self.says(second, "'page 8': append within withMutableBytes"))
  }

  @Test("an end too many is reported once, by name, in debug builds, and stops nothing")
  func report() async {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let data = Self.unused()
      data.endContentAccess()
      data.endContentAccess()
      exit(data.unbalancedEndCount == 2 && data.accessCount == 0 ? 0 : 1)
    }
    let lines = Self.text(result?.standardErrorContent).split(separator: "\n").filter { $0.contains("'page 7'") }
    #if DEBUG
      let report = "purgeable: PurgeableData 'page 7': endContentAccess without a beginContentAccess; the counter stays at 0"
      #expect(lines == [report[...]])
    #else
      #expect(lines.isEmpty)
    #endif
  }

  @Test("after a fork the child finds everything discarded, the parent nothing", .forks)
  func fork() async {
    await #expect(processExitsWith: .success) {
      let idle = try PurgeableData(pattern(10_000))
      let used = try PurgeableData(pattern(10_000)) { [8, 9] }
      let empty = try PurgeableData()
      var region = try PurgeableRegion(byteCount: 10_000) { span throws(PurgeableError) in span.write(pattern(10_000)) }
      let heap = try PurgeableHeap()
      let element = try heap.store(pattern(100))
      idle.endContentAccess()
      let isWell = used.withBytes { _ in
        childSays {
          require(idle.isContentDiscarded && used.isContentDiscarded && empty.isContentDiscarded, "all data is discarded")
          require(idle.accessCount == 0 && used.accessCount == 0 && empty.accessCount == 0, "nothing is in use")
          require(!idle.beginContentAccess() && !empty.beginContentAccess(), "no access to what is gone")
          require(used.array() == [8, 9], "recreated in the child")
          try? idle.refill(with: [5])
          require(idle.array() == [5] && idle.accessCount == 1, "refilled in the child")
          require(region.isDiscarded && region.array() == nil && region.lockCount == 0, "the region is discarded")
          try? region.refill { span throws(PurgeableError) in span.write([6]) }
          require(region.array()?.first == 6, "the region is refilled in the child")
          require((try? heap.bytes(of: element)) == nil, "elements are stale")
          require((try? heap.store([1])) != nil, "the heap is usable")
          return true
        }
      }
      require(isWell == true, "the child found what it should")
      require(idle.array() == pattern(10_000) && used.array() == pattern(10_000), "the parent keeps its content")
      require(region.array() == pattern(10_000), "the parent keeps its region")
      require(try heap.bytes(of: element) == pattern(100), "the parent keeps its elements")
      require(used.accessCount == 1, "the parent keeps its counts")
      exit(0)
    }
  }

  @Test("a child that comes back out of closures of its parent ends nothing that it did not begin", .forks)
  func forkWithinClosures() async {
    await #expect(processExitsWith: .success) {
      let data = try PurgeableData(pattern(100)) { [8, 9] }
      var isChild = false
      let isWell = data.withBytes { _ in
        childSays {
          isChild = true
          data.withBytes { inner in require(inner.array == [8, 9], "recreated") }
          return data.unbalancedEndCount == 0
        }
      }
      require(isWell == true && !isChild && data.accessCount == 1, "the parent is as it was")
      exit(0)
    }
  }

  @Test("without memory nothing is made and nothing is changed")
  func outOfMemory() async {
    await #expect(processExitsWith: .success) {
      let data = try PurgeableData(pattern(100)) { [UInt8](repeating: 7, count: 1 << 25) }
      let heap = try PurgeableHeap()
      purgeable_testing_fail(purgeable_testing_call_any.rawValue, 1, ENOMEM, true)
      func kind(_ body: () throws(PurgeableError) -> Void) -> PurgeableError.Kind? {
        do throws(PurgeableError) { try body() } catch { return error.kind }
        return nil
      }
      require(kind { () throws(PurgeableError) in _ = try PurgeableRegion(byteCount: 1 << 25) } == .outOfMemory, "a region")
      require(kind { () throws(PurgeableError) in _ = try PurgeableHeap() } == .outOfMemory, "a heap")
      require(kind { () throws(PurgeableError) in _ = try heap.store([1]) } == .outOfMemory, "an element")
      require(kind { () throws(PurgeableError) in _ = try PurgeableData(byteCount: 1 << 25) } == .outOfMemory, "data")
      require(kind { () throws(PurgeableError) in try data.resize(to: 1 << 25) } == .outOfMemory, "growing")
      require(data.array() == pattern(100) && data.accessCount == 1, "nothing was changed")
      data.endContentAccess()
      purgeable_testing_fail(0, 0, 0, false)
      data.discardContentIfPossible()
      purgeable_testing_fail(purgeable_testing_call_any.rawValue, 1, ENOMEM, true)
      require(!data.beginContentAccess() && data.isContentDiscarded && data.accessCount == 0, "recreating")
      purgeable_testing_fail(0, 0, 0, false)
      require(data.beginContentAccess() && data.count == 1 << 25, "once there is memory again")
      exit(0)
    }
  }

  @Test("a discard that the kernel refuses leaves the content")
  func refusedDiscard() async {
    await #expect(processExitsWith: .success) {
      let data = try PurgeableData(pattern(100))
      let region = try PurgeableRegion(byteCount: 100) { span throws(PurgeableError) in span.write(pattern(100)) }
      data.endContentAccess()
      purgeable_testing_fail(purgeable_testing_call_madvise_dontneed.rawValue, 1, EIO, true)
      data.discardContentIfPossible()
      var kind: PurgeableError.Kind?
      do throws(PurgeableError) { try region.discard() } catch { kind = error.kind }
      purgeable_testing_fail(0, 0, 0, false)
      require(!data.isContentDiscarded && data.array() == pattern(100), "the data stays")
      require(kind == .systemCallFailed(call: "madvise") && region.array() == pattern(100), "the region stays")
      exit(0)
    }
  }
}
