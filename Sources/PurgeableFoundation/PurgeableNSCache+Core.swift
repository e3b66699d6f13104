// SPDX-License-Identifier: MIT
// What a PurgeableNSCache is made of, whatever its types: a cache of objects, and checks that these types hold.
//
//   PurgeableNSCache<Key, Object> --> NSCacheCore --> ObjectCache<ObjectKey, any AnyObject & Sendable>
//            ^         ^                                   |
//            |weak     `-- delegate, weak <-- NSCacheListener (handler and veto)
//            `------------------------------------'

import Foundation
import Purgeable
import Synchronization

/// Safe from any thread: the cache of objects is, the memory of types is atomic, and the rest is under `lock`.
final class NSCacheCore {
  /// Any object: Sendable leaves no trace at run time, and the cache still sees whether its content may be discarded. A
  /// PurgeableNSCache tells its users that its objects are released on any thread.
  typealias Object = any AnyObject & Sendable

  let objects: ObjectCache<ObjectKey, Object>
  private let keyCheck: ClassCheck
  private let objectCheck: ClassCheck
  private let rules = KeyRulesMemo()
  /// A POSIX mutex, for the name and the delegate alone: look-ups and stores of a forked child wait for nobody. No code of the
  /// program runs under it.
  private let lock = NSLock()
  private var guardedName = ""
  private var guardedListener: NSCacheListener?

  init<KeyType: AnyObject, ObjectType: AnyObject>(_ keys: KeyType.Type, _ objects: ObjectType.Type) {
    keyCheck = ClassCheck(keys)
    objectCheck = ClassCheck(objects)
    do { self.objects = try ObjectCache(name: "PurgeableNSCache") } catch { fatalError("PurgeableNSCache.init: \(error)") }
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
    get { lock.withLock { guardedName } }
    set { lock.withLock { guardedName = newValue } }
  }

  var delegate: (any PurgeableNSCacheDelegate)? { lock.withLock { guardedListener }?.delegate }

  func setDelegate(_ delegate: (any PurgeableNSCacheDelegate)?, of cache: NSCacheListener.AnyCache) {
    let listener = delegate.map { NSCacheListener($0, cache) }
    // All of it under the mutex, so that of two threads that set delegates one has the last word. A listener that ends here holds
    // nothing: nobody's code runs.
    lock.withLock {
      guardedListener = listener
      guard let listener else {
        objects.removeDepartureHandler()
        return objects.setEvictionQuestion(nil)
      }
      objects.setDepartureHandler { listener.tell($0) }
      objects.setEvictionQuestion { _, object, _ in listener.mayEvict(object) }
    }
  }

  /// The object has no veto of its own. If it is the delegate, and not one that the delegate asks in turn, it need not be asked.
  func noteNoVeto(of object: AnyObject) {
    let listener = lock.withLock { guardedListener }
    // Looked at outside of the mutex, where the delegate may end.
    guard let listener, listener.delegate === object else { return }
    lock.withLock { if guardedListener === listener { objects.setEvictionQuestion(nil) } }
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
