// SPDX-License-Identifier: MIT
// The reaction of all clients when memory is short, in steps, the cheapest first:
//
//   1  everything idle goes on offer, open slabs too        no entry is lost
//   2  what is lost or empty is dropped and given back      no entry is lost
//   3  slabs are given back in the policy's order,          entries are evicted, those worth it are copied out
//      slice by slice, until enough room is left            (a sixteenth of what is held a slice)
//   4  indexes, and at the critical level ghosts, shrink    misses say less of their reasons
//   5  less may be locked, and growth is slowed down        until pressure has ended; for a minute (SlowGrowth.swift)
//
// One call gives back slices as long as memory is short, for a fifth of a second at most; the next event goes on.

/// The result of one reaction, or of one call of `trim(level:)`.
public struct PressureRelief: Sendable, Hashable {
  /// Bytes put on offer: the kernel may take them from now on.
  public var offeredBytes = 0
  /// Bytes given back to the system, of slabs and of bookkeeping.
  public var givenBackBytes = 0
  /// Entries that were found lost, and dropped.
  public var lostEntryCount = 0
  /// The time until everything idle was on offer.
  public var offeringTime = Duration.zero
  /// The time of the whole reaction.
  public var time = Duration.zero

  mutating func add(_ other: PressureRelief) {
    offeredBytes += other.offeredBytes
    givenBackBytes += other.givenBackBytes
    lostEntryCount += other.lostEntryCount
    offeringTime += other.offeringTime
    time += other.time
  }
}

/// One reaction of several clients together: each gives back a share of what it holds. It allocates nothing, not even for
/// bookkeeping. `clients` is gone through several times.
enum PressureReaction {
  /// In nanoseconds.
  static let timeLimit: UInt64 = 200_000_000
  static let sliceShare = 16

  /// Gives back until the figures of the control group and of the machine show no shortage. `mustGive`: one slice in any case, at
  /// any level above normal. `told`: the smoothed level, by which clients lock less.
  @discardableResult
  static func run(
    _ clients: some Sequence<any PressureClient>, _ level: PressureLevel, told: PressureLevel, in group: MemoryGroup?,
    mustGive: Bool, root: String = "/"
  ) -> PressureRelief {
    // Once begun, giving back goes on until there is more room than it takes to begin.
    var isShort = false
    // What the clients could have held at the worst moment.
    var least: Int?
    return run(
      clients, level, told: told, mustGive: mustGive,
      isShort: { offered in
        let room = MemoryRoom.look(in: group, isShort: isShort, offeredBytes: offered, root: root)
        if let spare = room.spareBytes { least = min(least ?? .max, Int(clamping: offered) + spare) }
        isShort = room.missingBytes > 0
        return isShort
      },
      growth: { offered in least.map { Double($0) / Double(max(1, offered)) } })
  }

  /// `isShort` is asked before each slice; false ends the reaction. At the critical level, one slice is given in any case.
  /// `isFelt`: false when the program asked for the level; the locked limit then stays with the level of the pressure sources.
  /// `told`: as above; nil for `level`. `growth`: how many times what is left the clients may hold at once; nil where nobody
  /// knows.
  @discardableResult
  static func run(
    _ clients: some Sequence<any PressureClient>, _ level: PressureLevel, told: PressureLevel? = nil,
    timeLimit: UInt64 = timeLimit, mustGive: Bool = false, isFelt: Bool = true, isShort: (_ offeredBytes: UInt64) -> Bool,
    growth: (_ offeredBytes: UInt64) -> Double? = { _ in nil }
  ) -> PressureRelief {
    let begin = MonotonicTime.now
    var relief = PressureRelief()
    for client in clients {
      if isFelt { client.setPressure(told ?? level) }
      relief.offeredBytes += client.offerAll()
    }
    relief.offeringTime = .nanoseconds(MonotonicTime.now - begin)
    guard level != .normal else { return relief }
    let before = returnedBytes(clients)
    for client in clients {
      relief.lostEntryCount += client.dropLost()
      client.beginReaction()
    }
    var isFirst = true
    while MonotonicTime.now - begin < timeLimit {
      let offered = offeredBytes(clients)
      let must = isFirst && (mustGive || level == .critical)
      guard must || isShort(offered) else { break }
      isFirst = false
      let gave = clients.reduce(false) { gave, client in client.giveSlice(ofParts: sliceShare, isFelt: isFelt) || gave }
      if !gave { break }
    }
    let growth = isFirst ? nil : growth(offeredBytes(clients))
    for client in clients {
      client.shrinkBookkeeping(level)
      // Growth slows down only if a slice was given: otherwise there is room to grow. The kernel may have discarded pages all the
      // same, and a limit at what it left would sink with each event.
      if !isFirst { client.beginSlowGrowth(by: growth) }
    }
    let after = returnedBytes(clients)
    relief.givenBackBytes = max(0, after - before)
    relief.time = .nanoseconds(MonotonicTime.now - begin)
    return relief
  }

  /// What the clients have on offer together.
  static func offeredBytes(_ clients: some Sequence<any PressureClient>) -> UInt64 {
    clients.reduce(0) { $0 + UInt64($1.offeredBytes) }
  }

  private static func returnedBytes(_ clients: some Sequence<any PressureClient>) -> Int {
    clients.reduce(0) { $0 + $1.returnedBytes }
  }
}
