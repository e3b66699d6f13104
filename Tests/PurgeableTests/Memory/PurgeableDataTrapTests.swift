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

  /// What needs an access that somebody has begun, by the name that messages give it.
  enum Need: String, CaseIterable, Codable {
    case count, capacity, append, appendContents, replaceBytes, replaceBytesAt, replaceBytesIn, resize, withMutableBytes

    var operation: String {
      switch self {
      case .appendContents: "append"
      case .replaceBytesAt, .replaceBytesIn: "replaceBytes"
      default: rawValue
      }
    }

    func call(_ data: PurgeableData) throws {
      switch self {
      case .count: _ = data.count
      case .capacity: _ = data.capacity
      case .append: try unsafe data.append([UInt8(4)].span.bytes)
      case .appendContents: try data.append(contentsOf: [4])
      case .replaceBytes: try data.replaceBytes(with: [4])
      case .replaceBytesAt: try unsafe data.replaceBytes(at: 0, with: [UInt8(4)].span.bytes)
      case .replaceBytesIn: try data.replaceBytes(in: 0..<1, with: [])
      case .resize: try data.resize(to: 1)
      case .withMutableBytes: try data.withMutableBytes { _ throws(PurgeableError) in }
      }
    }
  }

  @Test(
    "without access, length, room and every change stop with the same message, which names the object, discarded or not",
    arguments: Need.allCases, [false, true])
  func withoutAccess(need: Need, isDiscarded: Bool) async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) { [need, isDiscarded] in
      let data = Self.unused()
      if isDiscarded { data.discardContentIfPossible() }
      try need.call(data)
    }
    let message = "needs an access that is begun: call beginContentAccess() first, and heed its answer"
    #expect(Self.says(result, "PurgeableData 'page 7': \(need.operation) \(message)"))
  }

  @Test("a cast that gets past the compiler does not make a key: hashing stops, and the message gives the reason")
  func hashing() async {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let key: Any = Self.unused()
      var keys: Set<AnyHashable> = []
      if let key = key as? AnyHashable { keys.insert(key) }
      exit(0)
    }
    #expect(Self.says(result, "PurgeableData 'page 7': hashed as a key, but its content changes and may be discarded"))
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
    let third = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      let (data, other) = (try PurgeableData([1], name: "page 8"), try PurgeableData([1]))
      try data.withMutableBytes { _ throws(PurgeableError) in _ = other == data }
    }
    #expect(Self.says(third, "'page 8': withBytes within withMutableBytes"))
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
      let large = try PurgeableData(byteCount: 1 << 25)
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
      let more = [UInt8](repeating: 1, count: 1 << 20)
      require(kind { () throws(PurgeableError) in try large.replaceBytes(in: 3..<5, with: more) } == .outOfMemory, "more")
      require(kind { () throws(PurgeableError) in _ = try large.copy() } == .outOfMemory, "a copy")
      require(large.accessCount == 1 && large.array()?.count == 1 << 25, "the original of a copy")
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
