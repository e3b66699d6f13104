// SPDX-License-Identifier: MIT
// The slab heap as the cache sees it: streams as sequences of slabs, slabs as sequences of elements. Nearly every function here
// is one call of the core.

import CPurgeable

extension purgeable_slab_t {
  /// No slab: generations begin at 1.
  static var none: purgeable_slab_t { purgeable_slab_t(index: 0, generation: 0) }

  var isNone: Bool { generation == 0 }

  func isSame(as other: purgeable_slab_t) -> Bool { index == other.index && generation == other.generation }
}

/// The state of a slab at the moment it was asked for.
typealias SlabInformation = purgeable_slab_information_t

/// `@unchecked Sendable`: all of the heap's functions may be called from any thread. `CacheBase` destroys the heap, when nothing
/// else uses it any more.
@safe struct SlabHeap: @unchecked Sendable {
  let raw: OpaquePointer
  let slabBytes: Int
  /// A place counts granules of 16 bytes. Shifted right by so many bits, it is the index of its slab.
  let slabPlaceShift: UInt64
  let streams: QueueStreams
  /// Slabs of no shard: of large elements that are being written (Engine/LargeStore.swift), and those that are about to go back
  /// (Shard/Removal.swift).
  let writingStream: purgeable_stream_t
  let removedStream: purgeable_stream_t

  /// Header and padding of an element.
  static let elementOverhead = 16
  static let granuleBytes = 16

  /// Makes a heap for a cache with this byte limit, `Int.max` for none, and its streams. nil when there is no memory or no
  /// address space.
  static func make(forBytes limit: Int) -> SlabHeap? {
    var options = unsafe purgeable_heap_options_t()
    let page = Int(purgeable_page_size_bytes())
    let slabPages = limit < 4 << 20 ? 4 : limit >= 1 << 30 && limit != .max ? 64 : 16
    // A place in a slab has 16 bits, in granules.
    let slabBytes = min(slabPages * page, granuleBytes << 16)
    unsafe options.slab_bytes = slabBytes
    unsafe options.keeps_ages = true
    // Elements are freed under a shard's mutex (`CacheShards.hold`).
    unsafe options.defers_wipes = true
    // Prefix, cost and value are the whole of an element.
    unsafe options.fills_whole = true
    // A slot has no room for larger places.
    unsafe options.place_bits = Slot.placeBits
    if limit < 64 << 20 {
      var chunk = 64 << 20
      while chunk / 4 >= limit, chunk / 2 >= 16 * slabBytes { chunk /= 2 }
      unsafe options.chunk_bytes = chunk
    }
    var made: OpaquePointer?
    guard unsafe purgeable_heap_create(&options, &made) == 0, let raw = unsafe made else { return nil }
    // Streams are only numbers, so those that any cache needs are made now.
    var (first, stream): (purgeable_stream_t, purgeable_stream_t) = (0, 0)
    for number in 0..<QueueStreams.firstCount + QueueStreams.foreignCount {
      guard unsafe purgeable_stream_create(raw, &stream) == 0 else {
        unsafe purgeable_heap_destroy(raw)
        return nil
      }
      if number == 0 { first = stream }
      assert(stream == first + purgeable_stream_t(number), "PurgeableCache: streams are not numbered in a row")
    }
    return unsafe SlabHeap(
      raw: raw, slabBytes: slabBytes, slabPlaceShift: UInt64((slabBytes / granuleBytes).trailingZeroBitCount),
      streams: QueueStreams(from: first), writingStream: stream - 1, removedStream: stream)
  }

  /// Makes another stream. nil without memory.
  func makeStream() -> purgeable_stream_t? {
    var stream: purgeable_stream_t = 0
    return unsafe purgeable_stream_create(raw, &stream) == 0 ? stream : nil
  }

  /// Nothing of the stream goes on offer from now on.
  func withhold(_ stream: purgeable_stream_t) { _ = unsafe purgeable_stream_withhold(raw, stream, true) }

  /// Keeps a slab off offer, or lets it go there.
  func withhold(_ slab: purgeable_slab_t, _ withholds: Bool) { _ = unsafe purgeable_slab_withhold(raw, slab, withholds) }

  /// A value of this length or more is copied under no mutex (Engine/LargeStore.swift): it has a slab of its own, and to copy it
  /// takes far longer than to take a mutex once more.
  var largeByteCount: Int { max(128 << 10, slabBytes) }

  // MARK: Places

  var granulesPerSlab: UInt64 { 1 &<< slabPlaceShift }
  static var granulesPerPage: UInt64 { UInt64(purgeable_page_size_bytes()) / UInt64(granuleBytes) }

  /// The slab that a place lies in.
  @inline(__always) func slab(of reference: purgeable_reference_t) -> purgeable_slab_t {
    purgeable_slab_t(
      index: UInt32(truncatingIfNeeded: reference.place &>> slabPlaceShift),
      generation: UInt32(truncatingIfNeeded: reference.generation))
  }

  /// The place where a slab begins.
  func start(of slab: purgeable_slab_t) -> UInt64 { UInt64(slab.index) &<< slabPlaceShift }

  /// The places where the pages of a slab begin.
  func pages(of slab: purgeable_slab_t) -> StrideTo<UInt64> {
    let start = start(of: slab)
    return stride(from: start, to: start + granulesPerSlab, by: Int(Self.granulesPerPage))
  }

  @inline(__always) func generation(at place: UInt64) -> UInt32 { unsafe purgeable_heap_generation(raw, place) }

  /// A reference to the element at a place, valid as long as its slab is not given back.
  @inline(__always) func reference(_ place: UInt64) -> purgeable_reference_t {
    purgeable_reference_t(place: place, generation: UInt64(generation(at: place)))
  }

  func queue(at place: UInt64) -> EvictionQueue { streams.queue(of: unsafe purgeable_heap_stream_at(raw, place)) }
  func lane(at place: UInt64) -> Lane { streams.lane(of: unsafe purgeable_heap_stream_at(raw, place)) }

  // MARK: Slabs of a stream

  func oldest(of stream: purgeable_stream_t) -> purgeable_slab_t? {
    var slab = purgeable_slab_t.none
    return unsafe purgeable_stream_oldest(raw, stream, &slab) == 0 ? slab : nil
  }

  func youngest(of stream: purgeable_stream_t) -> purgeable_slab_t? {
    var slab = purgeable_slab_t.none
    return unsafe purgeable_stream_youngest(raw, stream, &slab) == 0 ? slab : nil
  }

  /// The next younger slab; nil at the end, and when this slab is gone.
  func next(after slab: purgeable_slab_t) -> purgeable_slab_t? {
    successor(of: slab).slab
  }

  /// The slabs of a stream from the oldest to the youngest. The successor of a slab is looked up before the slab is returned, so
  /// the caller may give the slab back or move it to another stream.
  func slabs(of stream: purgeable_stream_t) -> StreamSlabs { StreamSlabs(heap: self, following: oldest(of: stream)) }

  /// The bytes of large elements that are being written. Less, or a little more, where another thread ends writing meanwhile.
  var writingBytes: Int {
    var byteCount = 0
    for slab in slabs(of: writingStream) {
      guard let information = information(slab), information.stream == writingStream else { break }
      byteCount += Int(information.held_bytes)
    }
    return byteCount
  }

  /// The next slab that has elements, after one that has some or, for nil, from the oldest on; nil at the end. For whoever must
  /// miss none: an empty slab that was locked ends with its last unlock, at any moment, and leads nowhere then. Where the given
  /// slab itself has ended, begins with the oldest again.
  func nextInUse(after slab: purgeable_slab_t?, of stream: purgeable_stream_t) -> purgeable_slab_t? {
    var start = slab
    while true {
      var (at, hasEnded) = start.map(successor) ?? (oldest(of: stream), false)
      if hasEnded { start = nil }
      while let candidate = at, let information = information(candidate) {
        if information.element_count > 0 { return candidate }
        (at, hasEnded) = successor(of: candidate)
        if hasEnded { break }
      }
      // Ended between two looks: once more.
      if at == nil, !hasEnded { return nil }
    }
  }

  /// The next younger slab, nil at the end; or that the slab has ended.
  private func successor(of slab: purgeable_slab_t) -> (slab: purgeable_slab_t?, hasEnded: Bool) {
    var next = purgeable_slab_t.none
    let status = unsafe purgeable_slab_next(raw, slab, &next)
    return (status == 0 ? next : nil, status != 0 && status != Status.noEntry)
  }

  /// The state of a slab now; nil when it was given back.
  func information(_ slab: purgeable_slab_t) -> SlabInformation? {
    var information = SlabInformation()
    return unsafe purgeable_slab_information(raw, slab, &information) == 0 ? information : nil
  }

  /// Seals the open slab of a stream.
  func seal(_ stream: purgeable_stream_t) { _ = unsafe purgeable_stream_seal(raw, stream) }

  /// Moves a slab to the young end of a stream, which may be its own. False when it is open or gone.
  @discardableResult
  func move(_ slab: purgeable_slab_t, to stream: purgeable_stream_t) -> Bool {
    unsafe purgeable_slab_restream(raw, slab, stream) == 0
  }

  /// Moves a slab to the old end of a stream, which may be its own. False when it is open or gone.
  func moveToOldEnd(_ slab: purgeable_slab_t, of stream: purgeable_stream_t) -> Bool {
    unsafe purgeable_slab_restream_oldest(raw, slab, stream) == 0
  }

  /// Frees all elements of a slab.
  func freeElements(of slab: purgeable_slab_t) { _ = unsafe purgeable_slab_free_elements(raw, slab, nil) }

  /// Gives back a slab without living elements; where it is locked, at the last unlock. False when elements live in it, or when
  /// it is gone already.
  @discardableResult
  func giveBack(_ slab: purgeable_slab_t) -> Bool { unsafe purgeable_slab_give_back(raw, slab) == 0 }

  /// As `giveBack`, but true also when the slab went back with its last element already.
  func giveBackAny(_ slab: purgeable_slab_t) -> Bool { giveBack(slab) || information(slab) == nil }

  /// Notes the ages of a slab's first and last elements; 0 leaves an age as it is.
  func noteAge(of slab: purgeable_slab_t, first: UInt64, last: UInt64) {
    _ = unsafe purgeable_slab_note_age(raw, slab, first, last)
  }

  // MARK: Elements

  /// The next living element of a slab; nil at the end, and when the slab was given back. The core prefetches the header after
  /// it.
  func nextElement(of slab: purgeable_slab_t, _ cursor: inout UInt32) -> purgeable_reference_t? {
    var reference = purgeable_reference_t(place: 0, generation: 0)
    return unsafe purgeable_slab_next_element(raw, slab, &cursor, &reference) == 0 ? reference : nil
  }

  @inline(__always) func commit(_ reference: purgeable_reference_t) { _ = unsafe purgeable_heap_commit(raw, reference) }
  @inline(__always) func free(_ reference: purgeable_reference_t) { _ = unsafe purgeable_heap_free(raw, reference) }

  /// Locks an element for the caller to unlock.
  func lock(_ reference: purgeable_reference_t) -> (outcome: purgeable_outcome_t, payload: UnsafeRawBufferPointer) {
    var bytes: UnsafeRawPointer?
    var length = 0
    let outcome = unsafe purgeable_heap_lock(raw, reference, &bytes, &length)
    return unsafe (outcome, UnsafeRawBufferPointer(start: bytes, count: outcome == .intact ? length : 0))
  }

  func unlock(_ reference: purgeable_reference_t) { _ = unsafe purgeable_heap_unlock(raw, reference) }

  /// Memory for a payload, or an error number. `limit`: of the charged bytes, 0 for none.
  @inline(__always) func allocate(
    _ byteCount: Int, in stream: purgeable_stream_t, limit: Int
  ) -> (errorNumber: Int32, reference: purgeable_reference_t, bytes: UnsafeMutableRawBufferPointer) {
    var reference = purgeable_reference_t(place: 0, generation: 0)
    var bytes: UnsafeMutableRawPointer?
    let error = unsafe purgeable_heap_allocate_within(raw, stream, byteCount, 0, limit, &reference, &bytes)
    return unsafe (error, reference, UnsafeMutableRawBufferPointer(start: bytes, count: error == 0 ? byteCount : 0))
  }

  func prefetch(_ place: UInt64) { unsafe purgeable_heap_prefetch(raw, place) }

  // MARK: What the kernel took

  /// Whether the page of a place is known to be lost.
  func isLost(_ place: UInt64) -> Bool { unsafe purgeable_heap_page_is_lost(raw, place) }
  func isOnOffer(_ place: UInt64) -> Bool { unsafe purgeable_heap_is_on_offer(raw, place) }
  var hasLosses: Bool { unsafe purgeable_heap_has_losses(raw) }

  /// Searches the slots from `cursor` on for those whose pages are known to be lost, and notes their numbers in `found`. Returns
  /// how many. The heap takes a place from a slot's lowest bits.
  func findLosses(_ slots: SlotPointer, _ slotCount: Int, _ cursor: inout Int, _ found: inout InlineArray<256, UInt32>) -> Int {
    var numbers = found.mutableSpan
    // In bounds: the sizes of both are given.
    return unsafe numbers.withUnsafeMutableBufferPointer { buffer in
      unsafe purgeable_heap_find_losses(
        raw, slots.raw, slotCount, Slot.placeBits, &cursor, buffer.baseAddress!, buffer.count)
    }
  }

  /// Finds out which pages are lost.
  func findLosses() { _ = unsafe purgeable_heap_sweep(raw, nil) }

  // MARK: As a whole

  var heldBytes: Int { unsafe Int(purgeable_heap_held_bytes(raw)) }
  var chargedBytes: Int { unsafe Int(purgeable_heap_charged_bytes(raw)) }
  var ordinaryBytes: Int { unsafe Int(purgeable_heap_ordinary_bytes(raw)) }
  var givenBackBytes: Int { unsafe Int(purgeable_heap_given_back_bytes(raw)) }
  var hasPending: Bool { unsafe purgeable_heap_has_pending(raw) }
  /// Whether some slab was kept off offer for long. Says so once.
  func takeBusy() -> Bool { unsafe purgeable_heap_take_busy(raw) }

  /// 0 for no limit. What the heap keeps for the next slab stays below it; allocations have a limit of their own.
  func setLimit(_ byteCount: Int) { _ = unsafe purgeable_heap_set_byte_limit(raw, byteCount) }
  func setLockedLimit(_ byteCount: Int) { _ = unsafe purgeable_heap_set_locked_byte_limit(raw, byteCount) }

  /// Offers what is idle; returns how many bytes.
  func offerIdle() -> Int {
    var byteCount = 0
    _ = unsafe purgeable_heap_offer_idle(raw, &byteCount)
    return byteCount
  }

  /// Gives back empty slabs.
  func trim() { _ = unsafe purgeable_heap_trim(raw, nil) }

  /// Runs `body`. The slabs that it gives back are wiped together, so that neighbours go back in one call to the kernel.
  func givingBackTogether<R>(_ body: () -> R) -> R {
    unsafe purgeable_heap_begin_giving_back(raw)
    defer { unsafe purgeable_heap_end_giving_back(raw) }
    return body()
  }

  /// Called with no mutex held: gives back the memory of slabs that ended under a shard's mutex.
  @inline(__always) func wipeDeferred() { unsafe purgeable_heap_wipe_deferred(raw) }

  func destroy() { unsafe purgeable_heap_destroy(raw) }
}

struct StreamSlabs: Sequence, IteratorProtocol {
  fileprivate let heap: SlabHeap
  fileprivate var following: purgeable_slab_t?

  mutating func next() -> purgeable_slab_t? {
    guard let slab = following else { return nil }
    following = heap.next(after: slab)
    return slab
  }
}
