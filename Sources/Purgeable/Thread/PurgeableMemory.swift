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

  /// How short memory is: the last level that the library's thread saw. While that thread watches for nobody: one look at
  /// limits and usage (some 30 system calls). Any thread.
  public static var pressureLevel: PressureLevel { Maintainer.shared.currentLevel }

  /// What the library's thread has seen and done about pressure. Any thread.
  public static var pressureStatistics: PressureStatistics { Maintainer.shared.statistics }
}
