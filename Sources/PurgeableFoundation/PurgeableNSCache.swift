// SPDX-License-Identifier: MIT
// NSCache's shape over a cache of objects, for programs that have it.

public import Foundation
public import Purgeable

/// NSCache for Linux: its names and their meaning, with limits that hold, and its share in giving memory back.
///
/// Replace the word `NSCache` in a program, or write in one of its files
///
/// ```swift
/// import Foundation
/// import PurgeableFoundation
///
/// typealias NSCache = PurgeableNSCache
/// typealias NSCacheDelegate = PurgeableNSCacheDelegate
///
/// let cache = NSCache<NSString, NSData>()
/// cache.totalCostLimit = 50 << 20
/// cache.setObject(NSData(), forKey: "a", cost: 10)
/// if let data = cache.object(forKey: "a") { print(data.length, cache.count) }
/// ```
///
/// Without limits it holds all objects until memory is short; then the least recently used go, a sixteenth at a time, and for a
/// minute the cache grows only slowly. With limits it evicts exactly the least recently used object. Objects that adopt
/// `DiscardableContent` are asked to discard their content when they leave, and before others leave when memory is short.
///
/// **Keys** are retained, not copied. A key that is an `NSObject` is hashed by `hash` and compared by `isEqual(_:)`; another one
/// by `==`, where its class is `Hashable`, else by identity. A `PurgeableData` goes by identity, because its content changes.
/// A key that changes its hash is not found until it has the old one again.
///
/// **Threads.** Every function may be called from any thread, without a lock of the program's. The class is not Sendable, as
/// NSCache: nothing says that keys and objects are. `ObjectCache` is the cache to share between tasks. No code of the program
/// runs under a mutex: not `isEqual(_:)` and `hash`, not the delegate, and no end of a key or an object. What the library evicts
/// when memory is short ends on a thread of the library's, and the delegate is told there.
///
/// Memory: about 100 bytes an entry, beside key and object. Where there is no memory for an entry, the object is not stored, and
/// an old one under its key stays.
open class PurgeableNSCache<KeyType: AnyObject, ObjectType: AnyObject>: NSObject {
  /// Nothing here is typed by the parameters: a delegate sees this object under others.
  final let core: NSCacheCore

  /// Makes an empty cache without limits. Stops the program where there is no memory for it, as the other classes of Foundation
  /// do: an initializer that cannot throw has no other answer.
  public override init() {
    core = NSCacheCore(KeyType.self, ObjectType.self)
    super.init()
  }

  /// For people; empty at first. Any thread.
  open var name: String {
    get { core.name }
    set { core.name = newValue }
  }

  /// Who is told of each object that leaves, and asked before an eviction. Held weakly. Set to another or to nil, the old one
  /// is called no more, but for calls that are at work or just beginning. Any thread.
  open var delegate: (any PurgeableNSCacheDelegate)? {
    get { core.delegate }
    set { core.setDelegate(newValue, of: underAnyTypes) }
  }

  // MARK: Looking up and storing

  /// The object of a key, nil when there is none. Counts as a use. One mutex, no allocation.
  open func object(forKey key: KeyType) -> ObjectType? {
    // Not `map`, which is a call of generic code.
    guard let object = core.object(forKey: key) else { return nil }
    return typed(object)
  }

  /// Stores an object under a key with a cost of 0, in place of an old one.
  open func setObject(_ obj: ObjectType, forKey key: KeyType) { setObject(obj, forKey: key, cost: 0) }

  /// Stores an object under a key, in place of an old one. The limits hold when it returns.
  ///
  /// An object whose cost is above the whole limit is not kept: all others stay, and the key's old object is gone. The delegate
  /// is told of both. Without memory nothing changes.
  ///
  /// The library checks that key and object are of the cache's types, and stops the program where they are not: a delegate, to
  /// which all caches look alike, could store others.
  ///
  /// - Parameter g: in any unit, usually bytes. Less than 0 counts as 0.
  open func setObject(_ obj: ObjectType, forKey key: KeyType, cost g: Int) { core.setObject(obj, forKey: key, cost: g) }

  /// Removes a key's object; nothing, where there is none.
  open func removeObject(forKey key: KeyType) { core.removeObject(forKey: key) }

  /// Removes all objects that are there now, in no order.
  open func removeAllObjects() { core.objects.removeAll() }

  // MARK: Limits

  /// The most that costs may add up to. 0, as at first, is no limit; so is less than 0, which reads as 0. A lower limit evicts
  /// before this returns. Objects of no cost stay when it is exceeded. Any thread.
  open var totalCostLimit: Int {
    get { core.objects.costLimit ?? 0 }
    // A limit above 0 is never refused.
    set { try? core.objects.setCostLimit(newValue > 0 ? newValue : nil) }
  }

  /// The most objects. 0, as at first, is no limit; so are `Int.max` and what is less than 0, which read as 0. A lower limit
  /// evicts before this returns. Any thread.
  open var countLimit: Int {
    get { core.objects.countLimit ?? 0 }
    set { try? core.objects.setCountLimit(newValue > 0 ? newValue : nil) }
  }

  /// Whether an object leaves when its content (`DiscardableContent`) is found discarded, by a look-up or when memory is short;
  /// true at first. False: it stays and is found, without its content. Any thread.
  open var evictsObjectsWithDiscardedContent: Bool {
    get { core.objects.evictsEntriesWithDiscardedContent }
    set { core.objects.evictsEntriesWithDiscardedContent = newValue }
  }

  // MARK: What NSCache lacks and OSCache has

  /// The number of objects. Any thread, no mutex.
  open var count: Int { core.objects.count }

  /// The sum of the objects' costs; `Int.max` when it is larger. Any thread, no mutex.
  open var totalCost: Int { core.objects.totalCost }

  /// The object of a key; setting stores it with a cost of 0, setting nil removes the key's object.
  open subscript(key: KeyType) -> ObjectType? {
    get { object(forKey: key) }
    set {
      if let newValue { setObject(newValue, forKey: key) } else { removeObject(forKey: key) }
    }
  }

  /// The keys at about this moment, the least recently used first. Does not count as a use. Takes the memory of the list.
  open var allKeys: [KeyType] { core.objects.keys.map { typed($0.object) } }

  /// Calls `body` for the objects that are there at about this moment, the least recently used first, until it sets `stop`.
  ///
  /// Does not count as a use. Under no mutex: `body` may use and change the cache; what it removes is still enumerated. Takes the
  /// memory of a list of references.
  open func enumerateKeysAndObjects(_ body: (_ key: KeyType, _ object: ObjectType, _ stop: inout Bool) -> Void) {
    var stop = false
    for entry in core.objects.entries {
      body(typed(entry.key.object), typed(entry.value), &stop)
      if stop { return }
    }
  }

  // MARK: What neither has

  /// Gives back as the library does when memory is short, for a memory warning of the program's own: a sixteenth of the objects
  /// at `warning`, a quarter at `critical`, the least recently used first, content in nobody's use before them. The delegate is
  /// not asked, and told. For a minute the cache grows slowly then. Any thread.
  open func trim(level: PressureLevel) { core.objects.trim(level: level) }

  /// Removes the least recently used objects until at most this share of them is left, as when a program goes into the
  /// background; 0 is nothing, 1 is all. The delegate is not asked, and told. Any thread.
  open func trim(toFraction fraction: Double) { core.objects.trim(toFraction: fraction) }

  /// The cache in numbers. Any thread.
  open var statistics: CacheStatistics { core.objects.statistics }

  /// Name, objects and cost in one line, for messages.
  open override var description: String {
    "PurgeableNSCache \"\(name)\": \(count) \(count == 1 ? "object" : "objects"), cost \(totalCost)"
  }

  // MARK: Inside

  /// Safe: `setObject` has checked what is in the cache.
  private func typed<T: AnyObject>(_ object: AnyObject) -> T { unsafe unsafeDowncast(object, to: T.self) }

  /// This object, as the delegate sees it: the same one, so that `===` holds.
  private var underAnyTypes: PurgeableNSCache<AnyObject, AnyObject> {
    // Safe: all of the class's types have one layout and the same functions. Not `unsafeDowncast`, which checks in debug builds.
    unsafe Unmanaged<PurgeableNSCache<AnyObject, AnyObject>>.fromOpaque(Unmanaged.passUnretained(self).toOpaque())
      .takeUnretainedValue()
  }
}

/// As NSCache is not: nothing says that keys and objects are Sendable. `ObjectCache` is.
@available(*, unavailable)
extension PurgeableNSCache: @unchecked Sendable {}
