// SPDX-License-Identifier: MIT
// What a program finds that asks for the database and has not switched it on.

#if !SQLite
  @_exported public import Purgeable

  @available(
    *, unavailable,
    message: """
      the database is behind a trait: add traits: ["SQLite"] to the dependency on purgeable in Package.swift, or --traits SQLite \
      within the package itself; it needs libsqlite3-dev
      """
  )
  public enum PurgeableStore<Key, Value> {}
#endif
