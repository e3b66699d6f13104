// SPDX-License-Identifier: MIT
// How a cache is made, as a value.

import Synchronization

/// How a cache is made: a value that can be kept, varied, printed and passed on. What can be changed later has a function
/// `set...` on the cache.
///
///     var options = CacheOptions(name: "pages", memoryShare: 0.25)
///     options.idleTime = .seconds(600)
///     let pages = try PurgeableCache<String, [UInt8]>(options)
///
/// `PurgeableCache.init` says what the options mean for bytes, `ObjectCache.init(_:onDeparture:)` what they mean for objects.
public struct CacheOptions: Sendable {
  /// For people.
  public var name: String
  /// The most entries; nil: no limit, as for all limits that do not say otherwise.
  public var countLimit: Int?
  /// The most that the entries' costs may add up to. A cost that is not given is the number of the value's bytes, in a cache of
  /// objects what `costOfValue` finds, or 0; a negative one counts as 0.
  public var costLimit: Int?
  /// The most bytes to hold, slabs and bookkeeping together.
  public var byteLimit: Int?
  /// A byte limit as a share of the memory that limits this process, above 0 and up to 1.
  public var memoryShare: Double?
  /// The most payload to have locked at a time; nil: half the memory. For caches of bytes.
  public var lockedByteLimit: Int?
  /// The most payload to be pinned (`EntryPriority`); nil: an eighth of the memory. For caches of bytes.
  public var pinnedByteLimit: Int?
  /// Give back entries that were not read for this long; nil: never.
  public var idleTime: Duration?
  /// How long entries are valid that are stored without an expiry of their own; nil: for ever.
  public var expiry: Expiry?
  /// What stays off offer while there is room beside it; nil: nothing. For caches of bytes.
  public var core: CacheCore?
  /// Which entry goes first. For caches of bytes; caches of objects are exactly least recently used.
  public var evictionOrder = EvictionOrder.s3FIFO
  /// Keep keys in ordinary memory, where the kernel cannot take them, as `onDeparture` implies. Caches of objects always do.
  public var tracksKeys = false
  /// Whether an entry leaves when its content is found discarded. False: it stays. A cache of objects still returns the object
  /// then; a cache of bytes says `MissReason.discarded`, and tracks its keys.
  public var evictsEntriesWithDiscardedContent = true
  /// The most values that are loaded anew at a time (`refreshAfter`), so that many that are due at once, as after a restart
  /// from a file, are no burst on what they come from. A hit beyond it returns the old value and begins no load; a later one
  /// does.
  public var refreshLimit = 64
  /// What times are measured by, but for the intervals of deciders, changes and saves; nil: the monotonic clock. Read from any
  /// thread, and under mutexes of the cache: it must not use the cache, nor, in a program that forks, a mutex of its own.
  public var clock: (any Clock<Duration>)?

  /// No limits but those given.
  public init(
    name: String = "cache", countLimit: Int? = nil, costLimit: Int? = nil, byteLimit: Int? = nil, memoryShare: Double? = nil
  ) {
    (self.name, self.countLimit, self.costLimit) = (name, countLimit, costLimit)
    (self.byteLimit, self.memoryShare) = (byteLimit, memoryShare)
  }

  /// What any cache refuses.
  func check(in operation: String) throws(PurgeableError) {
    try LimitCheck.limit(countLimit, "countLimit", in: operation)
    try LimitCheck.limit(costLimit, "costLimit", in: operation)
    try LimitCheck.limit(byteLimit, "byteLimit", in: operation)
    try LimitCheck.limit(lockedByteLimit, "lockedByteLimit", in: operation)
    try LimitCheck.limit(pinnedByteLimit, "pinnedByteLimit", in: operation)
    try LimitCheck.limit(refreshLimit, "refreshLimit", in: operation)
    try LimitCheck.share(memoryShare, "memoryShare", in: operation)
    try LimitCheck.time(idleTime, "idleTime", in: operation)
    try Expiry.check(expiry, in: operation)
    try CacheCore.check(core, in: operation)
  }

  var monotonicClock: MonotonicClock { clock.map { MonotonicClock($0) } ?? .system }
}

extension CacheOptions: CustomStringConvertible {
  /// The name, and what differs from the default, in one line.
  public var description: String {
    var parts = ["CacheOptions \"\(name)\""]
    func add(_ label: String, _ value: Any?) { if let value { parts.append("\(label) \(value)") } }
    add("countLimit", countLimit)
    add("costLimit", costLimit)
    add("byteLimit", byteLimit)
    add("memoryShare", memoryShare)
    add("lockedByteLimit", lockedByteLimit)
    add("pinnedByteLimit", pinnedByteLimit)
    add("idleTime", idleTime)
    add("expiry", expiry)
    add("core", core)
    add("evictionOrder", evictionOrder == .s3FIFO ? nil : evictionOrder)
    add("tracksKeys", tracksKeys ? true : nil)
    add("evictsEntriesWithDiscardedContent", evictsEntriesWithDiscardedContent ? nil : false)
    add("refreshLimit", refreshLimit == 64 ? nil : refreshLimit)
    add("clock", clock)
    return parts.joined(separator: ", ")
  }
}

extension MonotonicClock {
  /// By a clock of the program's. It begins at a second, since 0 stands for never in places; a clock that goes back stands still.
  init(_ clock: some Clock<Duration>) {
    let (start, latest) = (clock.now, LatestMoment())
    self.init { latest.note(1_000_000_000 + start.duration(to: clock.now).wholeNanoseconds) }
  }
}

private final class LatestMoment: Sendable {
  private let latest = Atomic<UInt64>(0)

  /// The latest of all moments that were noted.
  func note(_ moment: UInt64) -> UInt64 { latest.max(moment, ordering: .relaxed).newValue }
}
