// SPDX-License-Identifier: MIT
// What the tests of PurgeableNSCache use: objects, keys of each kind, a delegate that notes what it is told.

import Foundation
import PurgeableFoundation
import PurgeableTestSupport
import Synchronization

protocol Numbered {
  var number: Int { get }
}

/// An object that says when it ends.
final class Item: Numbered {
  let number: Int
  private let onEnd: (() -> Void)?

  init(_ number: Int, onEnd: (() -> Void)? = nil) { (self.number, self.onEnd) = (number, onEnd) }
  deinit { onEnd?() }
}

typealias Content = TestContent
extension TestContent: Numbered {}

// MARK: Keys

/// A key of Foundation's kind, whose text changes.
final class TextKey: NSObject {
  var text: String

  init(_ text: String) { self.text = text }

  override var hash: Int { text.hashValue }
  override func isEqual(_ object: Any?) -> Bool { (object as? TextKey)?.text == text }
}

/// A key of Swift's kind.
class NumberKey: Hashable {
  let number: Int

  init(_ number: Int) { self.number = number }

  static func == (left: NumberKey, right: NumberKey) -> Bool { left.number == right.number }
  func hash(into hasher: inout Hasher) { hasher.combine(number) }
}

/// Equal to its superclass's, where the numbers are.
final class NamedNumberKey: NumberKey {
  let name: String

  init(_ number: Int, name: String) {
    self.name = name
    super.init(number)
  }
}

final class OtherNumberKey: NumberKey {}

/// A key without `==` and hash.
final class PlainKey {
  let number: Int

  init(_ number: Int) { self.number = number }
}

/// A key whose hash is bad and whose `==` calls something.
final class OddKey: Hashable {
  let number: Int
  private let compares: (() -> Void)?

  init(_ number: Int, compares: (() -> Void)? = nil) { (self.number, self.compares) = (number, compares) }

  static func == (left: OddKey, right: OddKey) -> Bool {
    left.compares?()
    return left.number == right.number
  }

  func hash(into hasher: inout Hasher) { hasher.combine(number % 3) }
}

// MARK: Delegates

typealias AnyNSCache = PurgeableNSCache<AnyObject, AnyObject>

/// Notes the numbers of the objects that it is told of and asked about. From any thread.
final class Witness: PurgeableNSCacheDelegate {
  /// Not `Mutex`, whose order the thread sanitizer does not see.
  private let lock = NSLock()
  private var (told, asked) = ([Int](), [Int]())
  /// Set before the cache has entries.
  var onTelling: (AnyNSCache, Any) -> Void = { _, _ in }
  var onAsking: (AnyNSCache, Any) -> Bool = { _, _ in true }

  func cache(_ cache: AnyNSCache, willEvictObject obj: Any) {
    lock.withLock { told.append((obj as? any Numbered)?.number ?? -1) }
    onTelling(cache, obj)
  }

  func cache(_ cache: AnyNSCache, shouldEvictObject obj: Any) -> Bool {
    lock.withLock { asked.append((obj as? any Numbered)?.number ?? -1) }
    return onAsking(cache, obj)
  }

  /// What was noted since the last call.
  func takeTold() -> [Int] { lock.withLock { told.drain() } }
  func takeAsked() -> [Int] { lock.withLock { asked.drain() } }
}

/// A delegate that implements none of the functions.
final class SilentDelegate: PurgeableNSCacheDelegate {}

extension Array {
  fileprivate mutating func drain() -> [Element] {
    defer { self = [] }
    return self
  }
}

// MARK: Short forms

extension PurgeableNSCache where KeyType == NSString {
  /// The keys as strings.
  var words: [String] { allKeys.map { "\($0)" } }
}

/// A key that is equal to others of the same text, and never the same object.
func key(_ text: String) -> NSString { NSString(string: text) }

/// How often something happened, on any thread.
final class Count: Sendable {
  private let value = Atomic<Int>(0)

  func add() { value.add(1, ordering: .relaxed) }
  var number: Int { value.load(ordering: .relaxed) }
  var isNone: Bool { number == 0 }
}
