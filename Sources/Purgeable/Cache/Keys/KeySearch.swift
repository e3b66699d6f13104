// SPDX-License-Identifier: MIT
// Finding a tracked key among those of its shard: by hash under the shard's mutex, by `==` under none if that is the program's
// code.
//
//   under the mutex   the next candidate with the hash; its key is copied                    <--+
//   under none        candidate == key?                                       no: the next one -+
//   under the mutex   the number still has the candidate's stamp: the key's entry is worked on in this same turn
//
// The program's code cannot harm the table, which never asks a stored key for its hash again: a key whose hash or equality
// changes is merely not found any more.

enum KeyStep {
  /// The key's number, as long as the mutex is held.
  case found(UInt32)
  /// A key is to be compared under no mutex (`compare`).
  case candidate
  /// There is none; or none could be made, because there is no memory, or no number.
  case absent
}

struct KeySearch<Key: Hashable & Sendable> {
  private let key: Key
  private let hash: UInt64
  /// Whether the key gets a number where it has none.
  private let makes: Bool
  /// Whether `==` is the standard library's, so that it may run under the mutex.
  private let comparesPlainly: Bool
  private var other: Key?
  /// The candidate that was compared last.
  private var candidate: (number: UInt32, stamp: UInt64)?
  private var isEqual = false
  /// Candidates from this stamp on have been compared in this round, those up to `compared` in an earlier one.
  private var below = UInt64.max
  private var compared: UInt64 = 0
  private var newest: UInt64 = 0
  /// Of the last step.
  private var mask: ShardMask?

  init(_ key: Key, hash: UInt64, makes: Bool, comparesPlainly: Bool) {
    (self.key, self.hash, self.makes, self.comparesPlainly) = (key, hash, makes, comparesPlainly)
  }

  /// Under the mutex of the key's shard. Where entries have moved to other shards since the last step, `keys` is another table,
  /// whose numbers and stamps are others.
  mutating func step(in keys: inout ShardKeys, under mask: ShardMask) -> KeyStep {
    if mask != self.mask { (self.mask, candidate, isEqual, below, compared, newest) = (mask, nil, false, .max, 0, 0) }
    if isEqual, let candidate {
      if keys[candidate.number]?.node.stamp == candidate.stamp { return .found(candidate.number) }
      // It left meanwhile, and the key may have come again.
      (isEqual, below) = (false, .max)
      self.candidate = nil
    }
    while true {
      guard let pointer = next(in: keys) else { return makes ? make(in: &keys) : .absent }
      candidate = (pointer.node.number, pointer.node.stamp)
      guard comparesPlainly else {
        other = pointer.key(as: Key.self)
        return .candidate
      }
      note(isEqual: pointer.hasKey(key))
      if isEqual { return .found(pointer.node.number) }
    }
  }

  /// Compares the candidate. Under no mutex: the program's code.
  mutating func compare() {
    note(isEqual: other == key)
    // The entry may have left meanwhile, and this be its key's end.
    other = nil
  }

  private mutating func note(isEqual: Bool) {
    self.isEqual = isEqual
    guard let candidate, !isEqual else { return }
    newest = max(newest, candidate.stamp)
    below = candidate.stamp
  }

  private mutating func next(in keys: ShardKeys) -> NodePointer? {
    if let pointer = keys.next(hash: hash, below: below, above: compared, last: candidate?.number) { return pointer }
    // A number is made only where keys that came since the round began are known to be others.
    guard makes, newest > compared else { return nil }
    (compared, below) = (newest, .max)
    return keys.next(hash: hash, below: .max, above: compared)
  }

  private func make(in keys: inout ShardKeys) -> KeyStep {
    guard let pointer = keys.make(hash: hash) else { return .absent }
    pointer.begin(with: key)
    return .found(pointer.node.number)
  }
}
