// SPDX-License-Identifier: MIT
// What a program finds that asks for the database and has not switched it on.

#if !SQLite
  @_exported public import Purgeable

  /// With the form of the real one: where a call did not fit, the compiler would speak of that instead.
  @available(
    *, unavailable,
    message: """
      the database is behind a trait: add traits: ["SQLite"] to the dependency on purgeable in Package.swift, or --traits SQLite \
      within the package itself; it needs libsqlite3-dev
      """
  )
  public final class PurgeableStore<Key: Hashable & PurgeableValue, Value: PurgeableValue>: Sendable {
    public init(
      _ name: String, directory: String? = nil, cache: PurgeableCache<Key, Value>,
      options: PurgeableStoreOptions = PurgeableStoreOptions(), format: StoredFormat<Value> = .purgeableBytes
    ) throws(PurgeableError) {
      throw PurgeableError(.notSupported, in: "PurgeableStore.init", explanation: "built without the trait SQLite")
    }
  }
#endif
