// SPDX-License-Identifier: MIT
// Caches that load. A load itself needs memory, as its documentation says; a value that is found must not need more than without.

import Purgeable

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
]
