// SPDX-License-Identifier: MIT
// When a source is waited for and when it is asked, with a clock that the test sets.

import Glibc
import Testing

@testable import Purgeable

@Suite("pressure: when a source is asked")
struct PressureFeedTests {
  private static let second: UInt64 = 1_000_000_000
  private static let start: UInt64 = 100 * second

  @Test("with events: asked at first, then there is no deadline, whatever is held")
  func events() {
    let source = FakeSource()
    var feed = PressureFeed(source)
    #expect(feed.deadline(at: Self.start, anybodyHolds: true) == Self.start)
    #expect(feed.isDue(at: Self.start, anybodyHolds: false, isAwake: false))
    _ = feed.ask(ready: [], at: Self.start)
    #expect(feed.deadline(at: Self.start, anybodyHolds: true) == nil)
    #expect(!feed.isDue(at: Self.start + 99 * Self.second, anybodyHolds: true, isAwake: false))
    #expect(feed.isDue(at: Self.start + Self.second, anybodyHolds: false, isAwake: true))
    #expect(!feed.isDue(at: Self.start + Self.second - 1, anybodyHolds: false, isAwake: true))
    // Where descriptors cannot be waited for, the source has to be asked.
    #expect(feed.deadline(at: Self.start, anybodyHolds: true, hearsEvents: false) == Self.start + Self.second)
    #expect(feed.deadline(at: Self.start, anybodyHolds: false, hearsEvents: false) == nil)
  }

  @Test("polling: at its interval, never more often than once a second, and only while anybody holds anything")
  func polling() {
    for (interval, nanoseconds) in [(Duration.milliseconds(1), Self.second), (.seconds(3), 3 * Self.second)] {
      var feed = PressureFeed(FakeSource(hasEvents: false, pollingInterval: interval))
      _ = feed.ask(ready: [], at: Self.start)
      #expect(feed.deadline(at: Self.start, anybodyHolds: true) == Self.start + nanoseconds)
      #expect(feed.deadline(at: Self.start, anybodyHolds: false) == nil)
      #expect(feed.isDue(at: Self.start + nanoseconds, anybodyHolds: true, isAwake: false))
      #expect(!feed.isDue(at: Self.start + nanoseconds - 1, anybodyHolds: true, isAwake: false))
      #expect(!feed.isDue(at: Self.start + nanoseconds, anybodyHolds: false, isAwake: false))
    }
  }

  @Test("under pressure: once a second until it has ended, then quiet again")
  func pressure() {
    let source = FakeSource()
    var feed = PressureFeed(source)
    source.set(.critical)
    var now = Self.start
    let answer = feed.ask(ready: [], at: now)
    #expect(answer == PressureFeed.Answer(raw: .critical, level: .critical, before: .normal))
    source.set(.normal)
    var asked = 0
    while let deadline = feed.deadline(at: now, anybodyHolds: false), asked < 20 {
      #expect(deadline == now + Self.second)
      now = deadline
      #expect(feed.isDue(at: now, anybodyHolds: false, isAwake: false))
      _ = feed.ask(ready: [], at: now)
      asked += 1
    }
    #expect(asked == 5, "one to see that it is lower, two for each step")
    #expect(feed.level == .normal)
  }

  @Test("events that follow closely are heard at most every 0.4 s; after a quiet second at once")
  func storm() {
    let source = FakeSource()
    var feed = PressureFeed(source)
    let ready = source.descriptors
    var now = Self.start
    _ = feed.ask(ready: [], at: now)
    #expect(feed.descriptors(at: now) == ready)
    var pauses: [UInt64] = []
    for _ in 0..<4 {
      _ = feed.ask(ready: ready, at: now)
      #expect(feed.descriptors(at: now).isEmpty)
      let deadline = feed.deadline(at: now, anybodyHolds: true)!
      pauses.append((deadline - now) / 1_000_000)
      now = deadline
      #expect(feed.descriptors(at: now) == ready)
    }
    #expect(pauses.suffix(3) == [200, 400, 400] && pauses[0] == 100)
    now += 2 * Self.second
    _ = feed.ask(ready: ready, at: now)
    #expect(feed.deadline(at: now, anybodyHolds: true) == now + PressureFeed.leastPause)
  }

  @Test("a descriptor that somebody closed is opened anew, at most once a second")
  func closed() {
    let source = FakeSource()
    var feed = PressureFeed(source)
    let bad = source.descriptors.map { PressureDescriptor(descriptor: $0.descriptor, events: Int16(POLLNVAL)) }
    _ = feed.ask(ready: bad, at: Self.start)
    #expect(source.reopenCount.load(ordering: .relaxed) == 1)
    #expect(feed.descriptors(at: Self.start + Self.second - 1).isEmpty)
    #expect(!feed.descriptors(at: Self.start + Self.second).isEmpty)
  }
}
