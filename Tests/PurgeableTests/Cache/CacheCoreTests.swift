// SPDX-License-Identifier: MIT
// The core: what the kernel cannot take while there is room beside it, and what it can take again when there is not.

import PurgeableTestSupport
import Testing

@testable import Purgeable

private typealias Cache = PurgeableCache<Int, [UInt8]>

/// A cache whose rounds are the test's, and a count of what the kernel cannot take.
private struct CoreRun {
  let clock = ManualClock()
  let cache: Cache
  static let count = TestRun.isFull ? 4000 : 1500

  init(_ core: CacheCore?, _ order: EvictionOrder, tracksKeys: Bool = false) throws {
    var options = CacheOptions()
    (options.core, options.evictionOrder, options.tracksKeys, options.clock) = (core, order, tracksKeys, clock)
    options.pinnedByteLimit = 64 << 20
    cache = try Cache(options)
    ClientRoster.shared.remove(cache.engine)
    // The cache's end takes it off once more.
    ForkGuard.shared.reserve(3)
  }

  func value(_ key: Int) -> [UInt8] { described(UInt32(key), version: 0, count: 1000) }

  /// Stores entries, and has them go to main as what was pinned does.
  func fill(_ keys: Range<Int> = 0..<Self.count) throws {
    for key in keys { try store(value(key), key) }
  }

  func store(_ value: [UInt8], _ key: Int) throws {
    cache.setValue(value, forKey: key, priority: .pinned)
    #expect(try cache.setPriority(.normal, forKey: key))
  }

  func round(isShort: Bool = false) { _ = cache.engine.reviewCore { _ in isShort } }

  /// Has the kernel take all that it can, and returns which keys are left.
  func left(_ keys: Range<Int> = 0..<Self.count) throws -> [Int] {
    cache.sealAll()
    // A processor may have the last pages that it offered in a batch of its own, where none can be taken.
    drainBatches()
    try cache.pageOut()
    return keys.filter { cache.peekValue(forKey: $0) == value($0) }
  }
}

@Suite("cache: core", .enabled(if: PageOutTests.canDiscard))
struct CacheCoreTests {
  @Test(
    "without a core the kernel takes all that is idle; with one it cannot have the youngest part",
    arguments: EvictionOrder.allCases)
  func share(order: EvictionOrder) throws {
    for share in [nil, 0.25, 0.5, 1] as [Double?] {
      let run = try CoreRun(share.map { .share($0) }, order)
      try run.fill()
      run.round()
      let held = run.cache.statistics.memory.heldBytes
      let left = try run.left()
      let wanted = (share ?? 0) * Double(CoreRun.count)
      // Exact to a slab of each of the two lanes that may be open.
      #expect(abs(Double(left.count) - wanted) < 200, "\(order), \(String(describing: share)): \(left.count)")
      if let share {
        // The kernel may leave a few others: it cannot take a page that waits in a list of a processor where the thread ran
        // before.
        #expect(Set(left).isSuperset(of: CoreRun.count - Int(wanted) + 200..<CoreRun.count))
        #expect(abs(Double(run.cache.statistics.coreBytes) - share * Double(held)) < 3 * 65_536)
        #expect(run.cache.statistics.description.contains(" in the core"))
      }
      run.cache.checkBooksSwept()
    }
  }

  @Test("what is new is kept off offer before a round has looked at it", arguments: EvictionOrder.allCases, [false, true])
  func young(order: EvictionOrder, tracksKeys: Bool) throws {
    let run = try CoreRun(.share(0.5), order, tracksKeys: tracksKeys)
    try run.fill()
    // Large ones too, which have slabs of their own.
    for key in 0..<3 {
      try run.store(described(UInt32(key), version: 1, count: 300_000), -1 - key)
    }
    #expect(try run.left().count >= CoreRun.count - 200)
    for key in 0..<3 {
      #expect(run.cache.peekValue(forKey: -1 - key) == described(UInt32(key), version: 1, count: 300_000))
    }
    run.cache.checkBooksSwept()
  }

  @Test("what is new is in the core at once, and no more of it than twice the share and half of the memory")
  func youngIsCounted() throws {
    for (share, most) in [(0.01, 0.02), (0.25, 0.5), (1, 1)] {
      let run = try CoreRun(.share(share), .lru)
      try run.fill()
      func core() -> Double { Double(run.cache.statistics.coreBytes) / Double(run.cache.statistics.memory.heldBytes) }
      #expect(abs(core() - most) < 0.1, "\(core())")
      // Somebody has to look whether there is room for it.
      #expect(run.cache.engine.base.coreFrom.load(ordering: .relaxed) == 0 && (share < 0.1 || core() > 0))
      run.cache.engine.base.coreLimit.store(run.cache.statistics.coreBytes, ordering: .relaxed)
      let before = run.cache.statistics.coreBytes
      try run.fill(CoreRun.count..<CoreRun.count + 500)
      #expect(run.cache.statistics.coreBytes == before)
      run.cache.sealAll()
      run.cache.offerIdle()
      #expect(run.cache.statistics.memory.offeredBytes > 400_000)
      run.round()
      #expect(abs(core() - share) < 0.1, "\(core())")
      run.cache.checkBooksSwept()
    }
  }

  @Test("where all of main is kept, what is new in probation is kept too before a round has looked at it")
  func youngInProbation() throws {
    for share in [0, 1] as [Double] {
      let run = try CoreRun(share == 0 ? nil : .share(share), .s3FIFO)
      try run.fill()
      run.round()
      for key in 0..<1200 { run.cache[CoreRun.count + key] = pattern(1000) }
      run.cache.sealAll()
      run.cache.offerIdle()
      #expect(run.cache.engine.shards.founder.whileHeld { $0.books[.probation].count } >= 1000)
      let offered = run.cache.statistics.memory.offeredBytes
      if share == 1 { #expect(offered == 0) } else { #expect(offered > 1_000_000) }
      run.cache.checkBooksSwept()
    }
  }

  @Test("where memory is short all of it goes on offer, and is kept again when there was room for ten seconds")
  func letGo() throws {
    for order in EvictionOrder.allCases {
      let run = try CoreRun(.share(1), order)
      try run.fill()
      run.round()
      #expect(run.cache.statistics.coreBytes > (3 << 20) * CoreRun.count / 4000)
      run.round(isShort: true)
      #expect(run.cache.statistics.coreBytes == 0 && run.cache.core == .share(1))
      let count = run.cache.count
      run.cache.sealAll()
      run.cache.offerIdle()
      let offered = run.cache.statistics.memory.offeredBytes
      #expect(offered > 1000 * count)
      run.clock.advance(by: .seconds(9))
      run.round()
      #expect(run.cache.statistics.coreBytes == 0)
      // Short once more: ten seconds from here on.
      run.round(isShort: true)
      run.clock.advance(by: .seconds(9))
      run.round()
      #expect(run.cache.statistics.coreBytes == 0 && run.cache.statistics.memory.offeredBytes == offered)
      run.clock.advance(by: .seconds(1))
      run.round()
      // What was on offer is taken off.
      #expect(run.cache.statistics.coreBytes > 1000 * count && run.cache.statistics.memory.offeredBytes < 1 << 18)
      #expect(try run.left().count > count - 200)
      run.round(isShort: true)
      #expect(try run.left().count < 200)
      run.cache.checkBooksSwept()
    }
  }

  @Test("what was used within a time is kept, whatever its age", arguments: EvictionOrder.allCases, [false, true])
  func usedWithin(order: EvictionOrder, tracksKeys: Bool) throws {
    let run = try CoreRun(.usedWithin(.seconds(30)), order, tracksKeys: tracksKeys)
    run.round()
    try run.fill()
    run.clock.advance(by: .seconds(20))
    let (quarter, half) = (CoreRun.count / 4, CoreRun.count / 2)
    for key in 0..<quarter { #expect(run.cache[key] != nil) }
    for key in quarter..<half { #expect(run.cache.withBytes(forKey: key) { $0.byteCount } == 1000) }
    for key in half..<CoreRun.count { #expect(run.cache.containsValue(forKey: key)) }
    run.clock.advance(by: .seconds(20))
    // Whether memory is short is not asked of the machine.
    #expect(run.cache.engine.reviewCore { _ in false } == 0)
    run.round()
    let left = try run.left()
    #expect(left.count >= half && left.count < half + 400 && left.prefix(half).elementsEqual(0..<half), "\(left.count)")
    run.clock.advance(by: .seconds(20))
    run.round()
    #expect(run.cache.statistics.coreBytes == 0)
    #expect(try run.left().count < 200)
    run.cache.checkBooksSwept()
  }

  @Test("set and taken away while the cache is in use, and by options; what is out of range is named")
  func setting() throws {
    let run = try CoreRun(nil, .lru)
    try run.fill()
    run.cache.offerIdle()
    for core in [.share(0), .share(1.5), .share(.nan), .share(-1), .usedWithin(.zero), .usedWithin(.seconds(-1))] as [CacheCore] {
      #expect { try run.cache.setCore(core) } throws: { ($0 as? PurgeableError)?.kind == .invalidArgument("core") }
      var options = CacheOptions()
      options.core = core
      #expect { try Cache(options) } throws: { ($0 as? PurgeableError)?.kind == .invalidArgument("core") }
    }
    #expect(run.cache.core == nil)
    try run.cache.setCore(.share(1))
    run.round()
    #expect(try run.left().count > CoreRun.count - 200)
    try run.cache.setCore(.usedWithin(.seconds(10)))
    run.round()
    #expect(run.cache.core == .usedWithin(.seconds(10)))
    try run.cache.setCore(nil)
    #expect(run.cache.core == nil && run.cache.statistics.coreBytes == 0)
    #expect(try run.left().count < 200)
    var options = CacheOptions(name: "c")
    options.core = .share(0.5)
    #expect(options.description == "CacheOptions \"c\", core a share of 0.5")
    options.core = .usedWithin(.seconds(10))
    #expect(options.description == "CacheOptions \"c\", core used within 10.0 seconds")
    run.cache.checkBooksSwept()
  }

  @Test("evictions, trims and removals take what is in the core as they take all else", arguments: EvictionOrder.allCases)
  func evicted(order: EvictionOrder) throws {
    let run = try CoreRun(.share(1), order)
    try run.fill()
    run.round()
    try run.cache.setCountLimit(1000)
    #expect(run.cache.count == 1000)
    run.cache.trim(toFraction: 0.5)
    #expect(run.cache.count <= 500)
    try run.cache.setPriority(.pinned, forKey: run.cache.keys.first { _ in true }!)
    run.cache.removeAll()
    run.round()
    #expect(run.cache.isEmpty && run.cache.statistics.coreBytes < 200_000)
    try run.fill(0..<500)
    run.round()
    #expect(run.cache.count == 500)
    run.cache.checkBooks()
  }

  @Test("by the library's own thread: what was stored is in the core at first, and then its share of it")
  func byItself() async throws {
    var options = CacheOptions()
    (options.core, options.evictionOrder) = (.share(0.25), .lru)
    let cache = try Cache(options)
    for key in 0..<1000 { cache[key] = pattern(1000) }
    if MemoryRoom.spareBytes(in: ProcessMemory.group, wasTight: true, offeredBytes: 0) == 0 {
      try Test.cancel("too little memory is free for a cache to keep anything off offer")
    }
    #expect(await TestRun.comes { (200_000..<400_000).contains(cache.statistics.coreBytes) })
  }
}
