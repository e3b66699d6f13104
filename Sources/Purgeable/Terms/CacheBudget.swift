// SPDX-License-Identifier: MIT
// Limits as a program gives them.

/// Checks limits, at creation and when they are set later.
enum LimitCheck {
  static func limit(_ limit: Int?, _ label: String, in operation: @autoclosure () -> String) throws(PurgeableError) {
    guard let limit, limit < 0 else { return }
    throw PurgeableError(
      .invalidArgument(label), in: operation(), explanation: "a limit is nil or at least 0, not \(limit)")
  }

  /// What costs may add up to; `.max` for no limit, as `Int.max` is none: no sum counts as more.
  static func ofCosts(_ limit: Int?) -> UInt64 { limit.map { $0 == .max ? .max : UInt64($0) } ?? .max }

  static func share(_ share: Double?, _ label: String, in operation: @autoclosure () -> String) throws(PurgeableError) {
    guard let share, !(share > 0 && share <= 1) else { return }
    throw PurgeableError(
      .invalidArgument(label), in: operation(), explanation: "a share is above 0 and at most 1, not \(share)")
  }

  static func time(_ time: Duration?, _ label: String, in operation: @autoclosure () -> String) throws(PurgeableError) {
    guard let time, time <= .zero else { return }
    throw PurgeableError(.invalidArgument(label), in: operation(), explanation: "a time is above 0, not \(time)")
  }
}

/// The settings from which a cache's byte limit, locked limit and idle time follow.
struct CacheBudget: Sendable {
  /// A share of the group's limit or of the machine's memory, whichever is smaller; nil for no share.
  var memoryShare: Double?
  /// The program's byte limit, nil for none.
  var byteLimit: Int?
  /// Whether `byteLimit` is the one that a cache sets itself where the kernel discards nothing.
  var isDefault = false
  /// The most bytes that may be locked at a time; nil for half the memory.
  var lockedByteLimit: Int?
  /// The most payload to be pinned; nil for an eighth of the memory.
  var pinnedByteLimit: Int?
  /// What stays off offer; nil for nothing.
  var core: CacheCore?
  /// How long an entry may go unused before it is given back; nil for ever.
  var idleNanoseconds: UInt64?

  /// An idle time in nanoseconds: a millisecond at least.
  static func nanoseconds(_ time: Duration) -> UInt64 { max(1_000_000, time.wholeNanoseconds) }

  /// The smaller of limit and share, `Int.max` for none, and the memory of which it is a share.
  var byteLimitInForce: (limit: Int, memory: UInt64?) {
    let limit = byteLimit ?? .max
    guard let share = memoryShare else { return (limit, nil) }
    let memory = ProcessMemory.limit()
    // A share above 0 is a limit, however small: only 0 admits nothing.
    return (min(limit, max(share > 0 ? 1 : 0, Int(Double(memory) * share))), memory)
  }
}
