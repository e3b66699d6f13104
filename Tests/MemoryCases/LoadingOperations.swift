// SPDX-License-Identifier: MIT
// Caches that load. A load itself needs memory, as its documentation says; a value that is found must not need more than without.

import Glibc
import Purgeable
import Synchronization

/// Loads on a thread of its own, for as long as the process lives: `load` is given what the load itself has to call.
private func loadForEver(_ load: @escaping @Sendable (_ waits: () -> [UInt8]) -> Void) {
  final class Loading: Sendable {
    let load: @Sendable (() -> [UInt8]) -> Void
    let hasBegun = Atomic<Bool>(false)
    init(_ load: @escaping @Sendable (() -> [UInt8]) -> Void) { self.load = load }
  }
  let loading = Loading(load)
  var thread = pthread_t()
  let status = unsafe pthread_create(
    &thread, nil,
    { context in
      // Safe: retained below for this one release.
      let loading = unsafe Unmanaged<Loading>.fromOpaque(context!).takeRetainedValue()
      loading.load {
        loading.hasBegun.store(true, ordering: .releasing)
        while true { pause() }
      }
      return nil
    }, Unmanaged.passRetained(loading).toOpaque())
  if status != 0 { fail("pthread_create: \(status)") }
  while !loading.hasBegun.load(ordering: .acquiring) { usleep(100) }
}

let loadingOperations: [Operation] = [
  Operation("cache: value with a load, found", takes: .result, floor: valueFloor) {
    let cache = filled(try IntCache())
    return { cache.value(forKey: 5) { bytes(1) }.count == 100 }
  },
  Operation("objects: value with a load, found") {
    let cache = try ObjectCache<Int, [UInt8]>()
    let value = bytes(100)
    for number in 0..<1000 { cache[number] = value }
    return { cache.value(forKey: 5) { bytes(1) }.count == 100 }
  },
  // A store, or a removal, asks whether its key is being loaded.
  Operation("cache: stores and removals while keys are loaded") {
    let cache = filled(try IntCache())
    let value = bytes(100)
    for key in [-1, -2] { loadForEver { waits in _ = cache.value(forKey: key) { waits() } } }
    return {
      for key in -1..<300 { cache.setValue(value, forKey: key) }
      cache.remove(forKey: -2)
      return cache.containsValue(forKey: -1)
    }
  },
  Operation("objects: stores and removals while keys are loaded") {
    let cache = try ObjectCache<Int, [UInt8]>()
    let value = bytes(100)
    for key in [-1, -2] { loadForEver { waits in _ = cache.value(forKey: key) { waits() } } }
    for number in -1..<1000 { cache[number] = value }
    return {
      for number in -1..<1000 { cache[number] = value }
      cache.remove(forKey: -2)
      return cache.containsValue(forKey: -1)
    }
  },
  // A store ends what is remembered of its key, a reaction all of it.
  Operation("cache: stores, removals, look-ups and a trim while absent keys are remembered") {
    let cache = filled(try IntCache())
    let value = bytes(100)
    for key in 1...300 { _ = cache.value(forKey: -key, keepingNilFor: .seconds(10_000)) { () -> [UInt8]? in nil } }
    return {
      guard case .miss(.absent) = cache.lookUpValue(forKey: -300) else { return false }
      for key in -200..<300 { cache.setValue(value, forKey: key) }
      cache.remove(forKey: -2)
      cache.trim(level: .warning)
      guard case .miss(.unknown) = cache.lookUpValue(forKey: -300) else { return false }
      return true
    }
  },
]
