// SPDX-License-Identifier: MIT
// Loading what a cache lacks, for threads and for tasks. A cache adopts `Loading`, and calls `loads.overtake` before
// it stores or removes; its public functions look for the value first, and come here on a miss (Loading+Misses.swift).
//
// A single key is loaded as a group of one. No asker waits for others before its own load has ended, so two groups that want each
// other's keys do not wait for each other.

import Glibc

/// A cache that loads.
@usableFromInline
protocol Loading<Key, Value>: Sendable {
  associatedtype Key: Hashable & Sendable
  associatedtype Value: Sendable

  var loads: LoadTable<Key, Value> { get }
  /// Now, by the cache's clock, in nanoseconds. Never less than before.
  var moment: UInt64 { get }
  /// The value, without counting a use or a miss. `version`: nil for any; else nil where it has another, or none.
  func peekValue(forKey key: Key, version: String?) -> Value?
  /// Stores what was loaded, if `permit.take()` says so under the mutex under which the value is stored. `recomputeCost`: its
  /// part of the time of the load, in nanoseconds.
  func keep(_ value: Value, forKey key: Key, _ terms: LoadTerms, _ permit: LoadPermit, recomputeCost: UInt64)
  /// When the key's value was loaded, if that is noted.
  func birth(ofValueForKey key: Key) -> UInt64?
  /// Removes the key's value if `permit.take()` says so under the mutex of the key, and returns what it said.
  func drop(_ key: Key, _ permit: LoadPermit) -> Bool
  /// The most bytes of ordinary memory to be taken for keys that are remembered as absent.
  var absentByteLimit: Int { get }
  /// The bytes that a key takes beside its own words, as far as they are known.
  func ownByteCount(of key: Key) -> Int
  /// More absent keys may be remembered than before. Called under no mutex.
  func absenceWasNoted()
}

extension Loading {
  private typealias Seat = LoadSeat<Key, Value>

  /// The values of keys that the cache did not have, each key once. Runs `load` on this thread for those that no other thread
  /// loads, and waits for the others.
  ///
  /// `load` returns a value for each key that it gets, nil where there is none. `takesNil`: whether the asker takes that answer
  /// from another's load, else it loads by itself. Its own load returns no nil then.
  func load<E: Error>(
    _ keys: [Key], _ terms: LoadTerms, takesNil: Bool, _ load: ([Key]) throws(E) -> [Value?]
  ) throws(E) -> [Value?] {
    var values = [Value?](repeating: nil, count: keys.count)
    var left = keys.indices.filter { !(takesNil && loads.isAbsent(keys[$0], version: terms.version, at: moment)) }
    while !left.isEmpty {
      let call = LoadCall(thread: pthread_self())
      let seats = left.map { loads.join(keys[$0], $0, version: terms.version, for: call, within: nil) }
      defer { for seat in seats { loads.leave(seat) } }
      let missing = endKnown(seats, terms, takesNil)
      if !missing.isEmpty {
        let start = moment
        var result: Result<[Value?], any Error>
        do throws(E) {
          result = .success(try load(missing.map { $0.flight.loaded.key }))
        } catch {
          result = .failure(error)
        }
        end(missing, terms, result, since: start)
      }
      left = []
      for seat in seats where seat.isOwn { try take(seat, takesNil, E.self, to: &values, &left) }
      for seat in seats where !seat.isOwn {
        loads.block(seat)
        try take(seat, takesNil, E.self, to: &values, &left)
      }
    }
    return values
  }

  /// As above, with `load` in a task of its own. Waits for loads of threads and of tasks, and blocks no thread.
  nonisolated(nonsending) func load<E: Error>(
    _ keys: [Key], _ terms: LoadTerms, takesNil: Bool, _ load: @escaping @Sendable ([Key]) async throws(E) -> [Value?]
  ) async throws(E) -> [Value?] {
    // Who cannot throw this cannot leave.
    let cancellation = (CancellationError() as any Error) as? E
    var values = [Value?](repeating: nil, count: keys.count)
    var left = keys.indices.filter { !(takesNil && loads.isAbsent(keys[$0], version: terms.version, at: moment)) }
    while !left.isEmpty {
      if let cancellation, Task.isCancelled { throw cancellation }
      let call = LoadCall(thread: nil)
      let outer = EnclosingLoads.current
      let seats = left.map { loads.join(keys[$0], $0, version: terms.version, for: call, within: outer) }
      defer { for seat in seats { loads.leave(seat) } }
      let missing = endKnown(seats, terms, takesNil)
      if !missing.isEmpty {
        begin(call, missing, terms, within: outer, load)
      }
      left = []
      for seat in seats {
        if let cancellation {
          await withTaskCancellationHandler {
            await loads.wait(seat)
          } onCancel: {
            loads.leave(seat)
          }
          if seat.waiter.hasLeft { throw cancellation }
        } else {
          await loads.wait(seat)
        }
        try take(seat, takesNil, E.self, to: &values, &left)
      }
    }
    return values
  }

  /// Loads in a task of its own.
  private func begin<E: Error>(
    _ call: LoadCall, _ seats: [Seat], _ terms: LoadTerms, within outer: EnclosingLoads?,
    _ load: @escaping @Sendable ([Key]) async throws(E) -> [Value?]
  ) {
    let task = Task {
      await EnclosingLoads.$current.withValue(EnclosingLoads(call, outer)) {
        let start = moment
        var result: Result<[Value?], any Error>
        do throws(E) {
          result = .success(try await load(seats.map { $0.flight.loaded.key }))
        } catch {
          result = .failure(error)
        }
        if terms.isRefresh { loads.endRefresh() }
        end(seats, terms, result, since: start)
        call.hasEnded.store(true, ordering: .relaxed)
      }
    }
    loads.note(task, of: call)
  }

  /// Has a value that is there loaded anew, where it is older than the asker wants, unless somebody loads the key already, or as
  /// many values as may be are loaded anew. Waits for nothing. The asker's place at the flight stays taken, so nobody who leaves
  /// it cancels the load.
  @usableFromInline
  func refresh<E: Error>(_ key: Key, _ terms: LoadTerms, _ make: @escaping @Sendable () async throws(E) -> Value?) {
    guard loads.mayRefresh, isDue(key, terms) else { return }
    let call = LoadCall(thread: nil)
    let outer = EnclosingLoads.current
    let seat = loads.join(key, 0, version: terms.version, for: call, within: outer)
    guard seat.isOwn else { return loads.leave(seat) }
    // Within its own load there is no end to it. And a load may have ended in between.
    guard !seat.flight.isInner, isDue(key, terms), loads.beginRefresh() else {
      return loads.end(seat.flight, .failure(NothingLoaded()))
    }
    var terms = terms
    terms.isRefresh = true
    begin(call, [seat], terms, within: outer) { (_) async throws(E) in [try await make()] }
  }

  /// Whether there is a value that is older than the asker wants.
  func isDue(_ key: Key, _ terms: LoadTerms) -> Bool {
    guard let time = terms.refreshTime, let birth = birth(ofValueForKey: key) else { return false }
    let now = moment
    return birth == 0 || now - min(now, birth) >= time
  }

  /// Looks once more, as a load may have ended between the asker's look and its seat. Returns its own seats that are to be
  /// loaded.
  private func endKnown(_ seats: [Seat], _ terms: LoadTerms, _ takesNil: Bool) -> [Seat] {
    seats.filter { seat in
      guard seat.isOwn else { return false }
      let key = seat.flight.loaded.key
      let value = peekValue(forKey: key, version: terms.version)
      guard value != nil || takesNil && loads.isAbsent(key, version: terms.version, at: moment) else { return true }
      loads.end(seat.flight, .success(value))
      return false
    }
  }

  /// Keeps what was loaded, or notes that there is nothing, then tells those who wait. Errors are not kept.
  private func end(_ seats: [Seat], _ terms: LoadTerms, _ result: Result<[Value?], any Error>, since start: UInt64) {
    switch result {
    case .success(let values):
      let isRefresh = terms.isRefresh
      let terms = terms.answer?.terms ?? terms
      let time = moment - start
      let part = time / UInt64(seats.count)
      loads.count(time, failed: false)
      for (seat, value) in zip(seats, values) {
        if let value {
          keep(value, forKey: seat.flight.loaded.key, terms, seat.flight.permit, recomputeCost: terms.recomputeCost ?? part)
          loads.endAbsence(seat.flight.loaded.hash)
        } else {
          let hasDropped = isRefresh && drop(seat.flight.loaded.key, seat.flight.permit)
          if terms.absenceTime > 0 { noteAbsent(seat.flight, for: terms.absenceTime, hasTaken: hasDropped) }
        }
        loads.end(seat.flight, .success(value))
      }
    case .failure(let error):
      loads.count(moment - start, failed: true)
      for seat in seats { loads.end(seat.flight, .failure(error)) }
    }
  }

  private func noteAbsent(_ flight: Flight<Key, Value>, for time: UInt64, hasTaken: Bool) {
    loads.noteAbsent(
      flight, until: moment + time, ownByteCount: ownByteCount(of: flight.loaded.key), mostBytes: absentByteLimit,
      hasTaken: hasTaken)
    absenceWasNoted()
  }

  /// Takes the outcome of a load that has ended; where the asker cannot take it, the key is left to be loaded by itself.
  private func take<E: Error>(
    _ seat: Seat, _ takesNil: Bool, _: E.Type, to values: inout [Value?], _ left: inout [Int]
  ) throws(E) {
    var failure: E?
    switch seat.flight.outcome {
    case .success(let value) where value != nil || takesNil: values[seat.index] = value
    case .failure(let error as E) where !(error is NothingLoaded): failure = error
    default: return left.append(seat.index)
    }
    if !seat.isOwn { loads.countShared() }
    if let failure { throw failure }
  }
}

extension Loading {
  /// Of strings and arrays of bytes it is known.
  @usableFromInline
  func ownByteCount(of key: Key) -> Int {
    if let text = key as? String { return text.utf8.count }
    return (key as? [UInt8])?.count ?? 0
  }

  /// Far more than is asked for, and small beside a cache.
  static var mostAbsentBytes: Int { 1 << 20 }
}
