// SPDX-License-Identifier: MIT
// Keys in ordinary memory: those without bytes of their own, and all keys of a cache that tells of departures by key.
//
//   key --hash--> stripe --hash--> candidates, one after the other: key copied under the stripe's mutex, compared under none
//                                      |
//                                      +--> number, stamp --> slot and element of the engine, under the shard's mutex
//
// A tracked key has a number in its cache, by which the engine's slot and element name it. A number is given back only under the
// mutex of its key's shard. So while a thread holds that mutex, a number that has the stamp it was found with means the same key.
//
// Users' code runs under no mutex: `hash(into:)` before any is taken, `==` between two looks at the stripe, a key's deinit and
// `onDeparture` when all have been released. The results cannot harm the table, which never asks a stored key for its hash again:
// a key whose hash or equality changes is merely not found any more.

import Glibc
import Synchronization

/// A stripe behind its mutex, and the counter that is read without the mutex.
final class KeyStripeHolder: Sendable {
  let stripe: Guarded<KeyStripe>
  /// How often a number of the stripe has departed: as long as this is unchanged, every number means the same key.
  let departures = Atomic<UInt64>(0)

  init(_ stripe: KeyStripe) { self.stripe = Guarded(stripe) }
}

/// Where a key was found.
struct FoundKey<Key: Sendable>: Sendable {
  let number: UInt32
  fileprivate let stamp: UInt64
  fileprivate let departures: UInt64
  fileprivate let stripe: Int
  /// The key as it was first stored, where it was copied.
  let key: Key?
}

/// `@unchecked Sendable` as its base class is: all it has is constant, atomic, or behind a mutex.
final class KeyTable<Key: Hashable & Sendable, Value: PurgeableValue>: Teller, EngineObserver, @unchecked Sendable {
  typealias Tell = @Sendable (Departure<Key, Value>) -> Void

  /// In a struct, because a bare function is wrapped once more each time it is read through a generic mutex.
  struct Handler: Sendable {
    let tell: Tell
  }

  let stripes: [KeyStripeHolder]
  let wantsValues: Bool
  /// nil from the cache's end on, because the handler may hold on to any object of the program.
  let handler: Guarded<Handler?>
  let waiting: Guarded<WaitingDepartures>
  /// Bytes of values copied for departures that have not been told.
  let copiedByteCount = Atomic<Int>(0)
  let notKept = Atomic<UInt64>(0)
  /// Whether more departures wait than the telling thread keeps up with, or there is no thread. Checked by every call that takes
  /// a mutex.
  let needsHelp = Atomic<Bool>(false)
  /// Raised in each forked child, where the entries from before the fork do not exist.
  let epoch = Atomic<UInt64>(0)
  private let bytes = Atomic<Int>(0)
  /// Whether `==` and deinit of the keys are the standard library's, so that they may run under a mutex.
  private let isOfStandardLibrary: Bool
  private static var keyOffset: Int {
    let mask = MemoryLayout<Key>.alignment - 1
    return (MemoryLayout<KeyEntry>.size + mask) & ~mask
  }

  init(tell: Tell?) {
    let alignment = max(MemoryLayout<Key>.alignment, MemoryLayout<KeyEntry>.alignment)
    let byteCount = (Self.keyOffset + MemoryLayout<Key>.size + alignment - 1) & ~(alignment - 1)
    // Both have room for a key, and the old one has a key.
    let move = unsafe KeyMove { old, new in unsafe Self.keyPointer(new).moveInitialize(from: Self.keyPointer(old), count: 1) }
    stripes = (0..<KeyStripe.count).map { number in
      KeyStripeHolder(KeyStripe(number: number, entryByteCount: byteCount, alignment: alignment, moveKey: move))
    }
    isOfStandardLibrary = KeyForm<Key>.isOfStandardLibrary
    wantsValues = tell != nil
    handler = Guarded(tell.map { Handler(tell: $0) })
    waiting = Guarded(WaitingDepartures())
  }

  deinit {
    // Ends the entries that are left. No other thread knows of the table any more.
    for holder in stripes {
      var left = holder.stripe.withLock { $0.takeAll() }
      unsafe left.destroy(end)
    }
  }

  /// Called when the cache has ended: ends its keys and releases its handler. Under no mutex.
  func end() {
    let last = handler.withLock { handler in
      defer { handler = nil }
      return handler
    }
    for holder in stripes { endKeys(of: holder) }
    _ = last
  }

  private func endKeys(of holder: KeyStripeHolder) {
    var at = 0
    // One by one: another thread may still have departed entries of the cache in hand, so the memory stays until the table ends.
    while true {
      let key = change(holder) { stripe -> Key? in
        guard let entry = unsafe stripe.firstLiving(from: &at) else { return nil }
        holder.departures.add(1, ordering: .relaxed)
        unsafe stripe.depart(entry)
        let key = unsafe Self.keyPointer(entry).move()
        unsafe stripe.giveBack(entry, isEnd: true)
        return key
      }
      if key == nil { return }
    }
  }

  var byteCount: Int { bytes.load(ordering: .relaxed) }
  var notKeptCount: UInt64 { notKept.load(ordering: .relaxed) }

  override func run() { tellWaiting() }

  // MARK: Finding

  private enum Step {
    case found(FoundKey<Key>)
    /// Compare this one, then go on.
    case candidate(FoundKey<Key>)
    case absent
  }

  /// The number of a key, nil if it has none.
  func find(_ key: Key, hash: UInt64) -> FoundKey<Key>? {
    let number = KeyStripe.stripe(ofHash: hash)
    var below = UInt64.max
    var last: UInt32?
    while true {
      let step = change(stripes[number]) { stripe -> Step in
        self.step(in: stripe, number, key, hash, below: below, above: 0, last)
      }
      switch step {
      case .found(let found): return found
      case .absent: return nil
      case .candidate(let found):
        // Under no mutex: the user's code.
        if found.key == key { return found }
        (below, last) = (found.stamp, found.number)
      }
    }
  }

  /// The number of a key, a fresh one if it has none; nil when there are no more numbers, or no memory.
  func findOrMake(_ key: Key, hash: UInt64) -> FoundKey<Key>? {
    let number = KeyStripe.stripe(ofHash: hash)
    let holder = stripes[number]
    var below = UInt64.max
    var last: UInt32?
    // Candidates as old as this were compared in an earlier round; `newest` is the first of this round.
    var compared: UInt64 = 0
    var newest: UInt64 = 0
    while true {
      let step = change(holder) { stripe -> Step in
        var step = self.step(in: stripe, number, key, hash, below: below, above: compared, last)
        if case .absent = step, newest > compared {
          // Entries that came since the round began are compared as well.
          compared = newest
          step = self.step(in: stripe, number, key, hash, below: .max, above: compared, nil)
        }
        guard case .absent = step else { return step }
        guard let entry = unsafe stripe.make(hash: hash) else { return .absent }
        unsafe Self.keyPointer(entry).initialize(to: key)
        return .found(unsafe found(entry, number, key: key))
      }
      switch step {
      case .found(let found): return found
      case .absent: return nil
      case .candidate(let found):
        if found.key == key { return found }
        newest = max(newest, found.stamp)
        (below, last) = (found.stamp, found.number)
      }
    }
  }

  /// One look for a candidate. Under the stripe's mutex.
  private func step(
    in stripe: KeyStripe, _ number: Int, _ key: Key, _ hash: UInt64, below: UInt64, above: UInt64, _ last: UInt32?
  ) -> Step {
    guard var entry = unsafe stripe.next(hash: hash, below: below, above: above, last: last) else { return .absent }
    guard isOfStandardLibrary else { return .candidate(unsafe found(entry, number, key: Self.keyPointer(entry).pointee)) }
    while true {
      let known = unsafe Self.keyPointer(entry).pointee
      if known == key { return .found(unsafe found(entry, number, key: known)) }
      guard
        let next = unsafe stripe.next(hash: hash, below: entry.pointee.stamp, above: above, last: entry.pointee.number)
      else { return .absent }
      unsafe entry = next
    }
  }

  private func found(_ entry: EntryPointer, _ number: Int, key: Key?) -> FoundKey<Key> {
    unsafe FoundKey(
      number: entry.pointee.number, stamp: entry.pointee.stamp,
      departures: stripes[number].departures.load(ordering: .relaxed), stripe: number, key: key)
  }

  /// Whether the number still means the key. Called under the mutex of the key's shard; as long as that is held, the answer stays
  /// true.
  func isStill(_ found: FoundKey<Key>) -> Bool {
    let holder = stripes[found.stripe]
    // Relaxed: this number departs only under the mutex that the caller holds.
    if holder.departures.load(ordering: .relaxed) == found.departures { return true }
    return holder.stripe.withLock { stripe in
      guard stripe.epoch == epoch.load(ordering: .relaxed), let entry = unsafe stripe.living(found.number) else { return false }
      return unsafe entry.pointee.stamp == found.stamp
    }
  }

  /// Sets the cost of the entry under the number. Under the mutex of the key's shard, while `isStill`.
  func setCost(_ cost: UInt64, of found: FoundKey<Key>) {
    // Found by its number: the entry may have been moved.
    _ = unsafe living(found.number) { _, entry in unsafe entry.pointee.cost = cost }
  }

  // MARK: What the engine asks, under the shard's mutex

  private func living<R>(_ number: UInt32, _ body: (inout KeyStripe, EntryPointer) -> R?) -> R? {
    let result = stripes[KeyStripe.stripe(ofNumber: number)].stripe.withLock { stripe -> Carried<R?> in
      guard stripe.epoch == epoch.load(ordering: .relaxed), let entry = unsafe stripe.living(number) else { return Carried(nil) }
      return Carried(unsafe body(&stripe, entry))
    }
    return result.value
  }

  func hash(ofNumber number: UInt32) -> UInt64? { unsafe living(number) { unsafe $1.pointee.hashOrCopy } }

  func cost(ofNumber number: UInt32) -> UInt64? { unsafe living(number) { unsafe $1.pointee.cost } }

  func depart(_ number: UInt32, _ reason: DepartureReason, _ copy: ValueCopy, to list: inout DepartureList) {
    guard let entry = unsafe takeOut(number) else { return endCopy(copy) }
    unsafe entry.pointee.setEnd(reason: UInt8(reason.rawValue), absence: KeyEntry.absence(copy.absence))
    unsafe entry.pointee.hashOrCopy = UInt64(UInt(bitPattern: copy.block))
    unsafe list.append(entry)
    list.copiedByteCount += copy.byteCount
  }

  /// Takes back a number under which no entry was stored: its key ends with the list, and no handler is told. Under the mutex of
  /// the key's shard, while `isStill`.
  func release(_ found: FoundKey<Key>, to list: inout DepartureList) {
    guard let entry = unsafe takeOut(found.number) else { return }
    unsafe entry.pointee.setEnd(reason: 0, absence: KeyEntry.untold)
    unsafe list.append(entry)
  }

  /// Makes the living entry of a number depart. nil also when its key was ended and its place given back here.
  private func takeOut(_ number: UInt32) -> EntryPointer? {
    let holder = stripes[KeyStripe.stripe(ofNumber: number)]
    return unsafe living(number) { stripe, entry -> EntryPointer? in
      // Read by `isStill`. Raised under the mutex of the key's shard.
      holder.departures.add(1, ordering: .relaxed)
      unsafe stripe.depart(entry)
      guard !wantsValues, isOfStandardLibrary else { return unsafe entry }
      let before = stripe.byteCount
      unsafe Self.keyPointer(entry).deinitialize(count: 1)
      unsafe stripe.giveBack(entry)
      bytes.add(stripe.byteCount - before, ordering: .relaxed)
      return nil
    }
  }

  // MARK: Entries

  /// Changes a stripe, and counts the bytes that it takes. In a forked child, ends the parent's entries first. Under no mutex.
  private func change<R>(_ holder: KeyStripeHolder, _ body: (inout KeyStripe) -> R) -> R {
    let now = epoch.load(ordering: .relaxed)
    let (result, old) = holder.stripe.withLock { stripe -> (Carried<R>, KeyStripe?) in
      var old: KeyStripe?
      let before = stripe.byteCount
      if stripe.epoch != now {
        old = stripe.takeAll()
        stripe.epoch = now
      }
      let result = Carried(body(&stripe))
      bytes.add(stripe.byteCount - before, ordering: .relaxed)
      return (result, old)
    }
    if var old { unsafe old.destroy(end) }
    return result.value
  }

  /// Takes the key and the departure out of a departed entry, and frees the entry. Under no mutex.
  func open(_ entry: DepartedEntry) -> (key: Key, departure: EngineDeparture?) {
    let holder = unsafe stripes[KeyStripe.stripe(ofNumber: entry.pointer.pointee.number)]
    return change(holder) { stripe in
      let key = unsafe Self.keyPointer(entry.pointer).move()
      let departure = unsafe entry.pointer.pointee.departure
      unsafe stripe.giveBack(entry.pointer)
      return (key, departure)
    }
  }

  /// Ends the key of an entry and the copy of its value.
  private func end(_ entry: EntryPointer) {
    let departure = unsafe entry.pointee.isDeparted ? entry.pointee.departure : nil
    if let departure { unsafe free(departure.copy.block) }
    unsafe Self.keyPointer(entry).deinitialize(count: 1)
  }

  private static func keyPointer(_ entry: EntryPointer) -> UnsafeMutablePointer<Key> {
    // Room for a key follows each entry's head; bound to nothing else, ever.
    unsafe (UnsafeMutableRawPointer(entry) + keyOffset).assumingMemoryBound(to: Key.self)
  }
}

extension KeyEntry {
  fileprivate static let untold: UInt8 = 4

  fileprivate static func absence(_ absence: ValueAbsence?) -> UInt8 {
    switch absence {
    case nil: 0
    case .discarded: 1
    case .notKept: 2
    case .undecodable: 3
    }
  }

  /// Of a departed entry; nil when no handler is to be told.
  fileprivate var departure: EngineDeparture? {
    guard absence != Self.untold, let reason = DepartureReason(rawValue: Int(reason)) else { return nil }
    var copy = ValueCopy(absence: absence == 1 ? .discarded : absence == 2 ? .notKept : nil)
    if let block = unsafe UnsafeMutableRawPointer(bitPattern: UInt(hashOrCopy)) { unsafe copy = ValueCopy(block: block) }
    return EngineDeparture(reason: reason, cost: cost, copy: copy)
  }
}

/// `@unchecked Sendable`: carries a result out of a mutex to the thread that was in it.
struct Carried<Value>: @unchecked Sendable {
  let value: Value
  init(_ value: Value) { self.value = value }
}
