// SPDX-License-Identifier: MIT
// The order of eviction: whose turn it is, and what becomes of an entry whose turn has come. A value without heap, mutex or
// clock, which decides by the numbers it is given.
//
//   speculative --counter > 0--> probation          otherwise evicted, before all others
//   pinned                                          never evicted
//
//   store --> probation (a tenth) --counter >= 2--> main (the rest) --counter > 0--> main again, counter - 1
//     |            |                                  |
//     |            +--> ghost: stored again soon -----+--> main          otherwise: evicted
//     +--> main, where nothing has had to go yet and probation has its tenth
//
// No other code decides. Those that ask find the entries, and do to each what its fate says:
//   HeldShard+Evict.swift        one entry: limits of count and cost
//   HeldShard+EvictionRun.swift  the entries of one slab, or of many slabs together: all other evictions, idleness, compaction
//   HeldShard+Insert.swift       an entry whose slot another one needs
//
// The order is S3-FIFO, after J. Yang et al., "FIFO queues are all you need for cache eviction", SOSP 2023. The promotion at two
// uses, main before probation when main is full, and main filled at first are those of its reference implementation. Where this
// order differs, mostly because memory goes back by whole slabs, a comment at the decision says so.

/// Why an entry's turn has come.
enum EvictionCause: Equatable {
  /// A limit: another entry takes its place.
  case limit(DepartureReason)
  /// Memory is given back: nothing takes its place for now.
  case relief(DepartureReason)
  /// The entry is older than the mark of the idle time.
  case idle
  /// The entry's slab is hardly alive, and its memory is wanted. No entry leaves.
  case compaction
  /// Readers keep the entry's page off offer, and all of its slab with it. No entry leaves.
  case busy
  /// The entry's time is over. None is spared.
  case expiry

  /// Why an entry leaves that leaves for this cause; nil where none does.
  var reason: DepartureReason? {
    switch self {
    case .limit(let reason), .relief(let reason): reason
    case .idle: .idle
    case .compaction, .busy: nil
    case .expiry: .expired
    }
  }
}

/// What the order needs to know of a slab.
struct SlabFacts: Equatable {
  /// Bytes that the slab takes.
  var heldBytes = 0
  /// Bytes of its living elements.
  var livingBytes = 0
  var isOpen = false
  var isLarge = false
  var isLocked = false

  /// Whether what lives in it can move elsewhere, so that it goes back.
  var mayBeEmptied: Bool { !isOpen && !isLarge && !isLocked }
}

extension DepartureReason {
  /// Whether the entry had to go for another one, or for want of memory: the program is asked before (`shouldEvict`).
  var isEviction: Bool {
    switch self {
    case .count, .cost, .bytes, .growth, .pressure: true
    case .idle, .trimmed, .decider, .expired, .replaced, .removed, .tooLarge, .discarded: false
    }
  }

  /// The cause that the order of eviction goes by.
  var cause: EvictionCause {
    switch self {
    case .pressure, .trimmed: .relief(self)
    case .idle: .idle
    case .expired: .expiry
    // Nobody chooses for the last four.
    case .count, .cost, .bytes, .growth, .decider, .replaced, .removed, .tooLarge, .discarded: .limit(self)
    }
  }
}

/// What single entries are evicted for.
struct EvictionNeed {
  let reason: DepartureReason
  /// Entries without cost stay, because their going would free none.
  let isOfCost: Bool

  init(_ reason: DepartureReason, isOfCost: Bool = false) { (self.reason, self.isOfCost) = (reason, isOfCost || reason == .cost) }
}

struct S3FIFOOrder: Sendable {
  /// Probation gets one of so many parts.
  private let probationParts = 10
  /// So many entries are in probation before main is filled.
  private let leastInProbation = 10
  /// From this counter on a limit's eviction promotes an entry from probation to main.
  private let promotionCounter: UInt64 = 2

  // MARK: Coming in

  /// The queue of a new entry. `lastDeparture`: why its key left not long ago; nil where nothing is remembered. `credit`: what it
  /// is worth beside others (RecomputeCredit.swift). One with the credit of so many uses as probation asks for need not pass it.
  /// `fillsMain`: nothing has had to go, and main is filled; then one of no credit need not either.
  func queue(ofNew lastDeparture: Ghost.Reason?, credit: Int = 0, fillsMain: Bool = false) -> EvictionQueue {
    if credit >= (fillsMain ? 0 : Int(promotionCounter)) { return .main }
    return switch lastDeparture {
    case .evicted, .discarded: .main
    case .evictedFromMain, .removed, .expired, nil: .probation
    }
  }

  /// Whether main is filled, where nothing has had to go: when probation has its part of a limit. Where keys come in a round that
  /// is longer than the limit, those that fill main at first stay, and are hit in each round; all of them in probation would push
  /// each other out before the first hit. In a cache of few entries what is new would go before anybody could ask for it again.
  func fillsMain(beside probation: QueueSums, limit: QueueSums) -> Bool {
    probation.count >= leastInProbation
      && (probation.count >= limit.count / probationParts || probation.cost >= limit.cost / UInt128(probationParts)
        || probation.byteCount >= limit.byteCount / probationParts)
  }

  /// The counter of a new entry, whose credit counts as uses; and of one that takes another value, whose queue stays.
  @inline(__always) func counter(ofNew credit: Int, replacing counter: UInt64?) -> UInt64 {
    max(counter.map { min(Slot.highestCounter, $0 + 1) } ?? 0, uses(of: credit))
  }

  private func uses(of credit: Int) -> UInt64 { UInt64(max(0, credit)) }

  /// A counter after reads have aged it.
  func aged(_ counter: UInt64) -> UInt64 { counter / 2 }

  /// What is remembered of the key of an entry that leaves; nil for nothing. `queue`: nil where it does not matter. What left
  /// main for a limit had its time there: it is remembered for the reason of a miss alone.
  func remembered(of reason: DepartureReason, from queue: EvictionQueue?) -> Ghost.Reason? {
    switch reason {
    case .replaced, .tooLarge: nil
    case .removed: .removed
    case .discarded: .discarded
    case .expired: .expired
    case .count, .cost, .bytes, .growth, .decider: queue == .main ? .evictedFromMain : .evicted
    case .pressure, .idle, .trimmed: .evicted
    }
  }

  /// How many keys of departed entries are remembered beside so many living ones.
  func rememberedCount(ofLiving count: Int) -> Int { max(1, count - count / probationParts) }

  // MARK: Whose turn it is

  /// The queue that evicts next, by the sums of both: entries, cost or bytes. `limit`: of both together; nil stands for what they
  /// hold. `hasSpeculative`: whether there are entries that go before these.
  func next(probation: UInt128, main: UInt128, limit: UInt128? = nil, hasSpeculative: Bool = false) -> EvictionQueue {
    if hasSpeculative { return .speculative }
    if main == 0 { return .probation }
    if probation == 0 { return .main }
    let parts = UInt128(probationParts)
    guard let limit else { return probation * parts > probation + main ? .probation : .main }
    // A division of 128 bits takes as long as all the rest.
    let part = limit >> 64 == 0 ? UInt128(UInt64(truncatingIfNeeded: limit) / UInt64(probationParts)) : limit / parts
    return main > limit - min(limit, max(1, part)) ? .main : .probation
  }

  /// Whether one entry goes before another, where only these two are compared.
  func goesFirst(_ one: (counter: UInt64, age: UInt64), before other: (counter: UInt64, age: UInt64)) -> Bool { one < other }

  /// How many of a queue's oldest slabs are looked at for one that is sparse, and goes before all others.
  static let sparseLooks = 16
  /// How many slabs a compaction looks at. The next one goes on from there.
  static let compactionLooks = 32
  /// How many slabs an eviction passes over in each queue because they are locked.
  static let lockedLooks = 64

  /// How many entries are evicted where an index that cannot grow needs room: this makes room for the next stores too.
  func countForRoom(ofEntries count: Int) -> Int { count / 16 + 1 }

  // MARK: What becomes of an entry

  enum Fate: Equatable {
    case drop(DepartureReason)
    /// The entry goes to the young end of a queue.
    case move(EvictionQueue, counter: UInt64)
    /// The entry stays where it is.
    case stay(counter: UInt64)
  }

  /// What becomes of the entries of a slab, or of a piece of it; or of one entry.
  struct Rule: Equatable {
    /// The queue that the entries are in.
    let queue: EvictionQueue
    let cause: EvictionCause
    /// Entries with a lower counter leave.
    var threshold: UInt64
    /// So many bytes of the other entries are spared; those beyond leave as well.
    var room = Int.max
    /// How entries are spared.
    var sparing = Sparing.inMain
  }

  enum Sparing {
    /// The entry moves to main.
    case inMain
    /// The entry moves within its queue, and keeps its counter.
    case inQueue
    /// The entry does not move.
    case inPlace
  }

  /// One eviction spares so many entries, or so many large entries for their memory, and then evicts the next one even though it
  /// was used. This bounds how long an eviction takes where nearly all entries are hot. The next eviction goes on from there, so
  /// every entry loses a use before the first one is passed again.
  static let mostSpared = 256
  static let mostLargeSpared = 15

  /// How many rounds an entry with this counter outlives the first one that leaves at its first turn.
  func rounds(counter: UInt64, _ queue: @autoclosure () -> EvictionQueue, _ cause: EvictionCause) -> UInt64 {
    // What is promoted leaves main at its turn there.
    if case .limit = cause, queue() == .probation { return counter >= promotionCounter ? 1 : 0 }
    return counter
  }

  /// The rule for a single entry: sparing it takes no room from another one. `spares`: false when the eviction has spared enough.
  func rule(_ queue: EvictionQueue, _ cause: EvictionCause, spares: Bool = true) -> Rule {
    var rule = Rule(queue: queue, cause: cause, threshold: 1)
    switch cause {
    case .limit: if queue == .probation { rule.threshold = promotionCounter }
    // Memory that is given back is not filled again at once, so the ghost cannot correct an eviction soon. There, one read makes
    // an entry worth keeping.
    case .relief, .idle: break
    case .compaction, .busy: (rule.threshold, rule.sparing) = (0, .inQueue)
    case .expiry: rule.threshold = Slot.highestCounter + 1
    }
    if !spares { rule.threshold = Slot.highestCounter + 1 }
    return rule
  }

  /// The rule for a slab, or for a piece of it. `byteCounts`: bytes of the piece's entries, by counter. `isWhole`: they are all
  /// that lives in the slab. `spares`: false when the eviction has spared enough large entries.
  func rule(
    _ queue: EvictionQueue, _ cause: EvictionCause, of slab: SlabFacts, byteCounts: SIMD4<Int>, isWhole: Bool = true,
    spares: Bool = true
  ) -> Rule {
    var rule = rule(queue, cause, spares: spares || !slab.isLarge)
    let noted = byteCounts.wrappedSum()
    // A piece has its share of the slab's room.
    let part = isWhole ? 1 : min(1, Double(noted) / Double(max(1, slab.livingBytes)))
    let room = Int(Double(room(ofBytes: slab.heldBytes)) * part)
    switch cause {
    case .limit, .relief:
      // A large entry moves with its slab, and needs no room.
      if slab.isLarge { break }
      if isSparse(slab) {
        (rule.threshold, rule.sparing) = (0, .inQueue)
        break
      }
      // Spared entries are copied. When more were used than there is room for, the most used ones are spared.
      let lowest = rule.threshold
      rule.threshold = Slot.highestCounter
      rule.room = room
      var spared = byteCounts[Int(rule.threshold)]
      while rule.threshold > lowest, spared + byteCounts[Int(rule.threshold) - 1] <= room {
        rule.threshold -= 1
        spared += byteCounts[Int(rule.threshold)]
      }
    case .idle:
      // A slab that is locked or mostly in use stays in one piece, and only its idle entries leave.
      let used = noted - byteCounts[0]
      if slab.isLocked || used > room || slab.isLarge && used > 0 { rule.sparing = .inPlace }
    case .compaction, .expiry: break
    case .busy:
      // Where most of the slab is in use, a fresh slab would be as busy.
      if noted > self.room(ofBytes: slab.livingBytes) { rule.sparing = .inPlace }
    }
    return rule
  }

  /// How many bytes of a slab may be copied: at most half, so that every eviction frees memory.
  private func room(ofBytes byteCount: Int) -> Int { byteCount / 2 }

  /// The fate of an entry of so many bytes, which are taken off the rule's room where it is spared. A `credit` below 0 takes a
  /// use off, each time.
  func fate(counter: UInt64, credit: Int = 0, byteCount: Int, _ rule: inout Rule) -> Fate {
    assert(counter <= Slot.highestCounter && byteCount >= 0, "PurgeableCache: a counter or a length that no entry has")
    var counter = counter
    switch rule.cause {
    case .limit, .relief: if credit < 0, counter > 0 { counter -= 1 }
    case .idle, .compaction, .busy, .expiry: break
    }
    guard counter >= rule.threshold, byteCount <= rule.room else {
      return rule.cause.reason.map { .drop($0) } ?? .stay(counter: counter)
    }
    rule.room -= byteCount
    var left = counter
    switch (rule.cause, rule.queue) {
    // The entry goes after one to two idle times without further use.
    case (.idle, _): left = 0
    // The entry begins anew in main.
    case (.limit, .probation): left = uses(of: credit)
    // One use less, not none, even for an entry that comes to main only now: its turn may come again before it could be read.
    case (.limit, .main), (.relief, _): left = max(counter, 1) - 1
    // Its first hit has made it normal.
    case (.limit, .speculative), (.limit, .pinned): break
    case (.compaction, _), (.busy, _), (.expiry, _): break
    }
    switch rule.sparing {
    case .inMain: return .move(rule.queue == .speculative ? .probation : .main, counter: left)
    case .inQueue: return .move(rule.queue, counter: counter)
    case .inPlace: return .stay(counter: left)
    }
  }

  /// The fate of an entry that was to move, where there is no memory for its copy.
  func fate(unmoved counter: UInt64, _ cause: EvictionCause) -> Fate {
    if cause == .idle { return .stay(counter: counter) }
    return cause.reason.map { .drop($0) } ?? .stay(counter: counter)
  }

  // MARK: Slabs that are hardly alive, or busy

  /// Whether a slab is sparse, and so goes before all others. Its living entries move within their queue, and keep their
  /// counters.
  func isSparse(_ slab: SlabFacts) -> Bool {
    slab.mayBeEmptied && Double(slab.livingBytes) < Self.sparseShare * Double(slab.heldBytes)
  }

  /// A slab is sparse where less than this share of what it holds lives.
  static let sparseShare = 0.25

  /// Whether so much of what is held is dead that a search for sparse slabs is worth while.
  func wantsCompaction(livingBytes: Int, heldBytes: Int) -> Bool { livingBytes * 2 < heldBytes }

  /// How many busy slabs of a queue are relieved in one round.
  static let mostRelieved = 16

  /// Whether a slab has been kept off offer for so many rounds that its readers' entries should move: each eighth round.
  func isBusy(_ slab: SlabFacts, rounds: Int) -> Bool { rounds > 0 && rounds % 8 == 0 && !slab.isLarge }
}
