// SPDX-License-Identifier: MIT
// Loading what a cache lacks, for threads and for tasks. A cache adopts `Loading`, and calls `loads.overtake` before
// it stores or removes; its public functions look for the value first, and come here on a miss (Loading+Misses.swift).
//
// No asker waits for others before its own load has ended, so two groups that want each other's keys do not wait for each other.
// Nor do those who wait for a load wait for handlers of departures, which may load by themselves: what is stored with the end of
// a load, of a group with the end of all of it, is told of, and entries are asked about, when no flight is left (`ending`).
// In tasks a single key is loaded as a group of one; what threads do for one is written out below, without a group's arrays.

/// A cache that loads.
@usableFromInline
protocol Loading<Key, Value>: Sendable {
  associatedtype Key: Hashable & Sendable
  associatedtype Value: Sendable

  var loads: LoadTable<Key> { get }
  /// Now, by the cache's clock, in nanoseconds. Never less than before.
  var moment: UInt64 { get }
  /// The value, without counting a use or a miss. `version`: nil for any; else nil where it has another, or none.
  func peekValue(forKey key: Key, version: String?) -> Value?
  /// Stores what was loaded, if `permit.take()` says so under the mutex under which the value is stored. `recomputeCost`: its
  /// part of the time of the load, in nanoseconds.
  func keep(_ value: Value, forKey key: Key, _ terms: LoadTerms, _ permit: LoadPermit, recomputeCost: UInt64)
  /// When the key's value was loaded, if that is noted.
  func birth(ofValueForKey key: Key) -> UInt64?
  /// Removes the key's value, if it is of a version (nil for any), and `permit.take()` says so under the mutex of the key, and
  /// then `announce`; returns what they said.
  func drop(_ key: Key, version: String?, _ permit: LoadPermit, _ announce: (@Sendable () -> Bool)?) -> Bool
  /// The most bytes of ordinary memory to be taken for keys that are remembered as absent.
  var absentByteLimit: Int { get }
  /// The bytes that a key takes beside its own words, as far as they are known.
  func ownByteCount(of key: Key) -> Int
  /// More absent keys may be remembered than before. Called under no mutex.
  func absenceWasNoted()
  /// Whether keeping a value may call the program: it is told of departures, or asked before an eviction. While a load ends, the
  /// cache puts such calls off (`ThreadRole.putOff`, for `loads`).
  var callsProgram: Bool { get }
}

extension Loading {
  /// The value of a key that the cache did not have. Runs `load` on this thread, unless another thread loads the key: then waits
  /// for that one. `takesNil` as below. Compiled into callers, as the stores are: for any type it would take three times as long.
  @inlinable
  func load<E: Error>(_ key: Key, _ terms: LoadTerms, takesNil: Bool, _ load: () throws(E) -> Value?) throws(E) -> Value? {
    while !(takesNil && loads.hasFoundNothing(key, version: terms.version, at: moment)) {
      // Nobody leaves before the load has ended.
      let seat = loads.join(TypedLoadedKey(key), 0, terms, for: .ofThisThread, within: nil)
      if !seat.isOwn {
        loads.block(seat)
      } else if !endIfKnown(seat, key, terms, takesNil) {
        let start = moment
        do throws(E) {
          let value = try load()
          let time = countLoad(terms, since: start, failed: false)
          ending { end(seat.flight, key, value, terms, recomputeCost: time) }
          return value
        } catch {
          countLoad(terms, since: start, failed: true)
          loads.end(seat.flight, .failure(error))
          throw error
        }
      }
      var value: Value?
      if try take(seat, takesNil, E.self, to: &value) { return value }
    }
    return nil
  }

  /// The values of keys that the cache did not have, each key once. Runs `load` on this thread for those that no other thread
  /// loads, and waits for the others.
  ///
  /// `load` returns a value for each key that it gets, nil where there is none. `takesNil`: whether the asker takes that answer
  /// from another's load, else it loads by itself. Its own load returns no nil then.
  func load<E: Error>(
    _ keys: [Key], _ terms: LoadTerms, takesNil: Bool, _ load: ([Key]) throws(E) -> [Value?]
  ) throws(E) -> [Value?] {
    var values = [Value?](repeating: nil, count: keys.count)
    var left = keys.indices.filter { !(takesNil && loads.hasFoundNothing(keys[$0], version: terms.version, at: moment)) }
    while !left.isEmpty {
      let call = LoadCall.ofThisThread
      let seats = left.map { loads.join(TypedLoadedKey(keys[$0]), $0, terms, for: call, within: nil) }
      defer { for seat in seats { loads.leave(seat) } }
      let missing = seats.filter { $0.isOwn && !endIfKnown($0, keys[$0.index], terms, takesNil) }
      if !missing.isEmpty {
        let wanted = missing.map { keys[$0.index] }
        let start = moment
        var result: Result<[Value?], any Error>
        do throws(E) { result = .success(try load(wanted)) } catch { result = .failure(error) }
        end(missing, wanted, terms, result, since: start)
      }
      left = []
      for isOwn in [true, false] {
        for seat in seats where seat.isOwn == isOwn {
          if !isOwn { loads.block(seat) }
          if try !take(seat, takesNil, E.self, to: &values[seat.index]) { left.append(seat.index) }
        }
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
    var left = keys.indices.filter { !(takesNil && loads.hasFoundNothing(keys[$0], version: terms.version, at: moment)) }
    while !left.isEmpty {
      if let cancellation, Task.isCancelled { throw cancellation }
      let call = LoadCall(thread: nil)
      let outer = EnclosingLoads.current
      let seats = left.map { loads.join(TypedLoadedKey(keys[$0]), $0, terms, for: call, within: outer) }
      defer { for seat in seats { loads.leave(seat) } }
      let missing = seats.filter { $0.isOwn && !endIfKnown($0, keys[$0.index], terms, takesNil) }
      let task = missing.isEmpty ? nil : begin(call, missing, missing.map { keys[$0.index] }, terms, within: outer, load)
      left = []
      for seat in seats {
        if let cancellation {
          await withTaskCancellationHandler {
            await loads.wait(seat)
          } onCancel: {
            loads.leave(seat)
          }
          if seat.waiter?.hasLeft == true { throw cancellation }
        } else {
          await loads.wait(seat)
        }
        if try !take(seat, takesNil, E.self, to: &values[seat.index]) { left.append(seat.index) }
      }
      // What a call causes is told before it returns.
      if callsProgram { await task?.value }
    }
    return values
  }

  /// Loads the keys of seats in a task of its own.
  @discardableResult
  private func begin<E: Error>(
    _ call: LoadCall, _ seats: [LoadSeat], _ keys: [Key], _ terms: LoadTerms, within outer: EnclosingLoads?,
    _ load: @escaping @Sendable ([Key]) async throws(E) -> [Value?]
  ) -> Task<Void, Never> {
    let task = Task {
      await EnclosingLoads.$current.withValue(EnclosingLoads(call, outer)) {
        let start = moment
        var result: Result<[Value?], any Error>
        do throws(E) { result = .success(try await load(keys)) } catch { result = .failure(error) }
        if terms.isRefresh { loads.endRefresh() }
        end(seats, keys, terms, result, since: start)
        call.hasEnded.store(true, ordering: .relaxed)
      }
    }
    loads.note(task, of: call)
    return task
  }

  /// Has a value that is there loaded anew, where it is older than the asker wants, unless somebody loads the key already, or as
  /// many values as may be are loaded anew. Waits for nothing. The asker's place at the flight stays taken, so nobody who leaves
  /// it cancels the load.
  @usableFromInline
  func refresh<E: Error>(_ key: Key, _ terms: LoadTerms, _ make: @escaping @Sendable () async throws(E) -> Value?) {
    guard loads.mayRefresh, isDue(key, terms) else { return }
    let call = LoadCall(thread: nil)
    let outer = EnclosingLoads.current
    let seat = loads.join(TypedLoadedKey(key), 0, terms, for: call, within: outer)
    guard seat.isOwn else { return loads.leave(seat) }
    // Within its own load there is no end to it. And a load may have ended in between.
    guard !seat.flight.isInner, isDue(key, terms), loads.beginRefresh() else {
      return loads.end(seat.flight, .failure(NothingLoaded()))
    }
    var terms = terms
    terms.isRefresh = true
    begin(call, [seat], [key], terms, within: outer) { (_) async throws(E) in [try await make()] }
  }

  /// Whether there is a value that is older than the asker wants.
  func isDue(_ key: Key, _ terms: LoadTerms) -> Bool {
    guard let time = terms.refreshTime, let birth = birth(ofValueForKey: key) else { return false }
    // May have wrapped round.
    return UInt64(max(0, Int64(bitPattern: moment &- birth))) >= time
  }

  /// Looks once more, as a load may have ended between the asker's look and its own seat. False where the key is to be loaded.
  @inlinable
  func endIfKnown(_ seat: LoadSeat, _ key: Key, _ terms: LoadTerms, _ takesNil: Bool) -> Bool {
    let value = peekValue(forKey: key, version: terms.version)
    guard value != nil || takesNil && loads.hasFoundNothing(key, version: terms.version, at: moment) else { return false }
    loads.end(seat.flight, .success(value.map { $0 as Any }))
    return true
  }

  /// Returns the time of the load, in nanoseconds.
  @discardableResult
  @usableFromInline
  func countLoad(_ terms: LoadTerms, since start: UInt64, failed: Bool) -> UInt64 {
    let time = moment - start
    if failed || terms.answer?.terms?.countsAsLoad != false { loads.count(time, failed: failed) }
    return time
  }

  /// Ends the loads of keys. Errors are not kept, nor what a load makes that was cancelled because nobody waits.
  private func end(
    _ seats: [LoadSeat], _ keys: [Key], _ terms: LoadTerms, _ result: Result<[Value?], any Error>, since start: UInt64
  ) {
    switch result {
    case .success(let values):
      let part = countLoad(terms, since: start, failed: false) / UInt64(seats.count)
      if seats[0].flight.call.isCancelled.load(ordering: .relaxed) {
        for seat in seats { loads.end(seat.flight, .failure(NothingLoaded())) }
        return
      }
      ending { for i in seats.indices { end(seats[i].flight, keys[i], values[i], terms, recomputeCost: part) } }
    case .failure(let error):
      countLoad(terms, since: start, failed: true)
      for seat in seats { loads.end(seat.flight, .failure(error)) }
    }
  }

  /// Runs `body`, which ends loads; then calls the program, where what it kept is a reason to.
  @inlinable
  func ending(_ body: () -> Void) {
    if callsProgram { puttingOffCalls(body) } else { body() }
  }

  @usableFromInline
  func puttingOffCalls(_ body: () -> Void) { ThreadRole.puttingOff(for: ObjectIdentifier(loads), body) }

  /// Keeps what was loaded, or notes that there is nothing, then tells those who wait. Within `ending`.
  @inlinable
  func end(_ flight: Flight, _ key: Key, _ value: Value?, _ terms: LoadTerms, recomputeCost: UInt64) {
    let said = terms.said
    loads.noteFound(flight)
    if let value {
      keep(value, forKey: key, said, flight.permit, recomputeCost: said.recomputeCost ?? recomputeCost)
      loads.endAbsence(flight)
    } else {
      noteNothing(flight, key, terms, said)
    }
    loads.end(flight, .success(value.map { $0 as Any }))
  }

  @usableFromInline
  func noteNothing(_ flight: Flight, _ key: Key, _ terms: LoadTerms, _ said: LoadTerms) {
    // A file that was restored meanwhile may have had a value.
    let drops = terms.isRefresh || loads.hasRestored(since: flight)
    let hasDropped = drops && drop(key, version: flight.version, flight.permit, said.announce)
    // Nothing is here to go, and the second tier knows whether it has changed since it was read.
    if !drops { _ = said.announce?() }
    guard said.absenceTime > 0 else { return }
    loads.noteAbsent(
      key, flight, until: moment + said.absenceTime, ownByteCount: ownByteCount(of: key), mostBytes: absentByteLimit,
      hasTaken: hasDropped)
    absenceWasNoted()
  }

  /// Takes the outcome of a load that has ended; false where the asker cannot take it, and has to load by itself.
  @inlinable
  func take<E: Error>(
    _ seat: LoadSeat, _ takesNil: Bool, _: E.Type, to value: inout Value?
  ) throws(E) -> Bool {
    var failure: E?
    switch seat.flight.outcome {
    case .success(let made?): value = (made as! Value)
    case .success(nil) where takesNil: value = nil
    case .failure(let error as E) where !(error is NothingLoaded): failure = error
    default: return false
    }
    if !seat.isOwn { loads.countShared() }
    if let failure { throw failure }
    return true
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
