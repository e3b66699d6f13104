// SPDX-License-Identifier: MIT
// What an asker says of the value that is to be loaded.

/// How what is loaded is kept. Of askers that share a load, the one that loads says it.
@usableFromInline
struct LoadTerms: Sendable {
  /// How long the value is valid; nil for the cache's default.
  @usableFromInline var lifetime: Lifetime?
  /// How long it is remembered that the load found nothing, in nanoseconds; 0 for not at all.
  var absenceTime: UInt64 = 0
  /// From which age on, in nanoseconds, a value is loaded anew; nil: never.
  var refreshTime: UInt64?
  /// How old the value is when it is kept, in nanoseconds.
  var age: UInt64 = 0
  /// Asked last whether the value is kept, or an older one goes, under the mutex under which it is stored: it is not to do much.
  var announce: (@Sendable () -> Bool)?
  /// False for an answer that the program's closure was not asked for.
  var countsAsLoad = true
  /// There is a value, which is loaded anew.
  var isRefresh = false
  /// Only a second tier is asked: who loads where that has nothing does not wait for this.
  @usableFromInline var isLookUp = false
  /// What the value has to be a version of; nil: whatever there is.
  @usableFromInline var version: String?
  /// nil for the number of the value's bytes.
  @usableFromInline var cost: UInt64?
  /// When the call began that gets what is loaded, by `MonotonicTime`: what it gets of objects keeps its content. nil: just now.
  @usableFromInline var begun: UInt64?
  /// In nanoseconds; nil for the time of the load.
  @usableFromInline var recomputeCost: UInt64?
  /// Where the load itself says how what it makes is kept.
  var answer: LoadAnswer?

  /// Whether it is noted how old the value is. Who asks next for what a second tier had may want it loaded anew when it is due.
  var notesAge: Bool { refreshTime != nil || !countsAsLoad }

  /// As the load itself said, where it did.
  @usableFromInline var said: LoadTerms { answer?.terms ?? self }

  @usableFromInline
  init(keepingNilFor time: Duration? = nil) { absenceTime = time?.wholeNanoseconds ?? 0 }
}
