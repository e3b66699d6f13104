// SPDX-License-Identifier: MIT
// Stores that depend on what is there.

/// What has to hold for a value to be stored. Asked under the mutex of the key's shard, where it is stored then.
enum StoreCondition {
  /// The value was loaded, and nothing has overtaken the load.
  case permit(LoadPermit)
  /// As above, where there is a permit; and the second tier says yes, which hears of the value so when its turn among all stores
  /// of the key is decided (PurgeableCache+Tier.swift). Indirect: as below.
  indirect case announced(LoadPermit?, () -> Bool)
  /// The key's entry is as it was peeked at, with a digest; nil: there is none. Indirect: most stores have no condition, and
  /// handing on none of it should take a word.
  indirect case unchanged(PeekedEntry?)

  /// Whether it may still hold. For stores that write the value before they ask.
  var mayHold: Bool {
    switch self {
    case .permit(let permit): permit.isCurrent
    case .announced(let permit, _): permit?.isCurrent ?? true
    case .unchanged: true
    }
  }

  /// Asked once.
  func holds(_ key: EngineKey, _ prefix: RawSpan, in held: inout HeldShard) -> Bool {
    switch self {
    case .permit(let permit): return permit.take()
    case .announced(let permit, let announce):
      return (permit?.take() ?? true) && announce()
    case .unchanged(let peeked): return held.peeked(key, prefix, digests: true) == peeked
    }
  }
}
