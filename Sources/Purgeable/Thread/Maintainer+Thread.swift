// SPDX-License-Identifier: MIT
// The loop of the library's thread: wait, ask the sources, work.

import Glibc
import Synchronization

/// State that only the thread uses.
private struct Watch {
  /// Which thread this is.
  let sleeper: UInt64
  let clock: MonotonicClock
  /// The source of caches and of monitors without one of their own.
  var shared: PressureFeed?
  var pace = ReactionPace()
  var roundDue: UInt64?
  /// When to look whether clients may keep what they keep off offer; nil where none did, as far as known.
  var lookDue: UInt64?
  /// When to try again what failed for lack of memory.
  var retryDue: UInt64?
  /// Our group. Where it lies hardly ever changes.
  var group = KnownGroup()

  init(sleeper: UInt64, clock: MonotonicClock) { (self.sleeper, self.clock) = (sleeper, clock) }
}

extension Maintainer {
  /// From the first note of work to a round.
  private static let roundDelay: UInt64 = 500_000_000

  /// An operation refused for lack of memory is tried again after this pause.
  private static let retryPause: UInt64 = 1_000_000_000

  /// From here to its end the thread takes nothing from the allocator, except where Swift takes memory to open or tell
  /// something. There the thread checks first that there is memory (MemoryReserve), and otherwise tries again later.
  func run() {
    var watch = Watch(sleeper: signal.sleeper, clock: clock)
    // Ends here when another thread was started in this one's place.
    while let ready = wait(&watch) {
      wakeUps.add(1, ordering: .relaxed)
      let woken = watch.clock.now()
      // Partner of both: the exchange in `wake(by:)`.
      hasNews.store(false, ordering: .sequentiallyConsistent)
      if WorkBell.isRung.load(ordering: .acquiring) { watch.roundDue = min(watch.roundDue ?? .max, woken + Self.roundDelay) }
      var worksRound = false
      if let due = watch.roundDue, woken >= due {
        worksRound = true
        watch.roundDue = nil
        WorkBell.isRung.store(false, ordering: .releasing)
        let due = ListedClients().reduce(.max) { due, client in min(due, client.upkeepRound()) }
        // Until the next round, nobody need ring.
        if due == 0 { WorkBell.isRung.store(true, ordering: .releasing) }
        if due != .max { watch.roundDue = woken + max(Self.roundDelay, due * 1_000_000) }
      }
      if worksRound || woken >= watch.lookDue ?? 0 { look(&watch, woken) }
      watch.retryDue = nil
      refresh(&watch)
      listen(&watch, ready, woken: woken, isAwake: worksRound)
      if watch.pace.follows(watch.shared?.level ?? .normal, at: woken) { reactIfShort(&watch, woken: woken) }
      if isUnneeded, watch.roundDue == nil, ends() { return }
    }
  }

  private func wait(_ watch: inout Watch) -> DescriptorList? {
    let now = watch.clock.now()
    let hearsEvents = signal.hearsDescriptors
    let holds = holdsAnything
    var deadline = watch.roundDue
    if let due = watch.retryDue { deadline = min(deadline ?? .max, due) }
    if let due = watch.lookDue { deadline = min(deadline ?? .max, due) }
    var descriptors = DescriptorList()
    func take(_ feed: PressureFeed) {
      feed.addDescriptors(to: &descriptors, at: now)
      let hears = hearsEvents && !descriptors.isFull
      if let time = feed.deadline(at: now, anybodyHolds: holds, hearsEvents: hears) { deadline = min(deadline ?? .max, time) }
    }
    if let shared = watch.shared { take(shared) }
    for monitor in ListedMonitors() {
      if let feed = monitor.notes.withLock({ $0.sleeper == watch.sleeper ? $0.feed : nil }) { take(feed) }
    }
    if let due = watch.pace.deadline(watch.shared?.level ?? .normal, at: now) { deadline = min(deadline ?? .max, due) }
    return signal.wait(watch.sleeper, for: deadline.map { $0 - min($0, now) }, descriptors)
  }

  /// Whether any client has memory to give back, or wants to know the level.
  private var holdsAnything: Bool {
    if state.withLock({ !$0.monitors.isEmpty }) { return true }
    for client in ListedClients() where client.holdsAnything { return true }
    return false
  }

  private var isUnneeded: Bool { ClientRoster.shared.isEmpty && state.withLock { $0.monitors.isEmpty } }

  /// True if there is no client left. Under the mutex: a thread that notes work from here on finds no thread, and starts one.
  private func ends() -> Bool {
    let best = state.withLock { state -> SystemPressureSource?? in
      guard ClientRoster.shared.isEmpty, state.monitors.isEmpty, !WorkBell.isRung.load(ordering: .acquiring),
        !hasNews.load(ordering: .acquiring)
      else { return nil }
      state.threadOwner = 0
      state.isWatching = false
      state.statistics.level = .normal
      state.statistics.sourceName = ""
      signal.release()
      defer { state.best = nil }
      return .some(state.best)
    }
    guard let best else { return false }
    best?.close()
    return true
  }

  // MARK: Sources

  /// Opens the sources that are needed now, and closes those that are not.
  private func refresh(_ watch: inout Watch) {
    var isNeeded = !ClientRoster.shared.isEmpty
    for monitor in ListedMonitors() where monitor.source == nil { isNeeded = true }
    let source = isNeeded ? sharedSource(&watch) : nil
    if source !== watch.shared?.source {
      watch.shared = source.map { PressureFeed($0) }
      // A thread that comes in another's place does so because the program closed descriptors.
      (source as? SystemPressureSource)?.doubt()
      let name = source?.name ?? ""
      state.withLock { state in
        // Until it has been asked.
        state.isWatching = false
        state.statistics.sourceName = name
        if source == nil { state.statistics.level = .normal }
      }
      // A feed begins at normal, whatever the one before it had said, here or in the process that forked this one.
      for client in ListedClients() { client.setPressure(.normal) }
    }
    if !isNeeded { closeBest() }
    for monitor in ListedMonitors() { prepare(monitor, watch.sleeper) }
  }

  /// For a monitor that this thread has not met yet.
  private func prepare(_ monitor: MonitorCore, _ sleeper: UInt64) {
    let isNew = monitor.notes.withLock { notes -> Bool in
      defer { if notes.sleeper != sleeper { notes = MonitorNotes(sleeper: sleeper) } }
      return notes.sleeper != sleeper
    }
    guard isNew, let source = monitor.source else { return }
    let isForked = monitor.process.withLock { process -> Bool in
      defer { process = getpid() }
      return process != getpid()
    }
    if isForked { source.reopen() }
    let feed = PressureFeed(source)
    monitor.notes.withLock { $0.feed = feed }
  }

  /// The source that was given, or the best; opened in this process. Calls the source outside of the mutex.
  private func sharedSource(_ watch: inout Watch) -> (any PressureSource)? {
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
    guard MemoryReserve.isThere(MemoryReserve.ofLookups) else {
      watch.retryDue = watch.clock.now() + Self.retryPause
      return nil
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

  private func listen(_ watch: inout Watch, _ ready: DescriptorList, woken: UInt64, isAwake: Bool) {
    let holds = holdsAnything
    func calls(_ feed: PressureFeed) -> DescriptorList? {
      let mine = feed.own(of: ready)
      return !mine.isEmpty || feed.isDue(at: woken, anybodyHolds: holds, isAwake: isAwake) ? mine : nil
    }
    if let feed = watch.shared, let mine = calls(feed), let answer = watch.shared?.ask(ready: mine, at: woken) {
      // A source may have found something better meanwhile.
      let name = feed.source.name
      state.withLock { state in
        state.statistics.sourceName = name
        if answer.level > answer.before { state.statistics.noteRise(to: answer.level) }
        state.statistics.level = answer.level
        // Unless another one was given meanwhile.
        state.isWatching = feed.source === (state.given ?? state.best)
      }
      react(to: answer, &watch, woken: woken)
    }
    for monitor in ListedMonitors() {
      let notes = monitor.notes.withLock { $0 }
      // A monitor added just now is prepared at the next wake-up, which adding it asks for.
      guard notes.sleeper == watch.sleeper else { continue }
      let isFirst = !notes.wasTold
      if monitor.source == nil {
        guard let shared = watch.shared else { continue }
        monitor.deliver(shared.level, isFirst: isFirst)
      } else if var feed = notes.feed {
        if let mine = calls(feed) {
          _ = feed.ask(ready: mine, at: woken)
          let asked = feed
          monitor.notes.withLock { $0.feed = asked }
        }
        monitor.deliver(feed.level, isFirst: isFirst, sourceName: feed.source.name)
      }
      monitor.notes.withLock { $0.wasTold = true }
      if monitor.owesNews { watch.retryDue = woken + Self.retryPause }
    }
  }

  private func look(_ watch: inout Watch, _ woken: UInt64) {
    let pause = ListedClients().reduce(.max) { min($0, $1.lookAtRoom()) }
    watch.lookDue = pause == .max ? nil : woken + pause
  }

  private func react(to answer: PressureFeed.Answer, _ watch: inout Watch, woken: UInt64) {
    if answer.raw > .normal { look(&watch, woken) }
    if answer.level < answer.before { for client in ListedClients() { client.setPressure(answer.level) } }
    switch watch.pace.step(after: answer, at: woken) {
    case .rest: break
    case .ease: PressureReaction.run(ListedClients(), .normal) { _ in false }
    case .look: reactIfShort(&watch, woken: woken)
    case .react:
      let begun = watch.clock.now()
      // A source of the program's own knows better than our figures whether memory is short.
      let mustGive = givenSource != nil
      let relief = PressureReaction.run(
        ListedClients(), answer.raw, told: answer.level, in: watch.group.current(), mustGive: mustGive)
      note(relief, &watch, begun: begun, woken: woken)
    }
  }

  private func reactIfShort(_ watch: inout Watch, woken: UInt64) {
    guard let level = watch.shared?.level else { return }
    let clients = ListedClients()
    let offered = PressureReaction.offeredBytes(clients)
    let group = watch.group.current()
    guard MemoryRoom.missingBytes(in: group, isShort: false, offeredBytes: offered) > 0 else { return }
    note(PressureReaction.run(clients, level, told: level, in: group, mustGive: false), &watch, begun: woken, woken: woken)
  }

  private func note(_ relief: PressureRelief, _ watch: inout Watch, begun: UInt64, woken: UInt64) {
    let offered = begun + UInt64(relief.offeringTime / .nanoseconds(1))
    let done = watch.clock.now()
    if relief.givenBackBytes > 0 {
      watch.pace.noteRelief(at: done)
      signal.awake.noteReaction()
    }
    state.withLock { state in
      state.statistics.reactionCount += 1
      state.statistics.lastOfferNanoseconds = offered - min(offered, woken)
      state.statistics.lastReactionNanoseconds = done - min(done, woken)
    }
  }
}
