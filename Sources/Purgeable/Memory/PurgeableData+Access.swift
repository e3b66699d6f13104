// SPDX-License-Identifier: MIT
// The access counter, with NSDiscardableContent's meaning to the letter, and reading.

extension PurgeableData {
  /// Counts an access, so that the bytes stay until the matching `endContentAccess()`.
  ///
  /// Where the content was discarded and the object was given a way to recreate it, does so first, on this thread; other threads
  /// that want an access wait for that. When recreating throws, answers `nil`, or memory is lacking, the content stays discarded.
  ///
  /// - Returns: `true`: counted, the content is there. `false`: the content is discarded, or no more may be locked
  ///   (`PurgeableRegion.setLockedByteLimit`), and the counter is as before.
  /// - Complexity: from 0 to 1 an atomic operation for each page that was on offer, else O(1); no system call.
  public func beginContentAccess() -> Bool {
    content.withLock { $0.begin(.caller) } || remake(for: .caller)
  }

  /// Ends an access. The last one puts the bytes on offer to the kernel, by `offering`.
  ///
  /// At 0 the counter stays at 0: the call changes nothing, is counted in `unbalancedEndCount` and, in debug builds, reported on
  /// standard error, once for each object.
  public func endContentAccess() {
    enum Ending {
      case plain, idle
      case unbalanced(Int)
    }
    let ending: Ending = content.withLock { content in
      content.settleFork()
      guard content.callers > 0 else {
        content.unbalancedEnds += 1
        return .unbalanced(content.unbalancedEnds)
      }
      content.callers -= 1
      return content.accesses == 0 && content.storage.region.unlockQuietly() ? .idle : .plain
    }
    switch ending {
    case .plain: break
    case .idle: WorkBell.ring()
    case .unbalanced(let times): noteUnbalancedEnd(isFirst: times == 1)
    }
  }

  /// Discards the bytes at once if the counter is 0; else, and when they are discarded already, does nothing.
  ///
  /// - Complexity: one system call (MADV_DONTNEED). If the kernel refuses it, the content stays.
  public func discardContentIfPossible() {
    content.withLock { content in
      content.settleFork()
      guard content.accesses == 0 else { return }
      do { try content.storage.region.discard() } catch {
        // Busy cannot be: a lock is an access. What is left is a refusal of the kernel; "if possible" covers it.
      }
    }
  }

  /// Whether the bytes were discarded, by the kernel or the program, and not been made anew since.
  ///
  /// - Complexity: one read for each page while the bytes are on offer, else one atomic load; no system call.
  public var isContentDiscarded: Bool {
    let storage = content.withLock { $0.storage }
    return storage.region.isDiscarded
  }

  /// The access counter: begun and not ended, those of functions at work included.
  public var accessCount: Int {
    content.withLock { content in
      content.settleFork()
      return content.accesses
    }
  }

  /// How many bytes there are. Stops the program when nobody holds an access.
  public var count: Int { needingAccess("count") { $0.count } }

  /// For how many bytes there is room without another region. Stops the program when nobody holds an access.
  public var capacity: Int { needingAccess("capacity") { $0.storage.capacity } }

  /// Begins an access, lends the bytes, ends the access, also when `body` throws.
  ///
  /// The bytes stay as they are while `body` runs, whatever the kernel needs and whoever changes the object meanwhile. May be
  /// called within itself, but not within a `withMutableBytes` of the same object: that stops the program.
  ///
  /// - Returns: what `body` returns; `nil`, without calling it, when the content is discarded and could not be recreated.
  /// - Throws: only what `body` throws.
  @discardableResult
  public func withBytes<Result: ~Copyable, Failure: Error>(
    _ body: (RawSpan) throws(Failure) -> Result
  ) throws(Failure) -> Result? {
    guard let lease = borrow() else { return nil }
    defer { giveBack(lease) }
    // Safe: the lease keeps the storage alive, locked and unchanged until after `body`, and the span cannot leave it.
    return try unsafe body(UnsafeRawBufferPointer(rebasing: lease.storage.region.lockedBuffer.prefix(lease.count)).bytes)
  }
}

// MARK: Within

extension PurgeableData {
  private func needingAccess(_ operation: String, _ answer: (borrowing Content) -> Int) -> Int {
    content.withLock { content in
      content.settleFork()
      if content.accesses == 0 { stopForLackOfAccess(operation) }
      return answer(content)
    }
  }

  /// Begins a function's access and takes a lease; `nil` when discarded. Waits out a change.
  private func borrow() -> Lease? {
    enum Answer {
      case lease(Lease)
      case discarded, changing, changingHere
    }
    let me = currentThread()
    let answer: Answer = content.withLock { content in
      guard content.begin(.function) else { return .discarded }
      if content.changer != 0 { return content.changer == me ? .changingHere : .changing }
      return .lease(content.lend())
    }
    switch answer {
    case .lease(let lease): return lease
    case .discarded: guard remake(for: .function) else { return nil }
    case .changing: break
    case .changingHere: stop("\(title): withBytes within withMutableBytes of the same object")
    }
    // Whoever has the turn is not in the middle of somebody else's change.
    return turn.withLock { _ in content.withLock { $0.lend() } }
  }

  private func giveBack(_ lease: Lease) {
    let isIdle = content.withLock { content in
      content.settleFork()
      guard content.epoch == lease.epoch else { return false }
      if content.storage === lease.storage { content.readers -= 1 }
      return content.endFunction()
    }
    if isIdle { WorkBell.ring() }
  }
}
