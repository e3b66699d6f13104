// SPDX-License-Identifier: MIT
// The state that a PurgeableData's mutex guards: the counter, and the place of the bytes.
//
//            begin: 0 to 1, locks the region            change while nobody reads: in place
//   idle  <------------------------------------>  used ------------------------------------
//            end: 1 to 0, unlocks the region            change while somebody reads, or no room: new storage, the old
//                                                       one lives, locked, until its last reader returns it

import CPurgeable

extension PurgeableData {
  /// A region that the object and its readers share. The region is locked once for as long as accesses are counted.
  final class Storage: Sendable {
    let region: PurgeableRegion

    /// Whole pages for at least `capacity` bytes, all zeros, locked for writing once.
    static func make(capacity: Int, offering: OfferingMode) throws(PurgeableError) -> Storage {
      // The object is the runtime's, which ends the program where it gets no memory for it.
      guard MemoryReserve.isThere(MemoryReserve.ofNews) else { throw PurgeableError.withoutMemory(in: "PurgeableData") }
      return try Storage(capacity: capacity, offering: offering)
    }

    private init(capacity: Int, offering: OfferingMode) throws(PurgeableError) {
      let page = purgeable_page_size_bytes()
      guard capacity <= Int.max - page else {
        throw PurgeableError(
          .tooLarge, in: "PurgeableData.init", explanation: "\(capacity) bytes are more than the address space")
      }
      let pages = max(capacity, 1) + page - 1
      region = try PurgeableRegion(lockedWithByteCount: pages - pages % page, offering: offering)
    }

    var capacity: Int { region.byteCount }
  }

  /// The owner of an access: callers who begin and end, or a function that does both.
  enum Holder { case caller, function }

  /// A reader's share of the bytes, and the state to return at its end.
  struct Lease: Sendable {
    let storage: Storage
    let count: Int
    let epoch: Int
  }

  struct Content: Sendable {
    var storage: Storage
    var count: Int
    /// Accesses that callers began and have not ended. Born with 1.
    var callers = 1
    /// Accesses of functions at work; kept apart, so that a caller's end too many cannot take one of them away.
    var functions = 0
    /// How many leases of `storage` are out. While there are any, its bytes do not change.
    var readers = 0
    /// The thread that is changing the content or making it anew, 0 for none. While there is one, no lease is given.
    var changer: UInt = 0
    /// Counts forks: an access begun before a fork is not ended after it.
    var epoch = 0
    var unbalancedEnds = 0
    /// How often making the content anew has failed, for threads that waited for it.
    var failedRemakes = 0
    /// Threads that make the content anew, or wait for the one that does.
    var remakers = 0

    init(storage: Storage, count: Int) {
      self.storage = storage
      self.count = count
    }

    var accesses: Int { callers + functions }

    /// Counts an access; false when the content is discarded.
    mutating func begin(_ holder: Holder) -> Bool {
      settleFork()
      if accesses == 0, !storage.region.lock() { return false }
      switch holder {
      case .caller: callers += 1
      case .function: functions += 1
      }
      return true
    }

    /// Gives a lease of the bytes; while there is an access and nobody changes.
    mutating func lend() -> Lease {
      readers += 1
      return Lease(storage: storage, count: count, epoch: epoch)
    }

    /// Uncounts a function's access. Answers whether that left something to offer.
    mutating func endFunction() -> Bool {
      functions -= 1
      return accesses == 0 && storage.region.unlockQuietly()
    }

    /// Puts new storage, born locked, in the place of discarded or unused content, as one access. Returns the old one, to be let
    /// go outside of the mutex: that is a system call.
    mutating func install(_ fresh: Storage, count: Int, for holder: Holder) -> Storage {
      assert(accesses == 0 && fresh.region.lockCount == 1)
      defer { storage = fresh }
      self.count = count
      readers = 0
      (callers, functions) = holder == .caller ? (1, 0) : (0, 1)
      return storage
    }

    // The region is locked for as long as accesses are counted, and nobody else unlocks it but a fork: then this is the child,
    // the accesses were the parent's, and the region says discarded.
    mutating func settleFork() {
      guard accesses > 0, storage.region.lockCount == 0 else { return }
      (callers, functions, readers) = (0, 0, 0)
      epoch += 1
    }
  }
}
