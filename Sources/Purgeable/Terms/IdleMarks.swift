// SPDX-License-Identifier: MIT
// What `idleTime` goes by where no entry carries a time: marks in an order by age, each of what was youngest at a moment.

/// Places in one order, each with the time at which it was the youngest; oldest first. They are a quarter of the idle time apart,
/// so five are enough. When there is no room for another one, the next mark covers what came since the last. All zeros are none.
struct IdleMarks<Place: BitwiseCopyable & Sendable>: BitwiseCopyable, Sendable {
  struct Mark: BitwiseCopyable, Sendable {
    /// In nanoseconds of the cache's clock.
    let time: UInt64
    let place: Place
  }

  private static var capacity: Int { 6 }
  private var marks: InlineArray<6, Mark>
  private var count = 0

  /// `place`: any one.
  init(none place: Place) { marks = InlineArray(repeating: Mark(time: 0, place: place)) }

  /// Whether the last mark is so long ago that another one is wanted.
  func wantsMark(_ idleTime: UInt64, now: UInt64) -> Bool {
    count == 0 || now - min(now, marks[count - 1].time) >= idleTime / 4
  }

  mutating func append(_ place: Place, now: UInt64) {
    assert(count == 0 || marks[count - 1].time <= now, "a mark is older than the one before")
    guard count < Self.capacity else { return }
    marks[count] = Mark(time: now, place: place)
    count += 1
  }

  /// Takes out the first mark if it is as old as the idle time: all up to its place is idle.
  mutating func takeDue(_ idleTime: UInt64, now: UInt64) -> Place? {
    guard count > 0, now - min(now, marks[0].time) >= idleTime else { return nil }
    defer { remove(at: 0) }
    return marks[0].place
  }

  mutating func removeAll(where isGone: (Place) -> Bool) {
    for i in (0..<count).reversed() where isGone(marks[i].place) { remove(at: i) }
  }

  private mutating func remove(at index: Int) {
    count -= 1
    for i in index..<count { marks[i] = marks[i + 1] }
  }
}
