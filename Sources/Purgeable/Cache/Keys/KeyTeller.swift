// SPDX-License-Identifier: MIT
// The typed part of tracked keys: what tells the handler of departures, and what ends keys.
//
// Users' code runs under no mutex: `hash(into:)` before any is taken, `==` between two looks at a shard (KeySearch.swift), a
// key's deinit and `onDeparture` when all have been released.
//
//   a call of the program    --> list of its own --> told on its thread, slice by slice, before the call returns
//   the end of a load        --> put off         --> told likewise, when no flight of the call is left (Loading.swift)
//   the library by itself    --> `waiting`       --> told on a thread made for that, one a cache, which ends when nothing waits
//
// No departure is lost: it waits in the node of its key. Its value, which has to be copied, may be dropped: see `makeCopy`.

import Glibc
import Synchronization

/// The departures that wait for a cache's telling thread.
struct WaitingDepartures: Sendable {
  var list = DepartureList()
  /// The process that has a thread for it, 0 for none.
  var teller: pid_t = 0
  /// What waited when this process was forked: its parent tells of it.
  var foreign = DepartureList()
}

/// How much may wait to be told (documented at `PurgeableCache.init`).
enum TellingLimits {
  /// Copied values of a cache, in bytes: all that wait together.
  static let copiedBytes = 8 << 20
  /// The part of it for departures that the library causes by itself, mostly while memory is short.
  static let libraryBytes = 1 << 20
  /// A call that takes more values out tells in slices of about this.
  static let sliceBytes = 1 << 20
  /// Departures that wait for the telling thread: beyond it the program's calls tell some of them.
  static let waitingCount = 65_536
  /// How many departures such a call tells of.
  static let helpCount = 4
}

/// `@unchecked Sendable` as its base class is: all it has is constant, atomic, or behind a mutex.
final class KeyTeller<Key: Hashable & Sendable, Value: Sendable>: Teller, EngineObserver, @unchecked Sendable {
  typealias Tell = @Sendable (Departure<Key, Value>) -> Void

  /// What the handler is, and how a value is made of its bytes. In a struct, because a bare function is wrapped once more each
  /// time it is read through a generic mutex.
  struct Handler: Sendable {
    let tell: Tell
    let decode: @Sendable (RawSpan) -> Value?
  }

  let nodes: NodeMemory
  /// While a thread ends loads of these, telling is put off.
  private let loads: ObjectIdentifier
  /// Those who want to know what changed.
  let board = AtomicLazyReference<ChangeBoard<Key>>()
  /// Whether there is a handler. Changed with it, and read without its mutex: a hint, since `tell` looks again.
  private let hasHandler: Atomic<Bool>
  /// Whether `==` and deinit of the keys are the standard library's, so that they may run under a mutex.
  let isOfStandardLibrary = KeyForm<Key>.isOfStandardLibrary
  /// nil from the cache's end on at the latest, because the handler may hold on to any object of the program.
  private let handler: Guarded<Handler?>
  let waiting = Guarded(WaitingDepartures())
  /// Bytes of values copied for departures that have not been told.
  let copiedByteCount = Atomic<Int>(0)
  private let notKept = Atomic<UInt64>(0)
  /// Whether more departures wait than the telling thread keeps up with, or there is no thread. Checked by every call that takes
  /// a mutex.
  private let needsHelp = Atomic<Bool>(false)
  /// Raised in each forked child, where the departures from before the fork are not told.
  let epoch = Atomic<UInt64>(0)

  init(_ handler: Handler?, _ loads: LoadTable<Key>) {
    KnownTypes.make([Consequences.self, Handler?.self])
    self.loads = ObjectIdentifier(loads)
    nodes = NodeMemory(
      nodeByteCount: NodePointer.keyOffset(of: Key.self) + MemoryLayout<Key>.size,
      alignment: max(MemoryLayout<Key>.alignment, MemoryLayout<KeyNode>.alignment))
    hasHandler = Atomic(handler != nil)
    self.handler = Guarded(handler)
  }

  deinit {
    endAll(waiting.withLock { $0.list })
    endForeign()
  }

  var wantsValues: Bool { hasHandler.load(ordering: .relaxed) }
  var companion: (any ForkProtected)? { board.load() }

  /// nil takes it away, as when the cache has ended. Under no mutex: the old one ends, which is the program's code.
  func setHandler(_ new: Handler?) {
    let old = handler.withLock { handler in
      hasHandler.store(new != nil, ordering: .relaxed)
      defer { handler = new }
      return handler
    }
    withExtendedLifetime(old) {}
  }

  var notKeptCount: UInt64 { notKept.load(ordering: .relaxed) }
  var waitingCount: Int { waiting.withLock { $0.list.count } }

  // MARK: Nodes

  func endsAtOnce(_ node: NodePointer) -> Bool {
    guard !wantsValues, board.load()?.isWatched != true, isOfStandardLibrary else { return false }
    node.endKey(as: Key.self)
    nodes.giveBack(node)
    return true
  }

  /// Ends the key of a departed node, and frees the node. Under no mutex. Used in forked children, and so of no type that the
  /// runtime makes at its first use (ForkGuard.swift).
  private func end(_ entry: NodePointer) {
    entry.endKey(as: Key.self)
    nodes.giveBack(entry)
  }

  /// Ends departed keys, untold.
  private func endAll(_ list: consuming DepartureList) {
    while let entry = list.popFirst() {
      // A parent's copies are not counted here.
      if let departure = entry.node.departure { unsafe free(departure.copy.block) }
      end(entry)
    }
  }

  private func endForeign() {
    endAll(
      waiting.withLock { waiting in
        defer { waiting.foreign = DepartureList() }
        return waiting.foreign
      })
  }

  // MARK: Copies

  func makeCopy(byteCount: Int, mayExceed: Bool) -> ValueCopy? {
    let limit = ThreadRole.isLibrary ? TellingLimits.libraryBytes : TellingLimits.copiedBytes
    let sum = copiedByteCount.add(byteCount, ordering: .relaxed).newValue
    if sum <= limit || mayExceed && !ThreadRole.isLibrary, let copy = ValueCopy(byteCount: byteCount) { return copy }
    copiedByteCount.subtract(byteCount, ordering: .relaxed)
    notKept.add(1, ordering: .relaxed)
    return nil
  }

  func endCopy(_ copy: ValueCopy) { endCopy(copy, isCounted: true) }

  /// `isCounted`: false for a parent's copy in a forked child, which counts its own.
  func endCopy(_ copy: ValueCopy, isCounted: Bool) {
    guard unsafe copy.block != nil else { return }
    if isCounted { copiedByteCount.subtract(copy.byteCount, ordering: .relaxed) }
    unsafe free(copy.block)
  }

  // MARK: Telling

  /// Tells of the departure of a key's old value, in the process of the epoch. Under no mutex.
  func tell(_ departure: EngineDeparture, key: Key?, since epoch: UInt64) {
    if let later = unsafe ThreadRole.putOff(for: loads) {
      return unsafe later.pointee.append { [self] in tell(departure, key: key, since: epoch) }
    }
    let isOurs = isEpoch(epoch)
    if isOurs, let key { tell(departure, key: key) } else { endCopy(departure.copy, isCounted: isOurs) }
  }

  /// False in a child forked since, whose parent tells what departed before.
  private func isEpoch(_ epoch: UInt64) -> Bool { self.epoch.load(ordering: .relaxed) == epoch }

  /// Tells of a departure. Under no mutex.
  private func tell(_ departure: EngineDeparture, key: Key) {
    board.load()?.note(key)
    guard let handler = handler.withLock({ $0 }) else { return endCopy(departure.copy) }
    var absence = departure.copy.absence
    var value: Value?
    if unsafe departure.copy.block != nil, !MemoryReserve.isThere(2 * departure.copy.byteCount + MemoryReserve.ofNews) {
      // Decoding takes memory, and Swift's runtime ends the program when there is none.
      endCopy(departure.copy)
      notKept.add(1, ordering: .relaxed)
      absence = .notKept
    } else if unsafe departure.copy.block != nil {
      // Decoded only here, under no mutex, since decoding is the user's code. Safe: the copy is this function's until `endCopy`.
      value = unsafe handler.decode(UnsafeRawBufferPointer(departure.copy.bytes).bytes)
      endCopy(departure.copy)
      if value == nil { absence = .undecodable }
    }
    let cost = Int(clamping: departure.cost)
    call(handler, Departure(key: key, value: value, cost: cost, reason: departure.reason, absence: absence))
  }

  /// Tells of a value that was refused, and so never was an entry.
  func tellRefusal(_ departure: Departure<Key, Value>) {
    if let later = unsafe ThreadRole.putOff(for: loads) {
      let epoch = epoch.load(ordering: .relaxed)
      return unsafe later.pointee.append { [self] in if isEpoch(epoch) { tellRefusal(departure) } }
    }
    if let handler = handler.withLock({ $0 }) { call(handler, departure) }
  }

  /// Departures that calls of a handler cause. On the stack of the thread that is inside of the handler.
  private struct Consequences {
    var list = DepartureList()
    let epoch: UInt64
  }

  /// Calls the handler, and then again for what that call causes: however often a handler stores again what a limit evicts, its
  /// calls do not nest.
  private func call(_ handler: Handler, _ departure: Departure<Key, Value>) {
    if unsafe consequences != nil { return ThreadRole.whileTelling { handler.tell(departure) } }
    var consequences = Consequences(epoch: epoch.load(ordering: .relaxed))
    // Safe: the address is used within the closure only, by this thread.
    unsafe withUnsafeMutablePointer(to: &consequences) { consequences in
      unsafe ThreadRole.whileTelling(of: ObjectIdentifier(self), consequences) {
        handler.tell(departure)
        // Not equal in a child that the handler forked: the departures are the parent's.
        while unsafe isEpoch(consequences.pointee.epoch),
          let entry = unsafe consequences.pointee.list.popFirst()
        { tell(entry) }
        unsafe endAll(consequences.pointee.list)
      }
    }
  }

  /// Where the departures go that this thread causes now, inside of the handler; nil outside of it, and in a child forked since.
  private var consequences: UnsafeMutablePointer<Consequences>? {
    guard let notes = unsafe ThreadRole.notes(of: ObjectIdentifier(self))?.assumingMemoryBound(to: Consequences.self),
      unsafe isEpoch(notes.pointee.epoch)
    else { return nil }
    return unsafe notes
  }

  /// Tells of an entry, and ends its key.
  private func tell(_ entry: NodePointer) {
    guard let departure = entry.node.departure else { return end(entry) }
    let key = entry.takeKey(as: Key.self)
    nodes.giveBack(entry)
    tell(departure, key: key)
  }

  func deliver(_ list: consuming DepartureList) {
    if ThreadRole.isLibrary { return wait(list) }
    deliver(list, since: epoch.load(ordering: .relaxed))
  }

  private func deliver(_ list: consuming DepartureList, since epoch: UInt64) {
    if let later = unsafe ThreadRole.putOff(for: loads) {
      let list = list
      return unsafe later.pointee.append { [self] in deliver(list, since: epoch) }
    }
    if let consequences = unsafe consequences { return unsafe consequences.pointee.list.append(list) }
    // False in a child that a handler forked: the rest is the parent's to tell.
    while isEpoch(epoch), let entry = list.popFirst() { tell(entry) }
    endAll(list)
  }

  // MARK: The telling thread

  private func wait(_ list: DepartureList) {
    let (needsThread, count) = waiting.withLock { waiting in
      waiting.list.append(list)
      let process = getpid()
      defer { waiting.teller = process }
      return (waiting.teller != process, waiting.list.count)
    }
    if count > TellingLimits.waitingCount { needsHelp.store(true, ordering: .relaxed) }
    guard needsThread, !startTelling() else { return }
    // No thread could be made: the next call of the program tells, or the thread that the next departure asks for.
    waiting.withLock { $0.teller = 0 }
    needsHelp.store(true, ordering: .relaxed)
  }

  /// On the telling thread.
  override func run() {
    let before = epoch.load(ordering: .relaxed)
    while isEpoch(before) {
      let entry = waiting.withLock { waiting -> NodePointer? in
        if let entry = waiting.list.popFirst() { return entry }
        // Under the mutex: the next departure to wait starts another thread.
        waiting.teller = 0
        return nil
      }
      guard let entry else { return }
      tell(entry)
    }
  }

  func helpTelling() {
    // Not from a handler: handlers would nest, as deep as departures wait.
    guard needsHelp.load(ordering: .relaxed), !ThreadRole.isLibrary, !ThreadRole.isTelling else { return }
    endForeign()
    let before = epoch.load(ordering: .relaxed)
    for _ in 0..<TellingLimits.helpCount {
      let entry = waiting.withLock { waiting -> NodePointer? in
        let isBehind = waiting.teller == 0 || waiting.list.count > TellingLimits.waitingCount
        let entry = isBehind ? waiting.list.popFirst() : nil
        if entry == nil { needsHelp.store(false, ordering: .relaxed) }
        return entry
      }
      guard let entry else { return }
      tell(entry)
      if !isEpoch(before) { return }
    }
  }

  // MARK: Forking

  func lockForFork() {
    waiting.lock()
    handler.lock()
  }

  func unlockAfterFork() {
    handler.unlock()
    waiting.unlock()
  }

  func forgetInChild() {
    copiedByteCount.store(0, ordering: .relaxed)
    waiting.withLock { waiting in
      waiting.foreign.append(waiting.list)
      (waiting.list, waiting.teller) = (DepartureList(), 0)
    }
    // The next call ends the foreign keys.
    needsHelp.store(true, ordering: .relaxed)
    epoch.add(1, ordering: .relaxed)
  }
}
