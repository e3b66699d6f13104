// SPDX-License-Identifier: MIT
// Settings and numbers of the whole library, not of one cache or region.

/// Settings and numbers of the library as a whole.
public enum PurgeableMemory {
  /// Where caches (and monitors without a source of their own) hear of pressure; nil, as at first: the best that works here,
  /// `SystemPressureSource`. Takes effect at once.
  ///
  /// The library never closes a source that it was given. Any thread.
  public static var pressureSource: (any PressureSource)? {
    get { Maintainer.shared.givenSource }
    set { Maintainer.shared.setSource(newValue) }
  }

  /// How short memory is: the last level that the library's thread saw. While that thread watches for nobody: what
  /// `pressureSource` says, asked on this thread, or, without one, a look at limits and usage (some 30 system calls). Any thread.
  public static var pressureLevel: PressureLevel { Maintainer.shared.currentLevel }

  /// What the library's thread has seen and done about pressure. Any thread.
  public static var pressureStatistics: PressureStatistics { Maintainer.shared.statistics }
}

extension PurgeableMemory {
  /// Has the object asked to discard its content when memory is short, without being in a cache: the longest registered first, a
  /// sixteenth of all at a time, until memory is no longer short. Registered twice is registered once.
  ///
  /// The object is held weakly, and forgotten when it ends. It is asked on a thread of the library's, under no mutex. From the
  /// first call on the library keeps its thread, asleep, as it does for a cache. Any thread.
  public static func register(_ object: some DiscardableContent) { DiscardableRegistry.shared.add(object) }

  /// Takes the object out again; nothing, where it was not registered. Any thread.
  public static func unregister(_ object: some DiscardableContent) { DiscardableRegistry.shared.remove(object) }

  /// Asks all registered objects now, on this thread. Returns how many discarded their content.
  @discardableResult
  public static func discardRegisteredContent() -> Int { DiscardableRegistry.shared.discard() }
}
