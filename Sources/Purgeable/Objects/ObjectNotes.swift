// SPDX-License-Identifier: MIT
// What few objects have beside value, cost and time: beside the nodes, by birth, which no other value of a shard ever has.

/// Of one entry.
@usableFromInline
struct ObjectNotes: Sendable {
  /// Which state of its source the value was made of.
  var version: String?
  /// What making it again takes, in nanoseconds.
  var recomputeCost: UInt64?
  /// When it was loaded, in nanoseconds of the cache's clock; nil: nobody wants to know its age.
  var made: UInt64?

  init() {}

  var isEmpty: Bool { version == nil && recomputeCost == nil && made == nil }

  /// Of what was loaded; nil where its version is too long.
  @usableFromInline
  init?(_ terms: LoadTerms, recomputeCost: UInt64, at now: @autoclosure () -> UInt64) {
    if VersionLimit.isExceeded(by: terms.version) { return nil }
    (version, self.recomputeCost) = (terms.version, recomputeCost)
    // Wraps round where the clock does not reach back so far.
    if terms.notesAge { made = now() &- terms.age }
  }

  /// nil where there is nothing to note.
  @usableFromInline
  init?(recomputeCost: Duration?, version: String?) {
    self.version = version
    self.recomputeCost = recomputeCost.flatMap { $0 < .zero ? nil : $0.wholeNanoseconds }
    if isEmpty { return nil }
  }
}

extension ObjectTable {
  /// Whether there is memory for one more.
  @usableFromInline
  func hasRoomForNotes() -> Bool {
    // While the dictionary grows it is there twice, once with twice the room.
    notes.count < notes.capacity || MemoryReserve.isThere(MemoryReserve.ofNews + 4 * noteByteCount)
  }

  /// Of an entry that has just come.
  @inlinable
  mutating func setNotes(_ notes: ObjectNotes, _ position: UInt32) {
    self[position].isNoted = true
    self.notes[self[position].birth] = notes
  }

  /// Of one that is about to leave.
  @inlinable
  mutating func endNotes(_ position: UInt32) {
    notes[self[position].birth] = nil
    // What many took goes back with the last.
    if notes.isEmpty, notes.capacity > 64 { notes = [:] }
  }

  @inlinable
  func notes(at position: UInt32) -> ObjectNotes? { self[position].isNoted ? notes[self[position].birth] : nil }

  /// What an entry tells of them.
  @usableFromInline
  func told(_ position: UInt32) -> (recomputeCost: Duration?, version: String?) {
    let notes = notes(at: position)
    return (notes?.recomputeCost.map { .nanoseconds(Int64(clamping: $0)) }, notes?.version)
  }

  /// Ordinary memory, without the versions' texts.
  var noteByteCount: Int { notes.capacity * (MemoryLayout<UInt64>.stride + MemoryLayout<ObjectNotes>.stride + 1) }
}
