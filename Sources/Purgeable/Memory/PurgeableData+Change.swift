// SPDX-License-Identifier: MIT
// The one way in which the bytes change: in turn, in place while nobody reads, else in a copy.

import CPurgeable

extension PurgeableData {
  /// What a change does to the length.
  enum Length {
    case same
    case longer(by: Int)
    case exactly(Int)
    /// As many bytes in the place of a range, which lies within those there are; what is behind the range moves.
    case replacing(Range<Int>, by: Int)

    /// The new length from the old one; `nil` when no number can express it.
    func changed(from count: Int) -> Int? {
      switch self {
      case .same: return count
      case .exactly(let newCount): return newCount
      case .longer(let added):
        let (sum, overflow) = count.addingReportingOverflow(added)
        return overflow ? nil : sum
      case .replacing(let range, let added):
        let (sum, overflow) = (count - range.count).addingReportingOverflow(added)
        return overflow ? nil : sum
      }
    }

    /// The old bytes that stay, where they lay: first those whose place is the same, then those that move, and where to.
    func kept(of count: Int, wanted: Int) -> (front: Range<Int>, back: Range<Int>, target: Int) {
      guard case .replacing(let range, let added) = self else { return (0..<min(count, wanted), count..<count, 0) }
      return (0..<range.lowerBound, range.upperBound..<count, range.lowerBound + added)
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

      if case .replacing(let range, _) = length { try check(range, in: count, for: operation) }
      guard let wanted = length.changed(from: count) else {
        throw PurgeableError(.tooLarge, in: "\(title).\(operation)", explanation: "the length would be above \(Int.max) bytes")
      }
      let kept = length.kept(of: count, wanted: wanted)
      let capacity = Self.capacity(for: wanted, now: count, in: storage.capacity)
      if start.isRead || capacity != storage.capacity {
        let fresh = try Storage.make(capacity: capacity, offering: offering)
        if keepsOld {
          // Safe: the old bytes are locked by this access and only read; the new ones are locked and known to nobody.
          let (old, new) = unsafe (storage.region.lockedBuffer, fresh.region.lockedBuffer)
          unsafe new.moveBytes(UnsafeRawBufferPointer(rebasing: old[kept.front]), to: 0)
          unsafe new.moveBytes(UnsafeRawBufferPointer(rebasing: old[kept.back]), to: kept.target)
        }
        storage = fresh
        try unsafe body(fresh.region.lockedBuffer, count)
      } else {
        // Tells the core that content changes under the lock held here, so that it takes fresh witnesses at the last unlock.
        guard storage.region.lock(forWriting: true) else { stopForLackOfAccess(operation) }
        defer { _ = storage.region.unlockQuietly() }
        let all = unsafe storage.region.lockedBuffer
        // Safe: nobody else reads or writes these bytes now, and the two places may overlap.
        if kept.target != kept.back.lowerBound {
          unsafe all.moveBytes(UnsafeRawBufferPointer(rebasing: all[kept.back]), to: kept.target)
        }
        try unsafe body(all, count)
        // Beyond the length all is zero, so that growing shows zeros and lost pages there mean nothing.
        if wanted < count { unsafe UnsafeMutableRawBufferPointer(rebasing: all[wanted..<count]).zero() }
      }
      count = wanted
    }
  }

  /// Throws where a range does not lie within `count` bytes.
  func check(_ range: Range<Int>, in count: Int, for operation: String) throws(PurgeableError) {
    guard range.lowerBound >= 0, range.upperBound <= count else {
      throw PurgeableError(
        .invalidArgument("range"), in: "\(title).\(operation)", explanation: "\(range) does not lie within \(count) bytes")
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
    // Safe: there is room, as the caller says, and the span is valid for the length of the closure.
    unsafe bytes.withUnsafeBytes { source in
      unsafe UnsafeMutableRawBufferPointer(rebasing: self[offset..<(offset + source.count)]).copyMemory(from: source)
    }
  }

  /// Copies bytes to an offset; the two places may overlap. The caller has made room for them.
  func moveBytes(_ bytes: UnsafeRawBufferPointer, to offset: Int) {
    // Safe: there is room, as the caller says, and both are lent for the length of the call.
    unsafe UnsafeMutableRawBufferPointer(rebasing: self[offset..<(offset + bytes.count)]).copyMemory(from: bytes)
  }

  /// Writes zeros over all.
  func zero() {
    _ = unsafe initializeMemory(as: UInt8.self, repeating: 0)
  }
}
