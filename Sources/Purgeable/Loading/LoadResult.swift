// SPDX-License-Identifier: MIT
// What a load says that knows more of its value than the asker does.

/// What a load found (`PurgeableCache.value(forKey:refreshAfter:reloading:)`).
public enum LoadResult<Value: Sendable>: Sendable {
  /// A value, and what only its maker knows; nil stands for the number of its bytes, the cache's default, and none. A time of 0
  /// or less, or a version of more than 255 bytes, has the value returned and not kept.
  case found(Value, cost: Int? = nil, expiry: Expiry? = nil, version: String? = nil)
  /// Nothing, and that is remembered for this time; nil, or 0 or less: not at all. An older value goes (`removed`).
  case absent(keptFor: Duration? = nil)
  /// The current entry still holds: its age and its expiry begin anew. Without a current entry: nothing.
  case unchanged
}

extension LoadResult: Equatable where Value: Equatable {}
extension LoadResult: Hashable where Value: Hashable {}

/// How what a load made is kept, said by the load itself before it ends.
final class LoadAnswer: Sendable {
  private let said = Guarded(LoadTerms?.none)

  var terms: LoadTerms? {
    get { said.withLock { $0 } }
    set {
      said.withLock { said in
        said = newValue
        // These terms lead to their answer, which would keep itself.
        said?.answer = nil
      }
    }
  }
}
