// SPDX-License-Identifier: MIT
// The owner of a region: whole pages behind one lock count.

import CPurgeable

/// A run of whole pages that the kernel may take while nobody uses them, and that says so instead of showing wrong bytes.
///
/// ```swift
/// var tile = try PurgeableRegion(byteCount: 1 << 20)
/// tile.withMutableBytes { bytes in draw(into: &bytes) }       // the kernel may take it from here on
/// if tile.withBytes({ send($0) }) == nil { try tile.refill { bytes in draw(into: &bytes) } }
/// ```
///
/// A region has one owner and lives as long as it. Its bytes are reached through closures that hold a lock for their length, so
/// no span outlives its lock. Reading, discarding and asking need the region only borrowed and may run in many threads at once;
/// writing and refilling are `mutating`, so the compiler keeps them apart from everything else. Threads that share a region and
/// make its content themselves use `withBytes(orRefilling:_:)`: one of them fills, the others wait.
///
/// For bytes that several owners share, that grow, or that know how to make themselves again, see `PurgeableData`; for many small
/// ones `PurgeableHeap`.
///
/// A forked child finds every region discarded, and a span that was lent at the moment of the fork reads zeros there.
@safe
public struct PurgeableRegion: ~Copyable, Sendable {
  // Safe to share: the core's functions may be called from any thread on a live region, and it lives until `deinit`, which runs
  // when nobody borrows this value any more. What the core leaves to its callers, keeping writers apart from other holders, the
  // `mutating` functions do.
  nonisolated(unsafe) let handle: OpaquePointer

  /// When the region is offered to the kernel after its last unlock.
  public let offering: OfferingMode

  /// Makes a region of zeros that nobody has locked.
  ///
  /// Unlike a region of the C core, which is born locked, it is born idle: a lock belongs to a closure here. Zeros are never
  /// lost, so there is nothing to discard before the first writing.
  ///
  /// - Parameters:
  ///   - byteCount: its length, at least 1; memory is used in whole pages.
  ///   - offering: when it is offered to the kernel.
  /// - Throws: `PurgeableError`: invalid argument, out of memory.
  /// - Complexity: O(1); no system call while a shared chunk of the core has room.
  public init(byteCount: Int, offering: OfferingMode = .deferred) throws(PurgeableError) {
    let handle = try unsafe PurgeableRegion.makeLocked(byteCount: byteCount, offering: offering)
    unsafe self.handle = handle
    self.offering = offering
    unlock()
  }

  /// Makes a region and has a closure fill it, before the kernel may take any of it.
  ///
  /// - Parameters:
  ///   - byteCount: its length, at least 1; memory is used in whole pages.
  ///   - offering: when it is offered to the kernel.
  ///   - body: gets all bytes, zeros so far. Whatever it throws, the region is given back and the initialiser throws it; a
  ///   closure
  ///     with errors of its own type fills by `withMutableBytes` instead.
  /// - Throws: `PurgeableError`: invalid argument, out of memory; or what `body` throws.
  public init(
    byteCount: Int, offering: OfferingMode = .deferred,
    initializingWith body: (inout MutableRawSpan) throws(PurgeableError) -> Void
  ) throws(PurgeableError) {
    let handle = try unsafe PurgeableRegion.makeLocked(byteCount: byteCount, offering: offering)
    do throws(PurgeableError) {
      // Safe: born locked for writing, known to nobody else, and `byteCount` bytes long.
      var span = unsafe UnsafeMutableRawBufferPointer(start: purgeable_region_bytes(handle), count: byteCount).mutableBytes
      try body(&span)
    } catch {
      _ = unsafe purgeable_region_destroy(handle)
      throw error
    }
    unsafe self.handle = handle
    self.offering = offering
    unlock()
  }

  /// Makes a region whose content is discarded from the start, so that nobody makes it before somebody wants it: see
  /// `withBytes(orRefilling:_:)`.
  ///
  /// Parameters and errors as `init(byteCount:offering:)`.
  public init(discardedByteCount byteCount: Int, offering: OfferingMode = .deferred) throws(PurgeableError) {
    let handle = try unsafe PurgeableRegion.makeLocked(byteCount: byteCount, offering: offering, isDiscarded: true)
    unsafe self.handle = handle
    self.offering = offering
  }

  /// Makes a region that is locked for writing once; the caller has to unlock it. For owners that count accesses themselves,
  /// and ensure that no thread reads half-written content.
  init(lockedWithByteCount byteCount: Int, offering: OfferingMode) throws(PurgeableError) {
    let handle = try unsafe PurgeableRegion.makeLocked(byteCount: byteCount, offering: offering)
    // For the core this thread is filling the region; the owner locks it from any thread.
    _ = unsafe purgeable_region_publish(handle)
    unsafe self.handle = handle
    self.offering = offering
  }

  // A throwing initialiser runs `deinit` once all properties are set: so what can fail comes first, in here.
  private static func makeLocked(
    byteCount: Int, offering: OfferingMode, isDiscarded: Bool = false
  ) throws(PurgeableError) -> OpaquePointer {
    guard byteCount > 0 else {
      throw PurgeableError(
        .invalidArgument("byteCount"), in: "PurgeableRegion.init", explanation: "a region has at least 1 byte, not \(byteCount)")
    }
    var options = purgeable_region_options_t(offering: offering.code)
    var handle: OpaquePointer?
    let status =
      unsafe isDiscarded
      ? purgeable_region_create_discarded(byteCount, &options, &handle) : purgeable_region_create(byteCount, &options, &handle)
    try PurgeableError.check(status, in: "PurgeableRegion.init(byteCount: \(byteCount))", argument: "byteCount", call: "mmap")
    guard let made = unsafe handle else { stop("PurgeableRegion: the core made no region and reported no error") }
    return unsafe made
  }

  deinit { _ = unsafe purgeable_region_destroy(handle) }

  /// The length in bytes, as asked for.
  public var byteCount: Int { unsafe purgeable_region_length_bytes(handle) }

  /// How many locks are held now, in all threads. One atomic load.
  public var lockCount: Int { Int(unsafe purgeable_region_lock_count(handle)) }

  /// What the region is now. One atomic load; it may be something else the next moment.
  public var state: State {
    switch unsafe purgeable_region_state(handle) {
    case .idle: .idle
    case .on_offer: .onOffer
    case .discarded: .discarded
    case .locked: .locked
    case .writing: .writing
    case .filling: .filling
    }
  }

  /// What a region can be.
  public enum State: Sendable, Hashable, CaseIterable {
    /// Nobody uses it and the kernel may not take it: not offered yet, or the offer was refused.
    case idle
    /// The kernel may take it, or has and nobody has looked.
    case onOffer
    /// Known to be gone, until it is refilled.
    case discarded
    /// Being read.
    case locked
    /// Being written to.
    case writing
    /// Being filled, for the first time or anew: who wants to read waits.
    case filling
  }

  /// Whether content was lost: stays true until the region is refilled. Any thread.
  ///
  /// - Complexity: one read for each page while the region is on offer, else one atomic load; no system call.
  public var isDiscarded: Bool { unsafe purgeable_region_is_discarded(handle) }
}
