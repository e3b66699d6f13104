// SPDX-License-Identifier: MIT
// Operations of pressure: sources, monitors, the interface for C.

import CPurgeablePressure
import Glibc
import Purgeable
import Synchronization
import ToolSupport

private let wordsFloor = Floor(bytes: 4096, reason: "strings, arrays, sequences and tasks are the runtime's")

private let callbacks = Atomic<Int>(0)

let pressureOperations: [Operation] = [
  Operation("pressure: level, statistics") {
    return { PurgeableMemory.pressureLevel >= .normal && PurgeableMemory.pressureStatistics.reactionCount == 0 }
  },
  Operation("pressure: the system's source, asked") {
    let source = SystemPressureSource()
    return { source.level(ready: []) >= .normal }
  },
  Operation("pressure: the system's source, opened again and closed", takes: .result, floor: wordsFloor) {
    return {
      let source = SystemPressureSource()
      let count = source.descriptors.count
      source.reopen()
      _ = source.pollingInterval
      source.close()
      return count >= 0 && !source.name.isEmpty
    }
  },
  Operation("pressure: the program's source, set and asked", takes: .result, floor: listenFloor) {
    let source = ToldSource()
    return {
      PurgeableMemory.pressureSource = source
      let level = PurgeableMemory.pressureLevel
      PurgeableMemory.pressureSource = nil
      return level == .normal && PurgeableMemory.pressureSource == nil
    }
  },
  Operation("pressure: what the kernel does", takes: .result) {
    return { allowing { () throws(PurgeableError) in _ = try KernelSupport.probe() } }
  },
  Operation("pressure: the level for C") {
    return { purgeable_pressure_level() >= 0 }
  },
  Operation("pressure: a monitor's level") {
    let monitor = PressureMonitor()
    return { monitor.level >= .normal && monitor.statistics.wakeUpCount >= 0 }
  },
  Operation("pressure: a monitor made and ended", takes: .result, floor: wordsFloor) {
    return { PressureMonitor().level >= .normal }
  },
  Operation("pressure: a monitor's sequence, begun and ended", takes: .result, floor: wordsFloor) {
    let monitor = PressureMonitor()
    return {
      var iterator = Optional(monitor.levels.makeAsyncIterator())
      defer { iterator = nil }
      return iterator != nil
    }
  },
  Operation("pressure: watched from C", takes: .result) {
    return {
      var watch: OpaquePointer?
      let status = unsafe purgeable_pressure_watch({ level, _ in callbacks.add(1, ordering: .relaxed) }, nil, &watch)
      if status != 0, status != ENOMEM { fail("status \(status)") }
      if unsafe (status == 0) != (watch != nil) { fail("a watch and an error, or neither") }
      unsafe purgeable_pressure_unwatch(watch)
      return status == 0
    }
  },
]

let tellingOperations: [Operation] = [
  Operation("the library's thread: tells C and a sequence of levels", takes: .result, watchesLibrary: true, floor: listenFloor) {
    let source = ToldSource()
    PurgeableMemory.pressureSource = source
    var watch: OpaquePointer?
    let status = unsafe purgeable_pressure_watch({ level, _ in callbacks.add(1, ordering: .relaxed) }, nil, &watch)
    if status != 0 { fail("status \(status)") }
    let monitor = PressureMonitor(source: source)
    let heard = Heard()
    let levels = monitor.levels
    Task.detached {
      for await level in levels { heard.level.store(level.rawValue, ordering: .releasing) }
      _ = monitor
    }
    // The level rises at once, and would fall only in seconds: so the second run, in which memory is refused, goes to the highest
    // level.
    let rounds = Counter(1)
    return {
      let level = min(2, rounds.next())
      let before = callbacks.load(ordering: .relaxed)
      source.set(level == 1 ? .warning : .critical)
      return patiently(seconds: 1) {
        callbacks.load(ordering: .relaxed) > before && Int(heard.level.load(ordering: .acquiring)) >= level
      }
    }
  }
]

/// The last level that a task was told.
private final class Heard: Sendable {
  let level = Atomic<Int32>(-1)
}
