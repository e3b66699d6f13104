// SPDX-License-Identifier: MIT
// How long an entry is valid.

import Synchronization

/// When an entry's time is over. From then on its value is not returned any more, to no one, and the entry leaves for the reason
/// `expired`: when it is looked up, when its memory is wanted for another entry, or some time later by itself.
///
///     var options = CacheOptions(byteLimit: 64 << 20)
///     options.expiry = .sinceCreation(.seconds(3600))
///     let cache = try PurgeableCache<String, [UInt8]>(options)
///     cache.setValue([1, 2, 3], forKey: "token", expiry: .sinceCreation(.seconds(60)))
///     cache.setValue([4, 5, 6], forKey: "logo", expiry: .never)
public struct Expiry: Sendable, Hashable {
  /// Time from the store on; nil: no bound. A store in place of another begins anew. More than some 146 years is no bound.
  public var sinceCreation: Duration?

  /// Time from the last hit or store on; nil: no bound. An entry of a cache of bytes may go up to 10 ms early, none goes
  /// late. What is no use does not prolong it: peeks, `containsValue(forKey:)`, enumerations, snapshots. More than
  /// some 248 days is no bound. Cost in a cache of bytes: 9 bytes more an entry on purgeable pages, and some 5 bytes in ordinary
  /// memory for each entry of a cache that has such entries.
  public var sinceLastUse: Duration?

  /// Whichever bound comes first. Without one: never.
  public init(sinceCreation: Duration? = nil, sinceLastUse: Duration? = nil) {
    (self.sinceCreation, self.sinceLastUse) = (sinceCreation, sinceLastUse)
  }

  /// A bound from the store on.
  public static func sinceCreation(_ time: Duration) -> Expiry { Expiry(sinceCreation: time) }

  /// A bound from the last use on.
  public static func sinceLastUse(_ time: Duration) -> Expiry { Expiry(sinceLastUse: time) }

  /// Also where the cache has a default.
  public static let never = Expiry()

  /// A value of it is refused.
  package var isOver: Bool { lifetime.isOver }

  @usableFromInline var lifetime: Lifetime {
    Lifetime(
      sinceCreation: sinceCreation.map(Self.nanoseconds).flatMap { $0 < .max / 4 ? $0 : nil },
      sinceLastUse: sinceLastUse.map(Self.nanoseconds).flatMap { $0 < Lifetime.longestSinceLastUse ? $0 : nil })
  }

  /// 0 only for what is over when it begins.
  private static func nanoseconds(_ time: Duration) -> UInt64 { time > .zero ? max(1, time.wholeNanoseconds) : 0 }

  /// A time of 0 or less that a cache is given.
  static func check(_ expiry: Expiry?, in operation: @autoclosure () -> String) throws(PurgeableError) {
    try LimitCheck.time(expiry?.sinceCreation, "expiry", in: operation())
    try LimitCheck.time(expiry?.sinceLastUse, "expiry", in: operation())
  }
}

extension Expiry {
  /// nil for ever.
  init?(_ lifetime: Lifetime) {
    if lifetime == Lifetime() { return nil }
    func time(_ nanoseconds: UInt64) -> Duration { .nanoseconds(Int64(clamping: nanoseconds)) }
    self.init(sinceCreation: lifetime.sinceCreation.map(time), sinceLastUse: lifetime.sinceLastUse.map(time))
  }
}

/// A cache's default, which may change while others read it. The two bounds are not read at one moment.
struct SharedLifetime: ~Copyable, Sendable {
  /// `UInt64.max` for no bound.
  private let sinceCreation: Atomic<UInt64>
  private let sinceLastUse: Atomic<UInt64>

  init(_ expiry: Expiry?) {
    sinceCreation = Atomic(expiry?.lifetime.sinceCreation ?? .max)
    sinceLastUse = Atomic(expiry?.lifetime.sinceLastUse ?? .max)
  }

  var value: Lifetime {
    get {
      let (creation, use) = (sinceCreation.load(ordering: .relaxed), sinceLastUse.load(ordering: .relaxed))
      return Lifetime(sinceCreation: creation == .max ? nil : creation, sinceLastUse: use == .max ? nil : use)
    }
    nonmutating set {
      sinceCreation.store(newValue.sinceCreation ?? .max, ordering: .relaxed)
      sinceLastUse.store(newValue.sinceLastUse ?? .max, ordering: .relaxed)
    }
  }
}

extension LoadTerms {
  @usableFromInline
  init(
    _ version: String?, _ expiry: Expiry?, _ absenceTime: Duration? = nil, _ refreshTime: Duration? = nil, begun: UInt64? = nil
  ) {
    self.init(keepingNilFor: absenceTime)
    (self.version, self.begun) = (version, begun)
    self.refreshTime = refreshTime?.wholeNanoseconds
    lifetime = expiry?.lifetime
  }
}

extension Expiry: CustomStringConvertible {
  /// In a few words.
  public var description: String {
    let bounds = [sinceCreation.map { "\($0) since creation" }, sinceLastUse.map { "\($0) since last use" }]
    let text = bounds.compactMap(\.self).joined(separator: ", ")
    return text.isEmpty ? "never" : text
  }
}
