// SPDX-License-Identifier: MIT
// A cache as a textbook has it: a dictionary, a doubly linked list in order of use, one mutex. Exact LRU, strict limits.

import Foundation
import Synchronization

/// What a byte limit counts.
protocol Counted {
  var countedBytes: Int { get }
}

extension String: Counted { var countedBytes: Int { utf8.count } }
extension Data: Counted { var countedBytes: Int { count } }
extension Int: Counted { var countedBytes: Int { 0 } }

private final class Node<Key, Value> {
  let key: Key
  var value: Value
  var cost: Int
  unowned(unsafe) var older: Node?
  unowned(unsafe) var newer: Node?

  init(_ key: Key, _ value: Value, _ cost: Int) { (self.key, self.value, self.cost) = (key, value, cost) }
}

/// What of a cache is limited; the other limits are none.
struct Limits {
  var count = Int.max
  var cost = Int.max
  /// Of values and keys, as they are counted: without what the allocator and the tables add.
  var bytes = Int.max
}

/// `@unchecked Sendable`: everything that changes is used under the mutex.
final class TextbookLRU<Key: Hashable & Counted, Value: Counted & Sendable>: @unchecked Sendable {
  private let mutex = Mutex<Void>(())
  private let limits: Limits
  private var nodes: [Key: Node<Key, Value>] = [:]
  private unowned(unsafe) var oldest: Node<Key, Value>?
  private unowned(unsafe) var newest: Node<Key, Value>?
  private var totalCost = 0
  private var byteCount = 0

  init(_ limits: Limits) { self.limits = limits }

  var count: Int { mutex.withLock { _ in nodes.count } }

  func value(forKey key: Key) -> Value? {
    mutex.withLock { _ in
      guard let node = nodes[key] else { return nil }
      unlink(node)
      linkNewest(node)
      return node.value
    }
  }

  func setValue(_ value: Value, forKey key: Key, cost: Int) {
    mutex.withLock { _ in
      let node: Node<Key, Value>
      if let known = nodes[key] {
        node = known
        unlink(node)
        totalCost -= node.cost
        byteCount -= node.value.countedBytes
        (node.value, node.cost) = (value, cost)
      } else {
        node = Node(key, value, cost)
        nodes[key] = node
        byteCount += key.countedBytes
      }
      totalCost += cost
      byteCount += value.countedBytes
      linkNewest(node)
      while nodes.count > limits.count || totalCost > limits.cost || byteCount > limits.bytes, let last = unsafe oldest {
        unlink(last)
        totalCost -= last.cost
        byteCount -= last.value.countedBytes + last.key.countedBytes
        nodes[last.key] = nil
      }
    }
  }

  private func linkNewest(_ node: Node<Key, Value>) {
    unsafe node.older = newest
    unsafe node.newer = nil
    unsafe newest?.newer = node
    unsafe newest = node
    if unsafe oldest == nil { unsafe oldest = node }
  }

  private func unlink(_ node: Node<Key, Value>) {
    if let newer = unsafe node.newer { unsafe newer.older = node.older } else { unsafe newest = node.older }
    if let older = unsafe node.older { unsafe older.newer = node.newer } else { unsafe oldest = node.newer }
  }
}
