// SPDX-License-Identifier: MIT
// Which of many keys are to be loaded.

/// The keys of a group that have no value, each once, and where they stand in the group. Hashes keys: under no mutex.
struct MissingKeys<Key: Hashable, Value> {
  private(set) var keys: [Key] = []
  /// Places in the group, each with the key's place in `keys`.
  private var places: [(inGroup: Int, inKeys: Int)] = []

  init(_ group: [Key], _ found: [Value?]) {
    var known: [Key: Int] = [:]
    for (place, key) in group.enumerated() where found[place] == nil {
      let position = known[key] ?? keys.count
      if position == keys.count {
        known[key] = position
        keys.append(key)
      }
      places.append((place, position))
    }
  }

  /// The group's values, with those that were `made` for `keys`.
  func fill(_ found: [Value?], with made: [Value?]) -> [Value?] {
    var values = found
    for (inGroup, inKeys) in places { values[inGroup] = made[inKeys] }
    return values
  }
}
