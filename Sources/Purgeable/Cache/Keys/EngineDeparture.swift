// SPDX-License-Identifier: MIT
// Departures: what the engine and the typed cache exchange for the handler (Terms/Departure.swift).

import Glibc

/// The copy of a value that waits to be told, in memory whose allocation may fail. `@unchecked Sendable`: it has one owner at a
/// time, who hands it on under a mutex.
@safe struct ValueCopy: @unchecked Sendable {
  /// The number of bytes, then the bytes; nil where there is no copy.
  var block: UnsafeMutableRawPointer?
  var absence: ValueAbsence?

  static let headByteCount = 8
  /// The value is not wanted.
  static let unwanted = ValueCopy(absence: nil)
  static let discarded = ValueCopy(absence: .discarded)
  static let notKept = ValueCopy(absence: .notKept)

  init(absence: ValueAbsence?) { self.absence = absence }

  /// The copy at an address; called by its owner.
  init(block: UnsafeMutableRawPointer) { unsafe self.block = block }

  /// Room for so many bytes; nil when there is no memory.
  init?(byteCount: Int) {
    guard let block = unsafe malloc(byteCount + Self.headByteCount) else { return nil }
    unsafe block.storeBytes(of: byteCount, as: Int.self)
    unsafe self.block = block
  }

  var byteCount: Int { unsafe block?.load(as: Int.self) ?? 0 }

  /// The bytes of the copy; only where there is a block.
  var bytes: UnsafeMutableRawBufferPointer {
    unsafe UnsafeMutableRawBufferPointer(start: block.map { unsafe $0 + Self.headByteCount }, count: byteCount)
  }
}

/// The departure of a value, without its key.
struct EngineDeparture {
  let reason: DepartureReason
  let cost: UInt64
  let copy: ValueCopy
}

/// Departed nodes in order of departure, linked through themselves. `@unchecked Sendable` as `ValueCopy`.
@safe struct DepartureList: @unchecked Sendable {
  private(set) var first: NodePointer?
  private var last: NodePointer?
  private(set) var count = 0
  /// Bytes of values that were copied for them.
  var copiedByteCount = 0

  var isEmpty: Bool { first == nil }

  mutating func append(_ entry: NodePointer) {
    if let last { last.node.next = entry } else { first = entry }
    last = entry
    count += 1
  }

  mutating func append(_ other: DepartureList) {
    guard let head = other.first else { return }
    if let last { last.node.next = head } else { first = head }
    last = other.last
    count += other.count
    copiedByteCount += other.copiedByteCount
  }

  /// The entry belongs to the caller from here on.
  mutating func popFirst() -> NodePointer? {
    guard let entry = first else { return nil }
    first = entry.node.next
    if first == nil { last = nil }
    count -= 1
    assert(count > 0 || isEmpty, "PurgeableCache: a list's count is wrong")
    return entry
  }
}

/// The typed cache's part in departures, as the engine knows it.
protocol EngineObserver: ForkProtected {
  /// The memory of the keys' nodes.
  var nodes: NodeMemory { get }
  /// Has mutexes of its own.
  var companion: (any ForkProtected)? { get }
  /// Whether a handler is told, with values.
  var wantsValues: Bool { get }
  /// Departures that wait for the telling thread.
  var waitingCount: Int { get }
  /// Values that were dropped because too many waited, or for want of memory.
  var notKeptCount: UInt64 { get }
  /// Memory for a copy of a value; nil when there is none, or too many values wait. `mayExceed`: for the first value that a call
  /// of the program takes out, the limit does not count.
  func makeCopy(byteCount: Int, mayExceed: Bool) -> ValueCopy?
  func endCopy(_ copy: ValueCopy)
  /// Under the shard's mutex: ends a key that nobody is told of, if none of the program's code runs with that.
  func endsAtOnce(_ node: NodePointer) -> Bool
  /// Under no mutex: tells of the departures, or has the telling thread tell of those that the library itself caused.
  func deliver(_ list: consuming DepartureList)
  /// Under no mutex, on a thread of the program: tells of some departures when the telling thread is behind.
  func helpTelling()
}
