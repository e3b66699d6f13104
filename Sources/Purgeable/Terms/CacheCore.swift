// SPDX-License-Identifier: MIT
// What of a cache stays off offer.

/// What of a cache of bytes stays off offer while there is room beside it, so that the kernel cannot take it; else everything
/// idle is on offer within a second. A service that reads many files once otherwise loses its cache to their page cache.
///
///     var options = CacheOptions(memoryShare: 0.5)
///     options.core = .share(0.5)
///
/// It goes on offer when less than a quarter of the memory is free or page cache; ten seconds after there is room again (three
/// eighths), a core is kept anew. The library's thread looks often enough that nobody can take the room in between. Core and
/// pinned entries together are at most half of the memory that limits the process. What it gives up: until the library has
/// looked, the kernel cannot have this memory, and a stopped process does not look. Slabs are in it or not: exact to a slab of
/// each shard.
public enum CacheCore: Sendable, Hashable {
  /// This share of the bytes in slabs, above 0 and up to 1: the youngest slabs of the main queue, then the youngest of probation.
  case share(Double)
  /// The slabs in which a value was stored or hit within this time, as the library's rounds find it, twice a second. Costs some 5
  /// bytes an entry in ordinary memory, and the clock at each hit.
  case usedWithin(Duration)
}

extension CacheCore: CustomStringConvertible {
  static func check(_ core: CacheCore?, in operation: @autoclosure () -> String) throws(PurgeableError) {
    switch core {
    case nil: break
    case .share(let share): try LimitCheck.share(share, "core", in: operation())
    case .usedWithin(let time): try LimitCheck.time(time, "core", in: operation())
    }
  }

  /// In a few words.
  public var description: String {
    switch self {
    case .share(let share): "a share of \(share)"
    case .usedWithin(let time): "used within \(time)"
    }
  }
}
