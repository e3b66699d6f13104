// SPDX-License-Identifier: MIT
// The delegate of a PurgeableNSCache.

import Purgeable

/// Who is told of what leaves a `PurgeableNSCache`, and asked before it evicts: NSCacheDelegate, with OSCache's veto.
///
/// Both functions are optional; the class that declares the conformance has to have them, since a subclass of it only overrides
/// what is there. Both are called under no mutex, and may use and change the cache. What calls of the first take
/// out is told when it has returned, what calls of the second take out at once. They are called on the thread that caused the
/// departure, and of what the library does when memory is short on a thread of the library's: they may be called by several
/// threads at once, so no actor's class may have them isolated.
public protocol PurgeableNSCacheDelegate: AnyObject, SendableMetatype {
  /// Told of each object that leaves, once: evicted, removed, replaced, found discarded, or refused because its cost is above the
  /// whole limit. The object is in the cache no more, and lives as long as the program or this call holds it. An object that is
  /// stored again under its own key has not left.
  ///
  /// - Parameters:
  ///   - cache: the cache itself, under other types: `===` holds.
  ///   - obj: the object.
  func cache(_ cache: PurgeableNSCache<AnyObject, AnyObject>, willEvictObject obj: Any)

  /// Asked before an object goes for a limit, for slow growth or because memory is short, the least recently used first; false
  /// passes it over. Not asked about removals, nor about the object that is being stored.
  ///
  /// Where all are passed over, the store returns and the cache stays above its limit. An object that is passed over is asked
  /// about again by the next store above a limit.
  ///
  /// - Parameters: as above.
  func cache(_ cache: PurgeableNSCache<AnyObject, AnyObject>, shouldEvictObject obj: Any) -> Bool
}

extension PurgeableNSCacheDelegate {
  /// Does nothing.
  public func cache(_ cache: PurgeableNSCache<AnyObject, AnyObject>, willEvictObject obj: Any) {}

  /// True: every object may go. A cache whose own delegate answers by this asks it no more, and evicts in half the time.
  public func cache(_ cache: PurgeableNSCache<AnyObject, AnyObject>, shouldEvictObject obj: Any) -> Bool {
    cache.core.noteNoVeto(of: self)
    return true
  }
}

/// A delegate, and the cache that it is the delegate of. What the cache of objects holds of both.
///
/// `@unchecked Sendable`: immutable. The delegate is called from any thread, as its protocol says.
final class NSCacheListener: @unchecked Sendable {
  typealias AnyCache = PurgeableNSCache<AnyObject, AnyObject>

  weak let delegate: (any PurgeableNSCacheDelegate)?
  private weak let cache: AnyCache?

  init(_ delegate: any PurgeableNSCacheDelegate, _ cache: AnyCache) {
    self.delegate = delegate
    self.cache = cache
  }

  func tell(_ departure: Departure<ObjectKey, NSCacheCore.Object>) {
    guard !departure.isStoredAgain, let object = departure.value, let delegate, let cache else { return }
    delegate.cache(cache, willEvictObject: object)
  }

  func mayEvict(_ object: NSCacheCore.Object) -> Bool {
    guard let delegate, let cache else { return true }
    return delegate.cache(cache, shouldEvictObject: object)
  }
}
