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
/// Nothing tends a heap by itself: call `trim()`, `offerIdle()` and `sweep()`, in this order, about once a second, or start the
/// core's upkeep (`purgeable_upkeep_start`), which does it for all heaps.
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
    /// The most bytes of slabs to hold at a time, less what is known to be gone; `nil` for no limit. Above it storing throws out
    /// of memory.
    public var byteLimit: Int?
    /// A power of two of 1 to 64 pages; `nil` lets the heap choose by its limit, 16 pages mostly.
    public var slabByteCount: Int?
    /// A power of two of at least 4 slabs: how much address space is mapped at a time; `nil` lets the heap choose.
    public var chunkByteCount: Int?
    /// The most payload to have locked at a time, each lock counted, in bytes; `nil` for no limit. Above it a lock throws `busy`.
    public var lockedByteLimit: Int?
    /// When idle slabs are offered to the kernel; in deferred mode by `offerIdle()`.
    public var offering: OfferingMode
    /// Whether each element's tag is kept in ordinary memory (10 bytes an element), where it survives a discard.
    public var keepsTags: Bool
    /// With `moved`: storing never compacts, so never calls `moved`; `trim()` and `offerIdle()` do. For owners who hold a mutex
    /// while they store and take it in `moved`. A slab less than the limit is left for stores then.
    public var defersCompaction: Bool
    /// The alignment of every payload in bytes, 8 or 16; `nil` for 8. 16 costs 8 bytes a page.
    public var payloadAlignment: Int?

    /// Options that let the heap choose, but for what is given.
    public init(
      byteLimit: Int? = nil, slabByteCount: Int? = nil, chunkByteCount: Int? = nil,
      lockedByteLimit: Int? = nil, offering: OfferingMode = .deferred, keepsTags: Bool = false,
      defersCompaction: Bool = false, payloadAlignment: Int? = nil
    ) {
      self.byteLimit = byteLimit
      self.slabByteCount = slabByteCount
      self.chunkByteCount = chunkByteCount
      self.lockedByteLimit = lockedByteLimit
      self.offering = offering
      self.keepsTags = keepsTags
      self.defersCompaction = defersCompaction
      self.payloadAlignment = payloadAlignment
    }
  }

  /// Makes an empty heap. No memory is mapped before the first element, but for a page of control words.
  ///
  /// - Parameters:
  ///   - options: limits and sizes.
  ///   - moved: when given, the heap compacts the first stream by itself: it copies the living out of slabs that are less than
  ///     half alive, and asks this owner to take the new reference for the old. See `Moved`.
  /// - Throws: `PurgeableError`: invalid argument (sizes that are no powers of two, out of range, or negative; a byte limit below
  ///   one slab), out of memory.
  public init(_ options: Options = Options(), moved: Moved? = nil) throws(PurgeableError) {
    // What Swift's runtime takes for the callback cannot be refused to it.
    guard MemoryReserve.isThere(MemoryReserve.ofNews) else {
      throw PurgeableError.withoutMemory(in: "PurgeableHeap.init")
    }
    for (name, value) in [
      ("byteLimit", options.byteLimit), ("slabByteCount", options.slabByteCount),
      ("chunkByteCount", options.chunkByteCount), ("lockedByteLimit", options.lockedByteLimit),
      ("payloadAlignment", options.payloadAlignment),
    ] {
      guard let value, value <= 0 else { continue }
      throw PurgeableError(
        .invalidArgument(name), in: "PurgeableHeap.init", explanation: "it has to be above 0, not \(value); nil leaves it open")
    }
    try options.checkSizes()
    let mover = moved.map(Mover.init)
    // Safe: `self` keeps the context until after the heap is destroyed.
    var code = unsafe purgeable_heap_options_t(
      byte_limit: options.byteLimit ?? 0, slab_bytes: options.slabByteCount ?? 0,
      chunk_bytes: options.chunkByteCount ?? 0, offering: options.offering.code,
      locked_byte_limit: options.lockedByteLimit ?? 0, keeps_tags: options.keepsTags, keeps_ages: false,
      moved: mover == nil ? nil : Mover.callback, context: mover.map { unsafe Unmanaged.passUnretained($0).toOpaque() },
      defers_compaction: options.defersCompaction, defers_wipes: false, fills_whole: false, place_bits: 0,
      payload_alignment_bytes: options.payloadAlignment ?? 0)
    var handle: OpaquePointer?
    let status = unsafe purgeable_heap_create(&code, &handle)
    try PurgeableError.check(
      status, in: "PurgeableHeap.init", argument: options.slabByteCount == nil ? "chunkByteCount" : "slabByteCount", call: "mmap",
      explanations: [
        Status.invalid: options.slabByteCount == nil ? "a chunk has at least 4 slabs" : "with tags a slab has 1 MiB at most"
      ])
    guard let made = unsafe handle else { stop("PurgeableHeap: the core made no heap and reported no error") }
    let slab = unsafe purgeable_heap_slab_bytes(made)
    if let limit = options.byteLimit, limit < slab {
      _ = unsafe purgeable_heap_destroy(made)
      throw Options.refused("byteLimit", "nothing could be stored within \(limit) bytes: a slab has \(slab)")
    }
    unsafe self.handle = made
    self.mover = mover
  }

  deinit { _ = unsafe purgeable_heap_destroy(handle) }

  /// The slab size in bytes that was chosen.
  public var slabByteCount: Int { unsafe purgeable_heap_slab_bytes(handle) }
}

extension PurgeableHeap.Options {
  /// What can be said of the sizes before the heap has chosen those that are left open.
  fileprivate func checkSizes() throws(PurgeableError) {
    let page = Int(purgeable_page_size_bytes())
    if let slab = slabByteCount, slab & (slab - 1) != 0 || slab < page || slab > 64 * page {
      throw Self.refused("slabByteCount", "a slab is a power of two of 1 to 64 pages of \(page) bytes, not \(slab) bytes")
    }
    if let alignment = payloadAlignment, alignment != 8, alignment != 16 {
      throw Self.refused("payloadAlignment", "payloads are aligned to 8 or 16 bytes, not \(alignment)")
    }
    if let chunk = chunkByteCount, chunk & (chunk - 1) != 0 || chunk < 4 * (slabByteCount ?? page) || chunk > 1 << 40 {
      throw Self.refused("chunkByteCount", "a chunk is a power of two of at least 4 slabs and at most 1 TiB, not \(chunk) bytes")
    }
  }

  fileprivate static func refused(_ argument: String, _ explanation: String) -> PurgeableError {
    PurgeableError(.invalidArgument(argument), in: "PurgeableHeap.init", explanation: explanation)
  }
}
