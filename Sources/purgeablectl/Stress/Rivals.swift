// SPDX-License-Identifier: MIT
// The rivals of the cache: a plain dictionary, and a least-recently-used list with a limit on the count.

/// A dictionary that keeps all it is given. For one thread.
///
/// `@unchecked Sendable`: its load has one thread, and the starter of that thread joins it.
final class DictionaryStore: StressStore, @unchecked Sendable {
  private var values: [UInt64: [UInt8]] = [:]

  func read(_ key: UInt64, into buffer: UnsafeMutableRawBufferPointer) -> Int? {
    guard let bytes = values[key] else { return nil }
    unsafe buffer.copyBytes(from: bytes)
    return bytes.count
  }

  func store(_ key: UInt64, _ bytes: UnsafeRawBufferPointer) -> Bool {
    unsafe values[key] = Array(bytes)
    return true
  }
}

/// The textbook list: a dictionary to the places of a doubly linked list, the newest first. For one thread.
///
/// `@unchecked Sendable`: its load has one thread, and the starter of that thread joins it.
final class LRUStore: StressStore, @unchecked Sendable {
  private struct Node {
    var key: UInt64
    var bytes: [UInt8]
    var newer: Int32
    var older: Int32
  }

  private let countLimit: Int
  private var places: [UInt64: Int32] = [:]
  private var nodes: [Node] = []
  private var newest: Int32 = -1
  private var oldest: Int32 = -1

  init(countLimit: Int) {
    self.countLimit = max(1, countLimit)
  }

  func read(_ key: UInt64, into buffer: UnsafeMutableRawBufferPointer) -> Int? {
    guard let place = places[key] else { return nil }
    unlink(place)
    linkNewest(place)
    let bytes = nodes[Int(place)].bytes
    unsafe buffer.copyBytes(from: bytes)
    return bytes.count
  }

  func store(_ key: UInt64, _ bytes: UnsafeRawBufferPointer) -> Bool {
    let bytes = unsafe Array(bytes)
    if let place = places[key] {
      nodes[Int(place)].bytes = bytes
      unlink(place)
      linkNewest(place)
    } else if nodes.count < countLimit {
      nodes.append(Node(key: key, bytes: bytes, newer: -1, older: -1))
      places[key] = Int32(nodes.count - 1)
      linkNewest(Int32(nodes.count - 1))
    } else {
      let place = oldest
      unlink(place)
      places[nodes[Int(place)].key] = nil
      nodes[Int(place)].key = key
      nodes[Int(place)].bytes = bytes
      places[key] = place
      linkNewest(place)
    }
    return true
  }

  private func unlink(_ place: Int32) {
    let (newer, older) = (nodes[Int(place)].newer, nodes[Int(place)].older)
    if newer < 0 { newest = older } else { nodes[Int(newer)].older = older }
    if older < 0 { oldest = newer } else { nodes[Int(older)].newer = newer }
  }

  private func linkNewest(_ place: Int32) {
    nodes[Int(place)].newer = -1
    nodes[Int(place)].older = newest
    if newest >= 0 { nodes[Int(newest)].newer = place }
    newest = place
    if oldest < 0 { oldest = place }
  }
}
