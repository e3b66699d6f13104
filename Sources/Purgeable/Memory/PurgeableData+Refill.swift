// SPDX-License-Identifier: MIT
// Making discarded content anew: by the object's own closure, or by its owner.

extension PurgeableData {
  /// Gives the object new bytes, whether the old ones are discarded or merely unused. It is then as at birth: an access count of
  /// 1, for the caller to end.
  ///
  /// - Throws: `PurgeableError`: busy when anybody holds an access (then use `replaceBytes(with:)`); out of memory. Nothing has
  ///   changed then.
  public func refill(with bytes: RawSpan) throws(PurgeableError) {
    let fresh = try Storage.make(capacity: bytes.byteCount, offering: offering)
    fresh.write(bytes)
    let isDone =
      !isChangingHere
      && whileChanging {
        let old: Storage? = content.withLock { content in
          content.settleFork()
          return content.accesses == 0 ? content.install(fresh, count: bytes.byteCount, for: .caller) : nil
        }
        return old != nil
      }
    guard isDone else {
      throw PurgeableError(
        .busy, in: "\(title).refill", explanation: "the content is in use: end every access first, or replace the bytes")
    }
  }

  /// Gives the object new bytes; see `refill(with:)`.
  public func refill(with bytes: some Collection<UInt8>) throws(PurgeableError) {
    try withRawSpan(of: bytes) { span throws(PurgeableError) in try refill(with: span) }
  }

  /// Recreates discarded content and counts an access to it; false where that is not possible. One thread at a time: the other
  /// threads wait, and then share the result or the failure.
  func remake(for holder: Holder) -> Bool {
    guard let recreate else { return false }
    // The recreating closure itself asks for the content, which is not there yet.
    guard !isChangingHere else { return false }
    let failures = content.withLock { content in
      content.remakers += 1
      return content.failedRemakes
    }
    defer { content.withLock { $0.remakers -= 1 } }
    return whileChanging {
      if content.withLock({ $0.begin(holder) }) { return true }
      // Refused by the limit on locked bytes: the content need not be made again.
      guard isContentDiscarded else { return false }
      // A thread that waited while another's attempt failed does not repeat it: the next call does.
      guard content.withLock({ $0.failedRemakes }) == failures else { return false }
      // A closure that throws, and memory that is lacking, are documented to leave the content discarded.
      guard let bytes = try? recreate(), let fresh = try? Storage.make(capacity: bytes.count, offering: offering) else {
        content.withLock { $0.failedRemakes += 1 }
        return false
      }
      unsafe fresh.write(bytes.span.bytes)  // Safe: bytes have no padding.
      // Discarded content comes back only under `turn`, which is held here: it still is discarded and nobody has an access.
      _ = content.withLock { $0.install(fresh, count: bytes.count, for: holder) }
      return true
    }
  }

  /// For tests: how many threads are in `remake`, and know how often it had failed before.
  var remakerCount: Int { content.withLock { $0.remakers } }

  /// Whether this thread is in the middle of a change.
  var isChangingHere: Bool { content.withLock { $0.changer } == currentThread() }

  /// Takes the turn to change, so that no lease is given meanwhile, and records the thread that has it.
  private func whileChanging(_ body: () -> Bool) -> Bool {
    turn.withLock { _ in
      let me = currentThread()
      content.withLock { $0.changer = me }
      defer { content.withLock { $0.changer = 0 } }
      return body()
    }
  }
}

extension PurgeableData.Storage {
  /// Writes the first bytes. For storage that nobody else knows yet, with room for them.
  func write(_ bytes: RawSpan) {
    // Safe: born locked, and unknown to others.
    var target = unsafe region.lockedBuffer.mutableBytes
    copy(bytes, to: &target)
  }
}
