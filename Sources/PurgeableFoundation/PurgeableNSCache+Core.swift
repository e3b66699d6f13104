// SPDX-License-Identifier: MIT
// What a PurgeableNSCache is made of, whatever its types: a cache of objects, and checks that these types hold.
//
//   PurgeableNSCache<Key, Object> --> NSCacheCore --> ObjectCache<ObjectKey, any AnyObject & Sendable>
//            ^         ^                                   |
//            |weak     `-- delegate, weak <-- NSCacheListener (handler and veto)
//            `------------------------------------'

import Purgeable
import Synchronization

/// Safe from any thread, and in a forked child: the cache of objects is, which also keeps name and listener, and the memory of
/// types is atomic.
final class NSCacheCore {
  /// Any object: Sendable leaves no trace at run time, and the cache still sees whether its content may be discarded. A
  /// PurgeableNSCache tells its users that its objects are released on any thread.
  typealias Object = any AnyObject & Sendable

  let objects: ObjectCache<ObjectKey, Object>
  private let keyCheck: ClassCheck
  private let objectCheck: ClassCheck
  private let rules = KeyRulesMemo()

  init<KeyType: AnyObject, ObjectType: AnyObject>(_ keys: KeyType.Type, _ objects: ObjectType.Type) {
    keyCheck = ClassCheck(keys)
    objectCheck = ClassCheck(objects)
    do {
      self.objects = try ObjectCache(name: "", isSurelyEqual: ObjectKey.areSurelyEqual)
    } catch {
      fatalError("PurgeableNSCache.init: \(error)")
    }
  }

  // MARK: Entries

  func object(forKey key: AnyObject) -> AnyObject? { objects.value(forKey: ObjectKey(key, rules)) }

  func setObject(_ object: AnyObject, forKey key: AnyObject, cost: Int) {
    if !keyCheck.passes(key) { stop("a key", of: key) }
    if !objectCheck.passes(object) { stop("an object", of: object) }
    // Safe: the two types are one at run time.
    objects.setValue(unsafe unsafeBitCast(object, to: Object.self), forKey: ObjectKey(key, rules), cost: cost)
  }

  func removeObject(forKey key: AnyObject) { objects.remove(forKey: ObjectKey(key, rules)) }

  private func stop(_ what: String, of object: AnyObject) -> Never {
    let name = name.isEmpty ? "" : " \"\(name)\""
    fatalError(
      "PurgeableNSCache<\(keyCheck.type), \(objectCheck.type)>\(name).setObject: \(what) of the class \(type(of: object))")
  }

  // MARK: Name and delegate

  var name: String {
    get { objects.name }
    set { objects.name = newValue }
  }

  private var listener: NSCacheListener? { objects.listener as? NSCacheListener }

  var delegate: (any PurgeableNSCacheDelegate)? { listener?.delegate }

  func setDelegate(_ delegate: (any PurgeableNSCacheDelegate)?, of cache: NSCacheListener.AnyCache) {
    guard let delegate else { return objects.setListener(nil, tells: nil, asks: nil) }
    let listener = NSCacheListener(delegate, cache)
    objects.setListener(listener, tells: { listener.tell($0) }, asks: { _, object, _ in listener.mayEvict(object) })
  }

  /// The object has no veto of its own. If it is the delegate, and not one that the delegate asks in turn, it need not be asked.
  func noteNoVeto(of object: AnyObject) {
    if let listener, listener.delegate === object { objects.askNoMore(listener) }
  }
}

/// Whether objects are of a type that is known at run time only. Asks once for each class that follows another.
struct ClassCheck: ~Copyable {
  let type: Any.Type
  private let isInstance: (AnyObject) -> Bool
  /// The class of the last object that was.
  private let known = Atomic<UInt>(0)

  init<T: AnyObject>(_ type: T.Type) {
    self.type = type
    isInstance = { $0 is T }
  }

  func passes(_ object: AnyObject) -> Bool {
    let word = UInt(bitPattern: ObjectIdentifier(Swift.type(of: object)))
    if known.load(ordering: .relaxed) == word { return true }
    guard isInstance(object) else { return false }
    known.store(word, ordering: .relaxed)
    return true
  }
}
