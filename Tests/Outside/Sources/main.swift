// SPDX-License-Identifier: MIT
// Uses the library as a stranger would, from another package, and ends with its own count.

import CPurgeable
import Glibc
import Purgeable
import ThreadStorage

var passed = 0
var failed = 0

@MainActor func expect(_ isTrue: Bool, _ what: String) {
  if isTrue {
    passed += 1
  } else {
    failed += 1
    print("FAILED  \(what)")
  }
}

// MARK: What this machine does

let support = try KernelSupport.probe()
print("this kernel: \(support.behavior), pages of \(support.pageByteCount) bytes")

// MARK: Regions

@MainActor func useRegion() throws {
  var region = try PurgeableRegion(byteCount: 100_000)
  let written: Void? = region.withMutableBytes { bytes in
    for index in 0..<bytes.byteCount { bytes.storeBytes(of: UInt8(index % 251 + 1), toByteOffset: index, as: UInt8.self) }
  }
  expect(written != nil, "a fresh region can be written to")
  expect(region.byteCount == 100_000, "the length is what was asked for")
  if support.behavior == .works {
    let offered = try PurgeableRegion.offerPending()
    expect(offered >= 100_000, "what was unlocked waits for an offer")
    expect(region.offeredBytes >= 100_000, "it is on offer")
  }
  let last = region.withBytes { Array(copying: $0)[99_999] }
  expect(
    last == UInt8(99_999 % 251 + 1) || (last == nil && region.isDiscarded), "a locked byte is right, or the loss is reported")
  try region.discard()
  expect(region.isDiscarded, "a region that was discarded says so")
  expect(region.withBytes { _ in } == nil, "nobody reads a discarded region")
  try region.refill { bytes in bytes.storeBytes(of: 7, toByteOffset: 0, as: UInt8.self) }
  expect(region.withBytes { Array(copying: $0)[0] } == 7, "refilled content is there")
}

// MARK: Data

@MainActor func useData() throws {
  let data = try PurgeableData([1, 2, 3], name: "three") { [4, 5, 6, 7] }
  expect(data.accessCount == 1, "born with an access count of 1")
  try data.append(contentsOf: [9])
  expect(data.count == 4, "appending works while there is access")
  data.discardContentIfPossible()
  expect(!data.isContentDiscarded, "content in use is not discarded")
  data.endContentAccess()
  data.discardContentIfPossible()
  expect(data.isContentDiscarded, "idle content is")
  expect(data.withBytes { Array(copying: $0) } == [4, 5, 6, 7], "and it is made again")
}

// MARK: The heap

@MainActor func useHeap() throws {
  let heap = try PurgeableHeap()
  let references = try (0..<1000).map { try heap.store(Array("element \($0)".utf8)) }
  for (index, reference) in references.enumerated() {
    expect(try heap.bytes(of: reference) == Array("element \(index)".utf8), "element \(index)")
  }
  try heap.free(references[0])
  do {
    _ = try heap.bytes(of: references[0])
    expect(false, "a freed element cannot be read")
  } catch {
    expect(error.kind == .staleReference, "a freed element cannot be read")
  }
  expect(try heap.statistics().elementCount == 999, "the rest lives")
}

// MARK: The C core, from Swift

@MainActor func useCore() {
  var region: OpaquePointer?
  // Made here, destroyed below, used by nobody else.
  let error = unsafe purgeable_region_create(4096, nil, &region)
  expect(error == 0, "C: create")
  expect(unsafe purgeable_region_lock_count(region) == 1, "C: born locked")
  expect(unsafe purgeable_region_unlock(region) == 0, "C: unlock")
  expect(unsafe purgeable_region_unlock(region) == EPERM, "C: one unlock too many changes nothing")
  expect(unsafe purgeable_region_destroy(region) == 0, "C: destroy")
}

// MARK: The library's thread, in a program with much thread-local storage

@MainActor func useThread() throws {
  unsafe thread_storage().pointee = 1
  let cache = try PurgeableCache<Int, [UInt8]>()
  for key in 0..<1000 { cache[key] = [UInt8](repeating: 1, count: 100) }
  var looks = 0
  while PurgeableMemory.pressureStatistics.wakeUpCount == 0, looks < 600 {
    usleep(100_000)
    looks += 1
  }
  expect(PurgeableMemory.pressureStatistics.wakeUpCount > 0, "the library's thread runs, however much storage each thread has")
  expect(cache.count == 1000, "the entries stay")
}

try useRegion()
try useData()
try useHeap()
useCore()
try useThread()
print("\(passed) passed, \(failed) failed")
exit(failed == 0 ? 0 : 1)
