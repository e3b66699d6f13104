// SPDX-License-Identifier: MIT
// Stores that depend on what is there.

/// What has to hold for a value to be stored. Asked under the mutex of the key's shard, where it is stored then. Indirect: most
/// stores have no condition, and handing on none of it should take a word.
indirect enum StoreCondition {
  /// Of a value that was loaded: nothing has overtaken the load. Where there is a second tier: it says yes, and hears of the
  /// value so when its turn among all stores of the key is decided (PurgeableCache+Tier.swift).
  case announced(LoadPermit?, (() -> Bool)?)
  /// The key's entry is as it was peeked at, with a digest; nil: there is none.
  case unchanged(PeekedEntry?)

  /// Whether it would hold now. For stores that write the value before they ask.
  func mayHold(_ key: EngineKey, _ prefix: RawSpan, in held: inout HeldShard) -> Bool {
    switch self {
    case .announced(let permit, _): permit?.mayBeTaken ?? true
    case .unchanged(let peeked): held.peeked(key, prefix, digests: true) == peeked
    }
  }

  /// Asked once.
  func holds(_ key: EngineKey, _ prefix: RawSpan, in held: inout HeldShard) -> Bool {
    guard mayHold(key, prefix, in: &held) else { return false }
    guard case .announced(let permit, let announce) = self else { return true }
    return (permit?.take() ?? true) && (announce?() ?? true)
  }
}
