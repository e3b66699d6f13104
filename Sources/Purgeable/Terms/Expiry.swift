// SPDX-License-Identifier: MIT
// How long an entry is valid.

/// When an entry's time is over. From then on its value is not returned any more, to no one, and the entry leaves for the reason
/// `expired`: when it is looked up, when its memory is wanted for another entry, or some time later by itself.
///
///     var options = CacheOptions(byteLimit: 64 << 20)
///     options.expiry = .sinceCreation(.seconds(3600))
///     let cache = try PurgeableCache<String, [UInt8]>(options)
///     cache.setValue([1, 2, 3], forKey: "token", expiry: .sinceCreation(.seconds(60)))
///     cache.setValue([4, 5, 6], forKey: "logo", expiry: .never)
public struct Expiry: Sendable, Hashable {
  /// Time from the store on; nil: no bound. A store in place of another begins anew. More than some hundred years is no bound.
  public var sinceCreation: Duration?

  /// Without a bound: never.
  public init(sinceCreation: Duration? = nil) { self.sinceCreation = sinceCreation }

  /// A bound from the store on.
  public static func sinceCreation(_ time: Duration) -> Expiry { Expiry(sinceCreation: time) }

  /// Also where the cache has a default.
  public static let never = Expiry()

  /// The time to live in nanoseconds; `UInt64.max` for no bound.
  var lifetime: UInt64 {
    guard let time = sinceCreation?.wholeNanoseconds, time < .max / 4 else { return .max }
    return time
  }

  /// A time of 0 or less that a cache is given.
  static func check(_ expiry: Expiry?, in operation: @autoclosure () -> String) throws(PurgeableError) {
    try LimitCheck.time(expiry?.sinceCreation, "expiry", in: operation())
  }
}

extension Expiry: CustomStringConvertible {
  /// In a few words.
  public var description: String { sinceCreation.map { "\($0) since creation" } ?? "never" }
}
