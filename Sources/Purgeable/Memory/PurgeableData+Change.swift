// SPDX-License-Identifier: MIT
// The one way in which the bytes change: in turn, in place while nobody reads, else in a copy.

import CPurgeable

extension PurgeableData {
  /// What a change does to the length.
  enum Length {
    case same
    case longer(by: Int)
    case exactly(Int)

    /// The new length from the old one; `nil` when no number can express it.
    func changed(from count: Int) -> Int? {
      switch self {
      case .same: return count
      case .exactly(let newCount): return newCount
      case .longer(let added):
        let (sum, overflow) = count.addingReportingOverflow(added)
        return overflow ? nil : sum
      }
    }
  }

  /// Changes the bytes.
  ///
  /// - Parameters:
  /// - operation: the operation's name in messages.
  ///   - length: what becomes of the length.
  ///   - keepsOld: whether the bytes there are have to be there when `body` is called.
  ///   - body: gets all bytes there is room for, zeros from the old length on, and the old length. If it throws, what it wrote
  ///     stands and the length is the old one.
  func change(
    _ operation: String, _ length: Length, keepsOld: Bool = true,
    _ body: (_ all: UnsafeMutableRawBufferPointer, _ oldCount: Int) throws(PurgeableError) -> Void
  ) throws(PurgeableError) {
    if isChangingHere { stop("\(title): \(operation) within withMutableBytes, or within recreating, of the same object") }
    try turn.withLock { _ throws(PurgeableError) in
      let start = beginChange(operation)
      var (storage, count) = (start.lease.storage, start.lease.count)
      defer { endChange(start.lease, storage: storage, count: count) }

      guard let wanted = length.changed(from: count) else {
        throw PurgeableError(.tooLarge, in: "\(title).\(operation)", explanation: "the length would be above \(Int.max) bytes")
      }
      let capacity = Self.capacity(for: wanted, now: count, in: storage.capacity)
      if start.isRead || capacity != storage.capacity {
        let fresh = try Storage.make(capacity: capacity, offering: offering)
        if keepsOld {
          // Safe: the old bytes are locked by this access and only read; the new ones are locked and known to nobody.
          unsafe fresh.region.lockedBuffer.storeBytes(
            UnsafeRawBufferPointer(rebasing: storage.region.lockedBuffer.prefix(min(count, wanted))).bytes, at: 0)
        }
        storage = fresh
        try unsafe body(fresh.region.lockedBuffer, count)
      } else {
        // Tells the core that content changes under the lock held here, so that it takes fresh witnesses at the last unlock.
        guard storage.region.lock(forWriting: true) else { stopForLackOfAccess(operation) }
        defer { _ = storage.region.unlockQuietly() }
        try unsafe body(storage.region.lockedBuffer, count)
        // Beyond the length all is zero, so that growing shows zeros and lost pages there mean nothing.
        if wanted < count { unsafe UnsafeMutableRawBufferPointer(rebasing: storage.region.lockedBuffer[wanted..<count]).zero() }
      }
      count = wanted
    }
  }

  private func beginChange(_ operation: String) -> (lease: Lease, isRead: Bool) {
    content.withLock { content in
      content.settleFork()
      if content.accesses == 0 { stopForLackOfAccess(operation) }
      content.functions += 1
      content.changer = currentThread()
      return (Lease(storage: content.storage, count: content.count, epoch: content.epoch), content.readers > 0)
    }
  }

  private func endChange(_ lease: Lease, storage: Storage, count: Int) {
    let isIdle = content.withLock { content in
      content.settleFork()
      content.changer = 0
      guard content.epoch == lease.epoch else { return false }
      if content.storage !== storage {
        content.storage = storage
        content.readers = 0
      }
      content.count = count
      return content.endFunction()
    }
    if isIdle { WorkBell.ring() }
  }

  /// The room to have for `wanted` bytes in the place of `count`, where there is room for `current`: see the type's
  /// documentation.
  static func capacity(for wanted: Int, now count: Int, in current: Int) -> Int {
    if wanted > current {
      let (grown, overflow) = current.addingReportingOverflow(current < 1 << 20 ? current : current / 4)
      return overflow ? wanted : max(wanted, grown)
    }
    let shrinks = wanted < count && wanted <= current / 4 && current > purgeable_page_size_bytes()
    return shrinks ? wanted : current
  }
}

extension UnsafeMutableRawBufferPointer {
  /// Copies a span to an offset. The caller has made room for it.
  func storeBytes(_ bytes: RawSpan, at offset: Int) {
    // Safe: slicing checks the range in every build, and the span is valid for the length of the closure.
    unsafe bytes.withUnsafeBytes { source in
      unsafe UnsafeMutableRawBufferPointer(rebasing: self[offset..<(offset + source.count)]).copyMemory(from: source)
    }
  }

  /// Writes zeros over all.
  func zero() {
    _ = unsafe initializeMemory(as: UInt8.self, repeating: 0)
  }
}
