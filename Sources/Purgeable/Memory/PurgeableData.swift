// SPDX-License-Identifier: MIT
// Bytes that may be discarded while nobody uses them: the NSPurgeableData of this library.

/// Bytes that stay while they are used and that the kernel may take while they are not.
///
/// ```swift
/// let page = try PurgeableData(bytes, name: "page 7")           // born with an access count of 1
/// page.endContentAccess()                                       // the kernel may take it now
/// if page.beginContentAccess() {                                // false: discarded
///   print(page.count)
///   page.endContentAccess()
/// }
/// page.withBytes { send($0) }                                   // nil: discarded; begins and ends by itself
/// let head = try page.bytes(in: 0..<2)                          // so does this, and copies
/// ```
///
/// It has NSPurgeableData's rules (see `DiscardableContent`): born with 1, discarded only at 0, discarded until refilled. Bytes
/// and length are out of reach without access: what needs one that somebody has begun (length, room, every change) stops the
/// program where nobody has, in every build, with one message that names the object. What begins an access by itself needs
/// none: `withBytes`, `bytes(in:)`, `copy()`, `==`, encoding, and `Data(content)` of PurgeableFoundation. Where the content is
/// discarded these answer `nil`, `false`, or an `EncodingError`.
///
/// **As a value.** Objects are equal where their bytes are. They are no keys of sets and dictionaries, because content changes
/// and goes: the compiler refuses that with this reason.
///
/// **Who excludes whom.** Every function may be called from any thread. Changes happen one after the other. Any number of
/// `withBytes` closures may run at once, also beside a change: they keep the bytes they began with, because the change is then
/// made to a copy. A `withBytes` that begins while a change is at work waits for it. So closures that change or make anew must
/// not wait for one another's objects crosswise: each would wait for the other for ever. Beginning, ending, discarding and asking
/// never wait for a closure, except that an access to discarded content waits while another thread makes it anew.
///
/// **Memory.** The bytes lie in whole pages of a `PurgeableRegion`, at least one, also when empty. Appending beyond them takes a
/// new region of twice the size, from 1 MiB on a quarter larger, and copies; what is untouched of it is address space and not
/// memory. Content that shrinks to a quarter of its region or less moves to a smaller one.
///
/// **Fork.** A forked child finds the content discarded and the counter at 0, also where it was in use at that moment. Like every
/// object with a mutex it can be used there only if no other thread was inside one of its functions at the moment of the fork.
///
/// For content that never changes its size and has one owner, `PurgeableRegion` is lighter; for many small pieces,
/// `PurgeableHeap`.
public final class PurgeableData: DiscardableContent {
  /// Makes discarded content anew: all of its bytes, or `nil` when that is not possible now.
  ///
  /// Called by whoever begins an access to discarded content, on that thread, one call at a time, outside of the mutex that
  /// guards the counter. Those who wait for a call share what it made; where it fails they are told that the content is
  /// discarded, and the next to begin calls again. Beginning an access to the same object from within it answers false.
  public typealias Recreate = @Sendable () throws -> [UInt8]?

  /// What messages call this object; may be empty.
  public let name: String

  /// When the bytes are offered to the kernel after the last end of an access.
  public let offering: OfferingMode

  let recreate: Recreate?

  // Counter, place and length; held for a few instructions, never while a caller's closure runs.
  let content: Guarded<Content>

  // Held by the one who changes or makes anew, closures included; always taken before `content`.
  let turn = Guarded<Void>(())

  /// Makes an object of zeros, empty unless told otherwise, with an access count of 1.
  ///
  /// - Parameters:
  ///   - byteCount: how many zeros.
  ///   - capacity: room for how many bytes to begin with; more when `byteCount` is.
  ///   - name: what messages call it.
  ///   - offering: when the bytes are offered to the kernel after the last end of an access.
  ///   - recreate: makes discarded content anew when an access begins; without it, discarded content stays so until
  ///     `refill(with:)`.
  /// - Throws: `PurgeableError`: invalid argument (negative), too large, out of memory.
  /// - Complexity: no system call while a shared chunk of the core has room.
  public init(
    byteCount: Int = 0, capacity: Int = 0, name: String = "", offering: OfferingMode = .deferred, recreate: Recreate? = nil
  ) throws(PurgeableError) {
    for (label, value) in [("byteCount", byteCount), ("capacity", capacity)] where value < 0 {
      throw PurgeableError(.invalidArgument(label), in: "PurgeableData.init", explanation: "\(value) is below 0")
    }
    let storage = try Storage.make(capacity: max(byteCount, capacity), offering: offering)
    self.name = name
    self.offering = offering
    self.recreate = recreate
    content = Guarded(Content(storage: storage, count: byteCount))
  }

  /// Makes an object that holds a copy of the bytes, with an access count of 1.
  ///
  /// Parameters and errors as `init(byteCount:capacity:name:offering:recreate:)`.
  public convenience init(
    _ bytes: RawSpan, name: String = "", offering: OfferingMode = .deferred, recreate: Recreate? = nil
  ) throws(PurgeableError) {
    try self.init(capacity: bytes.byteCount, name: name, offering: offering, recreate: recreate)
    try append(bytes)
  }

  /// Makes an object that holds a copy of a collection's bytes, with an access count of 1.
  ///
  /// Parameters and errors as `init(byteCount:capacity:name:offering:recreate:)`.
  public convenience init(
    _ bytes: some Collection<UInt8>, name: String = "", offering: OfferingMode = .deferred, recreate: Recreate? = nil
  ) throws(PurgeableError) {
    try self.init(capacity: bytes.count, name: name, offering: offering, recreate: recreate)
    try append(contentsOf: bytes)
  }
}
