// SPDX-License-Identifier: MIT
// What the library's thread does: wait, ask the sources, work.

import CPurgeable
import Glibc
import Synchronization

/// What only the thread knows.
private struct Watch {
  /// The source of caches and of monitors without one of their own.
  var shared: PressureFeed?
  /// Monitors that have a source of their own, by number.
  var own: [UInt64: PressureFeed] = [:]
  /// Monitors that were told the level once.
  var told: Set<UInt64> = []
  var lastReaction: UInt64 = 0
  var lastLook: UInt64 = 0
  /// Until then the thread looks every few milliseconds whether memory is short again.
  var followsUntil: UInt64 = 0
  var roundDue: UInt64?
  /// Our group, when it was looked up last. Where it lies hardly ever changes, and the list of mounts may be long.
  private var group: (found: MemoryGroup?, time: UInt64)?

  mutating func group(at now: UInt64) -> MemoryGroup? {
    if let group, now - min(now, group.time) < 1_000_000_000 { return group.found }
    let found = MemoryGroup.current()
    group = (found, now)
    return found
  }

  func descriptors(at now: UInt64) -> [PressureDescriptor] {
    (shared?.descriptors(at: now) ?? []) + own.values.flatMap { $0.descriptors(at: now) }
  }
}

/// Whom the thread works for. Held only while it is awake.
private struct Clients {
  var engines: [CacheEngine]
  var monitors: [MonitorCore]

  var isEmpty: Bool { engines.isEmpty && monitors.isEmpty }
  /// Whether anybody has something to give back, or wants to know.
  var holdsAnything: Bool { !monitors.isEmpty || engines.contains { $0.heldBytes > 0 } }
}

extension Maintainer {
  /// From the first note of work to a round.
  private static let roundDelay: UInt64 = 500_000_000

  func run() {
    let sleeper = signal.sleeper
    var watch = Watch()
    // Ends here when another thread was started in this one's place.
    while let ready = wait(&watch, sleeper) {
      wakeUps.add(1, ordering: .relaxed)
      let woken = MonotonicTime.now
      // Partner of both: the exchange in `wake(by:)`.
      hasNews.store(false, ordering: .sequentiallyConsistent)
      if watch.roundDue == nil, noted.load(ordering: .acquiring) { watch.roundDue = woken + Self.roundDelay }
      let clients = clients()
      var worksRound = false
      if let due = watch.roundDue, woken >= due {
        worksRound = true
        watch.roundDue = nil
        noted.store(false, ordering: .releasing)
        if round(clients.engines) {
          noted.store(true, ordering: .releasing)
          watch.roundDue = woken + Self.roundDelay
        }
      }
      refresh(&watch, clients)
      listen(&watch, clients, ready, woken: woken, isAwake: worksRound)
      follow(&watch, clients.engines, woken: woken)
      if clients.isEmpty, watch.roundDue == nil, ends() { return }
    }
  }

  private func wait(_ watch: inout Watch, _ sleeper: UInt64) -> [PressureDescriptor]? {
    let now = MonotonicTime.now
    let hearsEvents = signal.hearsDescriptors
    var deadline = watch.roundDue
    if watch.shared != nil || !watch.own.isEmpty {
      let holds = clients().holdsAnything
      for feed in [watch.shared].compactMap({ $0 }) + watch.own.values {
        if let time = feed.deadline(at: now, anybodyHolds: holds, hearsEvents: hearsEvents) {
          deadline = min(deadline ?? .max, time)
        }
      }
    }
    if now < watch.followsUntil { deadline = min(deadline ?? .max, now + Self.followPause) }
    return signal.wait(sleeper, until: deadline, watch.descriptors(at: now))
  }

  private func clients() -> Clients {
    state.withLock { state in
      state.alive.removeAll { $0.value == nil }
      state.monitors.removeAll { $0.value == nil }
      return Clients(engines: state.alive.compactMap(\.value), monitors: state.monitors.compactMap(\.value))
    }
  }

  /// Nobody to work for. Under the mutex: whoever notes work from here on finds that there is no thread, and starts one.
  private func ends() -> Bool {
    let best = state.withLock { state -> SystemPressureSource?? in
      guard state.alive.isEmpty, state.monitors.isEmpty, !noted.load(ordering: .acquiring),
        !hasNews.load(ordering: .acquiring)
      else { return nil }
      state.threadOwner = 0
      state.isWatching = false
      state.statistics.level = .none
      state.statistics.sourceName = ""
      signal.release()
      defer { state.best = nil }
      return .some(state.best)
    }
    guard let best else { return false }
    best?.close()
    return true
  }

  /// One round; whether another one is due.
  private func round(_ engines: [CacheEngine]) -> Bool {
    var again = false
    purgeable_offer_pending(nil)
    for engine in engines { again = engine.upkeepRound() || again }
    return again
  }

  // MARK: Sources

  /// Opens what somebody needs now, and closes what nobody needs.
  private func refresh(_ watch: inout Watch, _ clients: Clients) {
    let isNeeded = !clients.engines.isEmpty || clients.monitors.contains { $0.source == nil }
    let source = isNeeded ? sharedSource() : nil
    if source !== watch.shared?.source {
      watch.shared = source.map { PressureFeed($0) }
      let name = source?.name ?? ""
      state.withLock { state in
        state.isWatching = source != nil
        state.statistics.sourceName = name
        if source == nil { state.statistics.level = .none }
      }
    }
    if !isNeeded { closeBest() }
    let numbers = Set(clients.monitors.map(\.number))
    watch.own = watch.own.filter { numbers.contains($0.key) }
    watch.told.formIntersection(numbers)
    for monitor in clients.monitors where watch.own[monitor.number] == nil {
      guard let source = monitor.source else { continue }
      let isForked = monitor.process.withLock { process -> Bool in
        defer { process = getpid() }
        return process != getpid()
      }
      if isForked { source.reopen() }
      watch.own[monitor.number] = PressureFeed(source)
    }
  }

  /// The source that was given, or the best; opened in this process. Calls the source outside of the mutex.
  private func sharedSource() -> any PressureSource {
    let process = getpid()
    let (known, isForked, unused) = state.withLock { state -> ((any PressureSource)?, Bool, SystemPressureSource?) in
      if let given = state.given {
        defer { (state.givenProcess, state.best) = (process, nil) }
        return (given, state.givenProcess != process, state.best)
      }
      defer { state.bestProcess = process }
      return (state.best, state.bestProcess != process, nil)
    }
    unused?.close()
    if let known {
      if isForked { known.reopen() }
      return known
    }
    let best = SystemPressureSource()
    state.withLock { $0.best = best }
    return best
  }

  private func closeBest() {
    let best = state.withLock { state -> SystemPressureSource? in
      defer { state.best = nil }
      return state.best
    }
    best?.close()
  }

  // MARK: Pressure

  private func listen(
    _ watch: inout Watch, _ clients: Clients, _ ready: [PressureDescriptor], woken: UInt64, isAwake: Bool
  ) {
    let holds = clients.holdsAnything
    func isCalled(_ feed: PressureFeed) -> [PressureDescriptor]? {
      let its = Set(feed.source.descriptors.map(\.descriptor))
      let mine = ready.filter { its.contains($0.descriptor) }
      return !mine.isEmpty || feed.isDue(at: woken, anybodyHolds: holds, isAwake: isAwake) ? mine : nil
    }
    if let feed = watch.shared, let mine = isCalled(feed), let answer = watch.shared?.ask(ready: mine, at: woken) {
      // A source may have found something better meanwhile.
      let name = feed.source.name
      state.withLock { state in
        state.statistics.sourceName = name
        if answer.level > answer.before { state.statistics.noteRise(to: answer.level) }
        state.statistics.level = answer.level
      }
      react(to: answer, &watch, clients.engines, woken: woken)
    }
    for monitor in clients.monitors {
      let isFirst = watch.told.insert(monitor.number).inserted
      guard monitor.source != nil else {
        if let shared = watch.shared { monitor.deliver(shared.level, isFirst: isFirst) }
        continue
      }
      guard var feed = watch.own[monitor.number] else { continue }
      if let mine = isCalled(feed) {
        _ = feed.ask(ready: mine, at: woken)
        watch.own[monitor.number] = feed
      }
      monitor.deliver(feed.level, isFirst: isFirst, sourceName: feed.source.name)
    }
  }

  /// When the level rises, then with each event, though not more often than this; once more when that has ended. While the level only
  /// waits to fall nothing is given back: there is no reason any more.
  private static let reactionPause: UInt64 = 100_000_000

  /// Whoever takes memory takes more than is given back at once, and the next event comes when the kernel has begun to choose: so after a
  /// reaction that gave something back the thread looks by itself, for as long as there is need for more.
  private static let followPause: UInt64 = 4_000_000
  private static let followTime: UInt64 = 100_000_000

  /// An event so soon after a reaction is worth a look at the figures: that one may have been before the memory was wanted.
  private static let lookPause: UInt64 = 10_000_000

  private func follow(_ watch: inout Watch, _ engines: [CacheEngine], woken: UInt64) {
    guard woken < watch.followsUntil, watch.lastReaction != woken else { return }
    reactIfShort(&watch, engines, woken: woken)
  }

  private func reactIfShort(_ watch: inout Watch, _ engines: [CacheEngine], woken: UInt64) {
    guard let level = watch.shared?.level, level > .none else { return }
    watch.lastLook = woken
    let offered = engines.reduce(UInt64(0)) { $0 + UInt64($1.heldBytes) }
    let group = watch.group(at: woken)
    guard MemoryShortage.current(of: group, isShort: false, offeredBytes: offered).byteCount > 0 else { return }
    note(PressureReaction.run(engines, level, in: group, mustGive: false), &watch, begun: woken, woken: woken)
  }

  private func note(_ relief: PressureRelief, _ watch: inout Watch, begun: UInt64, woken: UInt64) {
    let offered = begun + UInt64(relief.offeringTime / .nanoseconds(1))
    let done = MonotonicTime.now
    if relief.givenBackByteCount > 0 { watch.followsUntil = done + Self.followTime }
    state.withLock { state in
      state.statistics.reactionCount += 1
      state.statistics.lastOfferNanoseconds = offered - min(offered, woken)
      state.statistics.lastReactionNanoseconds = done - min(done, woken)
    }
  }

  private func react(to answer: PressureFeed.Answer, _ watch: inout Watch, _ engines: [CacheEngine], woken: UInt64) {
    if answer.level == .none {
      if answer.before > .none { PressureReaction.run(engines, .none) { _ in false } }
      return
    }
    guard answer.level > answer.before || answer.raw > .none && woken >= watch.lastReaction + Self.reactionPause else {
      let mayLook = answer.raw > .none && woken >= watch.lastLook + Self.lookPause && woken >= watch.followsUntil
      if mayLook { reactIfShort(&watch, engines, woken: woken) }
      return
    }
    watch.lastReaction = woken
    watch.lastLook = woken
    // First what costs nothing: the kernel gets the most to choose from.
    purgeable_offer_pending(nil)
    let begun = MonotonicTime.now
    // A source of the program's own knows better than our figures whether memory is short.
    let relief = PressureReaction.run(engines, answer.raw, in: watch.group(at: woken), mustGive: givenSource != nil)
    note(relief, &watch, begun: begun, woken: woken)
  }
}
