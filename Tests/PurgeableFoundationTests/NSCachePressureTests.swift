// SPDX-License-Identifier: MIT
// PurgeableNSCache when memory is short: who is asked, who goes, who is told.

import Foundation
import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable
@testable import PurgeableFoundation

/// A source whose level the test sets.
private final class SetSource: PressureSource {
  let name = "set by a test"
  private let event = OwnedDescriptor.event()!
  private let raw = Atomic<Int32>(0)

  var descriptors: [PressureDescriptor] { [PressureDescriptor(descriptor: event.number, events: Int16(POLLIN))] }

  func set(_ level: PressureLevel) {
    raw.store(level.rawValue, ordering: .releasing)
    event.signal()
  }

  func level(ready: [PressureDescriptor]) -> PressureLevel {
    event.drain()
    return PressureLevel(rawValue: raw.load(ordering: .acquiring)) ?? .normal
  }
}

@Suite("PurgeableNSCache, when memory is short")
struct NSCachePressureTests {
  /// A cache of 32 objects, the first asked for last; its delegate keeps the second.
  private static func filled() -> (PurgeableNSCache<NSNumber, Item>, Witness) {
    let cache = PurgeableNSCache<NSNumber, Item>()
    let witness = Witness()
    witness.onAsking = { _, object in (object as? Item)?.number != 1 }
    cache.delegate = witness
    for number in 0..<32 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    _ = cache.object(forKey: 0)
    return (cache, witness)
  }

  @Test("a slice is a sixteenth: the least recently used go, each is asked about and told, and a veto holds")
  func slice() {
    let (cache, witness) = Self.filled()
    #expect(cache.core.objects.store.giveSlice())
    #expect(witness.takeAsked() == [1, 2, 3] && witness.takeTold() == [2, 3])
    #expect(cache.allKeys.map(\.intValue) == [1] + Array(4..<32) + [0])
    // One of thirty is a slice too.
    #expect(cache.core.objects.store.giveSlice())
    #expect(witness.takeAsked() == [1, 4] && witness.takeTold() == [4])
  }

  @Test("a trim by level takes a sixteenth, tells and does not ask; the numbers show it")
  func trim() {
    let (cache, witness) = Self.filled()
    cache.trim(level: .warning)
    #expect(witness.takeAsked() == [] && witness.takeTold() == [1, 2])
    #expect(cache.statistics.departures[.trimmed] == 2 && cache.statistics.count == 30)
    if case .growth = cache.statistics.limitReason {} else { Issue.record("\(cache.statistics)") }
  }

  @Test("a trim to a fraction leaves the most recently used, tells and does not ask")
  func trimToFraction() {
    let (cache, witness) = Self.filled()
    _ = cache.object(forKey: 0)
    cache.trim(toFraction: 0.25)
    #expect(cache.allKeys.map(\.intValue) == Array(25..<32) + [0])
    #expect(witness.takeAsked() == [] && witness.takeTold() == Array(1..<25))
    for all in [1, Double.nan, 2] { cache.trim(toFraction: all) }
    #expect(cache.count == 8)
    cache.trim(toFraction: -1)
    #expect(cache.count == 0)
  }

  @Test("content that nobody uses goes before any object, and what is empty leaves")
  func contents() {
    let cache = PurgeableNSCache<NSNumber, AnyObject>()
    let witness = Witness()
    cache.delegate = witness
    let contents = (100..<108).map(Content.init)
    for number in 0..<24 { cache.setObject(Item(number), forKey: NSNumber(value: number)) }
    for content in contents { cache.setObject(content, forKey: NSNumber(value: content.number)) }
    #expect(contents[1].beginContentAccess())
    #expect(cache.core.objects.store.giveSlice())
    #expect(witness.takeTold() == [100, 102] && cache.count == 30)
    #expect(!contents[1].isContentDiscarded && !contents[3].isContentDiscarded)
  }

  @Test("an event of the pressure source takes a slice, on a thread of the library's")
  func event() async {
    await #expect(processExitsWith: .success) {
      let source = SetSource()
      PurgeableMemory.pressureSource = source
      let (cache, witness) = NSCachePressureTests.filled()
      source.set(.warning)
      guard patiently({ cache.count <= 30 }) else { fatalError("\(cache.count) objects") }
      // The machine itself is not short of memory: one event, one slice.
      let told = witness.takeTold()
      guard told.starts(with: [2]), cache.object(forKey: 1) != nil, cache.object(forKey: 0) != nil, cache.object(forKey: 2) == nil
      else { fatalError("told of \(told)") }
    }
  }

  @Test("a cache that goes while its delegate is told lives until that call has returned, and tells nobody after that")
  func dropped() {
    let witness = Witness()
    var cache: PurgeableNSCache<NSNumber, Item>? = PurgeableNSCache()
    weak let dropped = cache
    var seen = 0
    witness.onTelling = { told, _ in
      cache = nil
      seen += told.count
    }
    cache?.delegate = witness
    for number in 0..<4 { cache?.setObject(Item(number), forKey: NSNumber(value: number)) }
    let core = cache?.core
    _ = core?.objects.removeValue(forKey: ObjectKey(NSNumber(value: 2), KeyRulesMemo()))
    #expect(seen == 3 && dropped == nil && core?.objects.count == 3)
    core?.objects.removeAll()
    #expect(witness.takeTold() == [2])
  }
}
