// SPDX-License-Identifier: MIT
// Who is asked when memory is short: one protocol for all that holds memory, and the list of those who do.

/// A cache, the regions, or whatever else holds memory that can be made again. The library's thread calls all of this, under no
/// mutex, and waits for it: code of the program has no place here.
protocol PressureClient: ForkProtected {
  var link: ClientLink<UnownedClient> { get }
  /// Those whose mutexes come after those of all clients, in forks (ForkGuard.swift).
  func forEachCompanion(_ body: (any ForkProtected) -> Void)

  // MARK: What it holds

  var holdsAnything: Bool { get }
  /// Bytes that the kernel may take by itself, which figures of the machine's memory count as room.
  var offeredBytes: Int { get }
  /// Rises by what goes back to the system. Only differences mean something.
  var returnedBytes: Int { get }

  // MARK: What it does

  /// Offers what is idle, and what else is due in each round of the library's thread. Returns in how many milliseconds it wants
  /// another round: 0 for the next one, `.max` for none before there is new work.
  func upkeepRound() -> UInt64
  func setPressure(_ level: PressureLevel)
  /// Lets go what it keeps off offer, if there is little room. Returns after how many nanoseconds it wants to look again; `.max`:
  /// not before the next round. Called after each round, with each event of pressure, and when that time is over.
  func lookAtRoom() -> UInt64
  /// Step 1 of a reaction (PressureReaction.swift). Returns the bytes put on offer.
  func offerAll() -> Int
  /// Step 2. Returns how many entries were lost.
  func dropLost() -> Int
  /// From here on it may have to give.
  func beginReaction()
  /// Step 3: gives back that part of what it holds, or a little more. `isFelt`: not because the program asked for it. False when
  /// nothing could be given back, nor will be by more slices.
  func giveSlice(ofParts parts: Int, isFelt: Bool) -> Bool
  /// Step 4.
  func shrinkBookkeeping(_ level: PressureLevel)
  /// Step 5. From here on it grows slowly. `factor`: how many times what it holds it may hold at once; nil where nobody knows.
  func beginSlowGrowth(by factor: Double?)
}

/// A client that keeps nothing off offer, and gives nothing in a reaction.
extension PressureClient {
  func forEachCompanion(_ body: (any ForkProtected) -> Void) {}
  var returnedBytes: Int { 0 }
  func setPressure(_ level: PressureLevel) {}
  func lookAtRoom() -> UInt64 { .max }
  func dropLost() -> Int { 0 }
  func beginReaction() {}
  func giveSlice(ofParts parts: Int, isFelt: Bool) -> Bool { false }
  func shrinkBookkeeping(_ level: PressureLevel) {}
  func beginSlowGrowth(by factor: Double?) {}
}

/// A client as the list knows it. `@safe`: the client leaves the list before it ends, under the mutex under which this is read.
@safe struct UnownedClient: Sendable {
  unowned(unsafe) let client: any PressureClient
}

/// Every client from its making to its end; the regions, which have no end, are not in the list. Has a mutex of its own, under
/// which nothing else is taken.
final class ClientRoster: ForkProtected {
  static let shared = ClientRoster()
  private let list = Guarded(ClientList<UnownedClient>())

  /// Called with the first client. What clients need of the layers below is made now, so that later calls allocate nothing for
  /// it.
  private init() {
    ProcessMemory.prepare()
    // For the regions. First: a fork that collects what is announced waits here for this to end, and has the turn meanwhile.
    ForkGuard.shared.reserve(1)
    ForkGuard.shared.announce(.clients) { items in
      for client in ListedClients() { items.append(client) }
      for client in ListedClients() { client.forEachCompanion { items.append($0) } }
    }
    ForkGuard.shared.announce(.lists) { $0.append(ClientRoster.shared) }
    rehearseFork()
  }

  /// Whether there is nobody to watch for: regions on offer are the kernel's.
  var isEmpty: Bool { list.withLock { $0.isEmpty } }

  /// Adds a client; its owner removes it before it ends. Only what a fork needs is allocated here, and the owner has tested that
  /// there is memory.
  func add(_ client: any PressureClient) {
    client.rehearseFork()
    client.forEachCompanion { $0.rehearseFork() }
    list.withLock { $0.append(UnownedClient(client: client), client.link) }
    // The client and its companions.
    ForkGuard.shared.reserve(3)
    WorkBell.expectWork()
  }

  func remove(_ client: any PressureClient) {
    let isLast = list.withLock { list -> Bool in
      list.remove(client.link)
      return list.isEmpty
    }
    ForkGuard.shared.dismiss(3)
    if isLast { WorkBell.review() }
  }

  func lockForFork() { list.lock() }
  func unlockAfterFork() { list.unlock() }

  fileprivate func client(
    after link: ClientLink<UnownedClient>?, _ number: UInt64
  ) -> (client: any PressureClient, number: UInt64)? {
    list.withLock { list in
      guard let found = list.client(after: link, number: number) else { return nil }
      return unsafe (found.client.client, found.number)
    }
  }
}

/// All clients, one after the other, the regions first. Each is kept alive until the next is asked for. Clients made meanwhile
/// are included. Takes only the roster's mutex, for a moment each time.
struct ListedClients: Sequence, IteratorProtocol {
  private var present: (any PressureClient)?
  private var number: UInt64 = 0
  private var isBeforeRegions = true

  mutating func next() -> (any PressureClient)? {
    if isBeforeRegions {
      isBeforeRegions = false
      return RegionClient.shared
    }
    let found = ClientRoster.shared.client(after: present?.link, number)
    present = found?.client
    number = found?.number ?? number
    return present
  }
}
