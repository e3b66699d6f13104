// SPDX-License-Identifier: MIT
// The owner of a slab heap: many small elements that share purgeable pages.

import CPurgeable

/// Many small pieces of content that share pages the kernel may take while nobody uses them.
///
/// ```swift
/// let heap = try PurgeableHeap()
/// let page = try heap.store(bytes)
/// let size = try heap.withBytes(of: page) { $0.byteCount }     // nil: discarded
/// try heap.free(page)
/// ```
///
/// An element is written once, while it is stored, and is read-only afterwards. Elements lie one behind the other in slabs of
/// several pages, so that small ones need no page each; when the kernel takes a page, only the elements on it are lost. A lost
/// element stays named until it is freed.
///
/// For whole pages that are rewritten in place see `PurgeableRegion`. All functions may be called from any thread. In a forked
/// child the heap is empty and usable, and every older reference is stale.
@safe
public struct PurgeableHeap: ~Copyable, Sendable {
  // Safe to share: the core's functions may be called from any thread on a live heap, and it lives until `deinit`, which runs
  // when nobody borrows this value any more.
  nonisolated(unsafe) let handle: OpaquePointer

  // The heap calls it with this object as context: kept until after the heap is destroyed.
  private let mover: Mover?

  /// What a heap may hold and how.
  public struct Options: Sendable, Hashable {
    /// The most bytes of slabs to hold at a time; `nil` for no limit. Above it storing throws out of memory.
    public var limitByteCount: Int?
    /// A power of two of 1 to 64 pages; `nil` lets the heap choose by its limit, 16 pages mostly.
    public var slabByteCount: Int?
    /// A power of two of at least 4 slabs: how much address space is mapped at a time; `nil` lets the heap choose.
    public var chunkByteCount: Int?
    /// The most payload to have locked at a time, each lock counted, in bytes; `nil` for no limit. Above it a lock throws `busy`.
    public var lockedLimitByteCount: Int?
    /// When idle slabs are offered to the kernel; in deferred mode by `offerIdle()`.
    public var offering: OfferingMode
    /// Whether each element's tag is kept in ordinary memory (8 to 12 bytes an element), where it survives a discard.
    public var keepsTags: Bool

    /// Options that let the heap choose, but for what is given.
    public init(
      limitByteCount: Int? = nil, slabByteCount: Int? = nil, chunkByteCount: Int? = nil,
      lockedLimitByteCount: Int? = nil, offering: OfferingMode = .deferred, keepsTags: Bool = false
    ) {
      self.limitByteCount = limitByteCount
      self.slabByteCount = slabByteCount
      self.chunkByteCount = chunkByteCount
      self.lockedLimitByteCount = lockedLimitByteCount
      self.offering = offering
      self.keepsTags = keepsTags
    }
  }

  /// Makes an empty heap. No memory is mapped before the first element, but for a page of control words.
  ///
  /// - Parameters:
  ///   - options: limits and sizes.
  ///   - moved: when given, the heap compacts the first stream by itself: it copies the living out of slabs that are less than
  ///     half alive, and asks this owner to take the new reference for the old. See `Moved`.
  /// - Throws: `PurgeableError`: invalid argument (sizes that are no powers of two, out of range, or negative), out of memory.
  public init(_ options: Options = Options(), moved: Moved? = nil) throws(PurgeableError) {
    for (name, value) in [
      ("limitByteCount", options.limitByteCount), ("slabByteCount", options.slabByteCount),
      ("chunkByteCount", options.chunkByteCount), ("lockedLimitByteCount", options.lockedLimitByteCount),
    ] {
      guard let value, value <= 0 else { continue }
      throw PurgeableError(
        .invalidArgument(name), in: "PurgeableHeap.init", explanation: "it has to be above 0, not \(value); nil leaves it open")
    }
    let mover = moved.map(Mover.init)
    // Safe: `self` keeps the context until after the heap is destroyed.
    var code = unsafe purgeable_heap_options_t(
      limit_bytes: options.limitByteCount ?? 0, slab_bytes: options.slabByteCount ?? 0,
      chunk_bytes: options.chunkByteCount ?? 0, offering: options.offering.code,
      locked_limit_bytes: options.lockedLimitByteCount ?? 0, keeps_tags: options.keepsTags,
      moved: mover == nil ? nil : Mover.callback, context: mover.map { unsafe Unmanaged.passUnretained($0).toOpaque() })
    var handle: OpaquePointer?
    let status = unsafe purgeable_heap_create(&code, &handle)
    try PurgeableError.check(
      status, in: "PurgeableHeap.init", argument: "options", call: "mmap",
      explanation: status == Status.invalid
        ? "slabs are powers of two of 1 to 64 pages, chunks powers of two of at least 4 slabs, a limit at least a slab" : nil)
    guard let made = unsafe handle else { stop("PurgeableHeap: the core made no heap and reported no error") }
    unsafe self.handle = made
    self.mover = mover
  }

  deinit { _ = unsafe purgeable_heap_destroy(handle) }

  /// The slab size in bytes that was chosen.
  public var slabByteCount: Int { unsafe purgeable_heap_slab_bytes(handle) }
}
