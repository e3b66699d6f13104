// SPDX-License-Identifier: MIT
// Work of the library's thread; and all operations but the cache's.

import Glibc
import Purgeable
import Synchronization
import ToolSupport

let memoryOperations: [Operation] =
  regionOperations + heapOperations + dataOperations + pressureOperations + threadOperations + departureThreadOperations
  + tellingOperations

/// A source whose level the test sets, with events.
final class ToldSource: PressureSource {
  let name = "told"
  let descriptors: [PressureDescriptor]
  private let number: Int32
  private let raw = Atomic<Int32>(0)

  init() {
    var ends: (Int32, Int32) = (0, 0)
    // A pipe's two ends, as the call wants them: beside each other.
    unsafe withUnsafeMutableBytes(of: &ends) { _ = unsafe pipe($0.assumingMemoryBound(to: Int32.self).baseAddress!) }
    _ = fcntl(ends.0, F_SETFL, O_NONBLOCK)
    descriptors = [PressureDescriptor(descriptor: ends.0, events: Int16(POLLIN))]
    number = ends.1
  }

  func set(_ level: PressureLevel) {
    raw.store(level.rawValue, ordering: .releasing)
    var byte: UInt8 = 1
    _ = unsafe write(number, &byte, 1)
  }

  func level(ready: [PressureDescriptor]) -> PressureLevel {
    var bytes: UInt64 = 0
    _ = unsafe read(descriptors[0].descriptor, &bytes, 8)
    return PressureLevel(rawValue: raw.load(ordering: .acquiring)) ?? .normal
  }
}

private let threadOperations: [Operation] = [
  Operation("the library's thread: rounds of offers", watchesLibrary: true) {
    let cache = filled(try IntCache())
    let value = bytes(100)
    return {
      for key in 0..<500 { cache.setValue(value, forKey: key) }
      usleep(1_500_000)
      return true
    }
  },
  Operation("the library's thread: listening, every step of a reaction", takes: .result, watchesLibrary: true, floor: listenFloor)
  {
    let cache = filled(try IntCache(memoryShare: 0.9), 12_000)
    let source = ToldSource()
    PurgeableMemory.pressureSource = source
    return {
      for key in 0..<3000 { cache.setValue([1, 2, 3], forKey: key) }
      usleep(500_000)
      let before = PurgeableMemory.pressureStatistics.reactionCount
      source.set(.critical)
      let reacted = patiently(seconds: 10) { PurgeableMemory.pressureStatistics.reactionCount > before }
      source.set(.normal)
      return reacted
    }
  },
]
