// SPDX-License-Identifier: MIT
// Objects as keys: by `isEqual` and `hash`, by `==`, or by identity, as their class has it.

import Foundation
import Purgeable
import Synchronization

/// An object as a key, and how it is hashed and compared.
///
/// `@unchecked Sendable`: the object is hashed and compared on any thread, as a PurgeableNSCache tells its users. `@safe`: rules
/// live for ever.
@safe struct ObjectKey: Hashable, @unchecked Sendable {
  let object: AnyObject
  private let rules: Unmanaged<KeyRules>

  init(_ object: AnyObject, _ memo: borrowing KeyRulesMemo) {
    self.object = object
    unsafe rules = memo.rules(of: type(of: object))
  }

  static func == (left: ObjectKey, right: ObjectKey) -> Bool {
    if left.object === right.object { return true }
    // Keys of two classes may be equal, where one is derived from the other or both are Foundation's.
    return unsafe left.rules._withUnsafeGuaranteedRef { $0.isEqual(left.object, to: right.object) }
      ?? right.rules._withUnsafeGuaranteedRef { $0.isEqual(right.object, to: left.object) } ?? false
  }

  func hash(into hasher: inout Hasher) {
    unsafe rules._withUnsafeGuaranteedRef { $0.hash(object, into: &hasher) }
  }

  /// Whether both are equal, where no code of the program is needed to find out; else false.
  static func areSurelyEqual(_ left: ObjectKey, _ right: ObjectKey) -> Bool {
    if left.object === right.object { return true }
    guard unsafe left.rules.toOpaque() == right.rules.toOpaque() else { return false }
    return unsafe left.rules._withUnsafeGuaranteedRef { $0.areSurelyEqual(left.object, right.object) }
  }
}

/// How the keys of one class are hashed and compared. These: by identity.
///
/// `@unchecked Sendable`: `older` is set before other threads see the rules.
class KeyRules: @unchecked Sendable {
  final let keyClass: ObjectIdentifier
  /// The address of the rules of a class that was seen before; 0 for none.
  final var older: UInt = 0

  init(_ keyClass: AnyClass) { self.keyClass = ObjectIdentifier(keyClass) }

  func hash(_ key: AnyObject, into hasher: inout Hasher) { hasher.combine(ObjectIdentifier(key)) }

  /// Whether two different objects, the first of which is of this class, are equal; nil where these rules do not say.
  func isEqual(_ key: AnyObject, to other: AnyObject) -> Bool? { nil }

  /// Whether two objects of this class are equal, where its comparison is known to be none of the program's code.
  func areSurelyEqual(_ left: AnyObject, _ right: AnyObject) -> Bool { false }

  /// The rules at an address, which is that of some or 0.
  static func at(_ word: UInt) -> Unmanaged<KeyRules>? {
    unsafe UnsafeRawPointer(bitPattern: word).map { unsafe Unmanaged.fromOpaque($0) }
  }

  /// The rules of a class.
  static func make(for keyClass: AnyClass) -> KeyRules {
    // Safe to ask: a class that says that it is not Hashable has that conformance too, and stops the program when it is hashed.
    if keyClass == PurgeableData.self { return KeyRules(keyClass) }
    if keyClass is NSObject.Type { return FoundationKeyRules(keyClass) }
    guard let hashable = keyClass as? any (AnyObject & Hashable).Type else { return KeyRules(keyClass) }
    return make(hashable)
  }

  private static func make<T: AnyObject & Hashable>(_ keyClass: T.Type) -> KeyRules { HashableKeyRules<T>(keyClass) }
}

/// By `hash` and `isEqual(_:)`.
private final class FoundationKeyRules: KeyRules, @unchecked Sendable {
  /// Whether the class is Foundation's own, and no subclass of the program's.
  private let isPlain: Bool

  override init(_ keyClass: AnyClass) {
    isPlain = [NSString.self, NSNumber.self, NSURL.self, NSUUID.self, NSDate.self].contains { $0 == keyClass }
    super.init(keyClass)
  }

  override func areSurelyEqual(_ left: AnyObject, _ right: AnyObject) -> Bool {
    guard isPlain else { return false }
    return unsafe unsafeDowncast(left, to: NSObject.self).isEqual(unsafeDowncast(right, to: NSObject.self))
  }

  // Safe, here and below: the key is of the class.
  override func hash(_ key: AnyObject, into hasher: inout Hasher) {
    hasher.combine(unsafe unsafeDowncast(key, to: NSObject.self).hash)
  }

  override func isEqual(_ key: AnyObject, to other: AnyObject) -> Bool? {
    guard let other = other as? NSObject else { return nil }
    return unsafe unsafeDowncast(key, to: NSObject.self).isEqual(other)
  }
}

/// By `hash(into:)` and `==`.
private final class HashableKeyRules<T: AnyObject & Hashable>: KeyRules, @unchecked Sendable {
  override func hash(_ key: AnyObject, into hasher: inout Hasher) {
    unsafe unsafeDowncast(key, to: T.self).hash(into: &hasher)
  }

  override func isEqual(_ key: AnyObject, to other: AnyObject) -> Bool? {
    let key = unsafe unsafeDowncast(key, to: T.self)
    if let other = other as? T { return key == other }
    // Both may be derived from one class with a `==`, which these find.
    return (other as? any Hashable).map { AnyHashable(key) == AnyHashable($0) }
  }
}

/// The rules of all classes whose objects were keys, in a list that only grows. To find out whether a class is Hashable takes the
/// runtime as long as some look-ups, so it is asked once; twice, where two threads ask at the same time, which does no harm.
enum KnownKeyRules {
  private static let newest = Atomic<UInt>(0)

  static func rules(of keyClass: AnyClass) -> Unmanaged<KeyRules> {
    // Pairs with the exchange below: rules and `older` are whole.
    var word = newest.load(ordering: .acquiring)
    let newestSeen = word
    while let known = unsafe KeyRules.at(word) {
      let (isIt, older) = unsafe known._withUnsafeGuaranteedRef { ($0.keyClass == ObjectIdentifier(keyClass), $0.older) }
      if isIt { return unsafe known }
      word = older
    }
    let made = KeyRules.make(for: keyClass)
    let kept = unsafe Unmanaged.passRetained(made)
    made.older = newestSeen
    while true {
      let (exchanged, now) = unsafe newest.compareExchange(
        expected: made.older, desired: UInt(bitPattern: kept.toOpaque()), ordering: .acquiringAndReleasing)
      if exchanged { return unsafe kept }
      made.older = now
    }
  }
}

/// The rules of the class that a cache saw last: its keys are mostly of one class.
struct KeyRulesMemo: ~Copyable {
  private let last = Atomic<UInt>(0)

  func rules(of keyClass: AnyClass) -> Unmanaged<KeyRules> {
    // Pairs with the store below: the rules are whole.
    if let known = unsafe KeyRules.at(last.load(ordering: .acquiring)),
      unsafe known._withUnsafeGuaranteedRef({ $0.keyClass == ObjectIdentifier(keyClass) })
    {
      return unsafe known
    }
    let found = unsafe KnownKeyRules.rules(of: keyClass)
    unsafe last.store(UInt(bitPattern: found.toOpaque()), ordering: .releasing)
    return unsafe found
  }
}
