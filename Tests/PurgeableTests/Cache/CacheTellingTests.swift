// SPDX-License-Identifier: MIT
// On which thread departures are told, and what a handler may do: take its time, nest, fork, block, end the cache.

import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// Runs `body` in the role of the library's thread, on a thread of the test.
private func asLibrary(_ body: @escaping @Sendable () -> Void) {
  TestThread {
    ThreadRole.enterLibrary()
    body()
  }.join()
}

/// The handler of caches that stores what leaves one of them in the next one, again and again.
private final class StoringAgain: Sendable {
  struct State {
    var left: Int
    var told = 0
    var depths = [0, 0]
    var deepest = 0
  }

  let caches = Mutex<[PurgeableCache<Int, Int>]>([])
  // Not Mutex, in which the thread sanitizer does not see one thread come after another.
  let state: Guarded<State>

  init(left: Int) { state = Guarded(State(left: left)) }

  func note(_ departure: Departure<Int, Int>, in number: Int) {
    let left = state.withLock { state in
      state.told += 1
      state.depths[number] += 1
      state.deepest = max(state.deepest, state.depths[number])
      if state.left == 0 { return 0 }
      state.left -= 1
      return state.left + 1
    }
    if left > 0 {
      let next = caches.withLock { $0[(number + 1) % $0.count] }
      // Two, since there may be room for one in another cache. Each under a key of its own: nothing is replaced.
      next[10 * left] = departure.value
      next[10 * left + 1] = departure.value
    }
    state.withLock { $0.depths[number] -= 1 }
  }

  /// Entries that left and were not told of.
  var untoldCount: Int {
    let left = caches.withLock { $0.reduce(0) { sum, cache in sum + cache.statistics.insertionCount - cache.count } }
    return left - state.withLock { $0.told }
  }
}

/// Uses so many bytes of stack; opaque to the optimizer.
@inline(never)
private func descend(_ byteCount: Int) -> Int {
  guard byteCount > 0 else { return 0 }
  return unsafe withUnsafeTemporaryAllocation(byteCount: 1000, alignment: 8) { bytes in
    unsafe bytes[byteCount % 1000] = 1
    return descend(byteCount - 1000) + Int(unsafe bytes[byteCount % 1000])
  }
}

/// The most memory this process has had resident, in bytes.
private func peakResidentBytes() -> Int {
  var usage = rusage()
  // RUSAGE_SELF.
  unsafe getrusage(0, &usage)
  return usage.ru_maxrss << 10
}

@Suite("PurgeableCache, telling", .serialized)
struct CacheTellingTests {
  @Test("removeAll tells every value without a second copy of all of them in memory", .countsMemory)
  func removingAll() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let told = Atomic<Int>(0)
      let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 1 << 30) { departure in
        if departure.value?.count == 4000 { told.add(1, ordering: .relaxed) }
      }
      let value = [UInt8](repeating: 7, count: 4000)
      for key in 0..<16_000 { cache[key] = value }
      let before = peakResidentBytes()
      cache.removeAll()
      require(cache.isEmpty && told.load(ordering: .relaxed) == 16_000, "\(told.load(ordering: .relaxed)) told")
      let growth = peakResidentBytes() - before
      require(growth < 24 << 20, "\(growth >> 20) MiB more than \(before >> 20) MiB")
      for key in 0..<16_000 { cache[key] = value }
      cache.trim(toBytes: 0)
      require(told.load(ordering: .relaxed) == 32_000, "\(told.load(ordering: .relaxed)) told by the trim")
      require(peakResidentBytes() - before < 32 << 20, "the trim: \((peakResidentBytes() - before) >> 20) MiB")
    }
  }

  @Test(
    "removeAll has given its memory back when it returns, also beside a call that gives back and is in its handler", .countsMemory
  )
  func removingBesideTrim() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let isIn = Atomic<Bool>(false)
      let isHeld = Atomic<Bool>(true)
      let cache = try PurgeableCache<Int, [UInt8]> { _ in
        guard !isIn.exchange(true, ordering: .relaxed) else { return }
        while isHeld.load(ordering: .relaxed) { usleep(1000) }
      }
      let value = [UInt8](repeating: 7, count: 4000)
      for key in 0..<16_000 { cache[key] = value }
      let trimmer = TestThread { cache.trim(toCount: 15_000) }
      require(patiently { isIn.load(ordering: .relaxed) }, "nobody was told")
      let before = residentBytes()
      cache.removeAll()
      let given = before - residentBytes()
      isHeld.store(false, ordering: .relaxed)
      trimmer.join()
      require(cache.isEmpty && given > 48 << 20, "\(given >> 20) of \(before >> 20) MiB")
    }
  }

  @Test("a slow handler of one cache does not keep another cache's memory from going on offer")
  func slow() async throws {
    try needRealDiscards()
    await #expect(processExitsWith: .success) {
      alarm(600)
      let told = Atomic<Int>(0)
      let isHeld = Atomic<Bool>(true)
      let slow = try PurgeableCache<Int, [UInt8]>(idleTime: .milliseconds(10)) { _ in
        told.add(1, ordering: .relaxed)
        while isHeld.load(ordering: .relaxed) { usleep(1000) }
      }
      let other = try PurgeableCache<Int, [UInt8]>()
      for key in 0..<200 { slow[key] = pattern(1000) }
      require(patiently { told.load(ordering: .relaxed) > 0 }, "nobody was told")
      for key in 0..<800 { other[key] = pattern(1000) }
      drainBatches()
      _ = other.engine.offerAll()
      let before = other.statistics.memory.offeredBytes
      for key in 0..<400 { _ = other.withBytes(forKey: key) { $0.byteCount } }
      // However long it takes, the handler does not end.
      let isOffered = patiently {
        drainBatches()
        return other.statistics.memory.offeredBytes >= before
      }
      require(isOffered, "\(other.statistics.memory.offeredBytes) of \(before) on offer")
      require(patiently { slow.statistics.waitingDepartureCount > 100 }, "\(slow.statistics.waitingDepartureCount) wait")
      require(told.load(ordering: .relaxed) == 1, "the handler had ended")
      isHeld.store(false, ordering: .relaxed)
      require(patiently { told.load(ordering: .relaxed) == 200 }, "\(told.load(ordering: .relaxed)) told")
    }
  }

  @Test("a handler of what the library does by itself has as much stack as other threads")
  func deep() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let depth = Atomic<Int>(0)
      let cache = try PurgeableCache<Int, [UInt8]>(idleTime: .milliseconds(10)) { _ in
        depth.store(descend(4 << 20), ordering: .relaxed)
      }
      for key in 0..<10 { cache[key] = pattern(100) }
      require(patiently { depth.load(ordering: .relaxed) > 4000 }, "nobody was told")
    }
  }

  @Test("what a call causes is told on its thread before it returns, what the library causes on another")
  func threads() throws {
    struct Heard: Sendable {
      var key: Int
      var thread: UInt
    }
    let heard = Mutex<[Heard]>([])
    let isTrimmed = Atomic<Bool>(true)
    let cache = try PurgeableCache<Int, Int>(countLimit: 10) { departure in
      // A thread that has nothing left to tell ends, and the next departure has another: all wait for the first of them.
      _ = patiently { isTrimmed.load(ordering: .acquiring) }
      heard.withLock { $0.append(Heard(key: departure.key, thread: UInt(pthread_self()))) }
    }
    for key in 0..<30 {
      cache[key] = key
      #expect(heard.withLock { $0.count } == max(0, key - 9))
    }
    let own = UInt(pthread_self())
    #expect(heard.withLock { heard in heard.allSatisfy { $0.thread == own } && heard.map(\.key) == Array(0..<20) })
    heard.withLock { $0 = [] }
    let library = Mutex<UInt>(0)
    isTrimmed.store(false, ordering: .releasing)
    asLibrary {
      library.withLock { $0 = UInt(pthread_self()) }
      cache.trim(toCount: 4)
      isTrimmed.store(true, ordering: .releasing)
      // This thread has to exist until then, so that its number is not used again.
      #expect(patiently { heard.withLock { $0.count } == 6 })
    }
    let threads = Set(heard.withLock { $0.map(\.thread) })
    #expect(threads.count == 1 && !threads.contains(own) && !threads.contains(library.withLock { $0 }))
    #expect(heard.withLock { $0.map(\.key) } == Array(20..<26))
    #expect(patiently { cache.teller!.waiting.withLock { $0.teller == 0 } }, "the thread ends")
  }

  @Test("while a handler is slow, values beyond the bound are dropped and counted; every departure is told once")
  func bound() throws {
    let isHeld = Atomic<Bool>(true)
    let told = Departures<Int, [UInt8]>()
    let cache = try PurgeableCache<Int, [UInt8]>(costLimit: 1 << 30) { departure in
      while isHeld.load(ordering: .acquiring) { usleep(1000) }
      told.note(departure)
    }
    let value = pattern(4000)
    for key in 0..<1000 { cache.setValue(value, forKey: key, cost: key + 1) }
    asLibrary { cache.removeAll() }
    let numbers = cache.statistics
    #expect(numbers.notKeptValueCount > 600 && numbers.notKeptValueCount < 800, "\(numbers.notKeptValueCount)")
    #expect(numbers.waitingDepartureCount >= 999)
    #expect(cache.teller!.copiedByteCount.load(ordering: .relaxed) <= TellingLimits.libraryBytes)
    isHeld.store(false, ordering: .releasing)
    #expect(patiently { told.all.count == 1000 })
    let all = told.all
    #expect(Set(all.map(\.key)).count == 1000)
    #expect(all.allSatisfy { $0.cost == $0.key + 1 })
    #expect(all.count { $0.absence == .notKept } == Int(numbers.notKeptValueCount))
    #expect(all.allSatisfy { $0.absence == .notKept ? $0.value == nil : $0.value == value && $0.absence == nil })
    #expect(cache.teller!.copiedByteCount.load(ordering: .relaxed) == 0)
    #expect(cache.statistics.waitingDepartureCount == 0)
  }

  @Test("a discarded value is told with its cost, and as discarded")
  func discarded() throws {
    try needRealDiscards()
    let told = Departures<Int, [UInt8]>()
    let cache = try PurgeableCache<Int, [UInt8]> { told.note($0) }
    for key in 0..<2000 { cache.setValue(pattern(1000), forKey: key, cost: 42) }
    cache.discardAll()
    for key in 0..<2000 { _ = cache[key] }
    let all = told.all
    #expect(all.count > 1000 && all.count == 2000 - cache.count)
    #expect(all.allSatisfy { $0.cost == 42 && $0.reason == .discarded && $0.value == nil && $0.absence == .discarded })
    #expect(cache.totalCost == 42 * cache.count)
    // `containsValue` tells of no departure.
    for key in 0..<2000 { cache.setValue(pattern(1000), forKey: key, cost: 42) }
    drainBatches()
    cache.discardMost()
    _ = told.take()
    let there = (0..<2000).count { cache.containsValue(forKey: $0) }
    #expect(told.all.isEmpty && there < 1000)
    cache.checkBooksSwept()
  }

  @Test("a call tells when there was no thread to be had")
  func noThread() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let told = Atomic<Int>(0)
      let cache = try PurgeableCache<Int, Int>(name: "orphan") { _ in told.add(1, ordering: .relaxed) }
      for key in 0..<20 { cache[key] = key }
      asLibrary {
        refuseThreads()
        cache.trim(toCount: 10)
      }
      require(told.load(ordering: .relaxed) == 0 && cache.teller!.waitingCount == 10, "told at once")
      for key in 0..<25 { _ = cache.containsValue(forKey: key) }
      require(told.load(ordering: .relaxed) == 0, "containsValue told")
      for key in 5..<15 { _ = cache[key] }
      require(told.load(ordering: .relaxed) == 10, "\(told.load(ordering: .relaxed)) told")
    }
  }

  @Test("a handler may store again what limits evict, in this cache or another: it does not nest, and all is told in the end")
  func storingAgain() throws {
    for (cacheCount, byLibrary) in [(1, false), (2, false), (1, true), (2, true)] {
      let again = StoringAgain(left: 500)
      for i in 0..<cacheCount {
        let cache = try PurgeableCache<Int, Int>(countLimit: 1) { again.note($0, in: i) }
        again.caches.withLock { $0.append(cache) }
      }
      let cache = again.caches.withLock { $0[0] }
      cache[0] = 0
      if byLibrary { asLibrary { cache[1] = 1 } } else { cache[1] = 1 }
      let isDone = { again.state.withLock { $0.left == 0 && $0.depths == [0, 0] } && again.untoldCount == 0 }
      #expect(byLibrary ? patiently(isDone) : isDone())
      #expect(again.state.withLock { $0.deepest } == 1)
      again.caches.withLock { $0 = [] }
    }
  }

  @Test("a handler that stores again also where it replaces a value and is refused one is told of each once")
  func storingAgainMixed() throws {
    let again = Mutex<PurgeableCache<Int, Int>?>(nil)
    let told = Departures<Int, Int>()
    let cache = try PurgeableCache<Int, Int>(countLimit: 2, costLimit: 10) { departure in
      told.note(departure)
      guard let cache = again.withLock({ $0 }), departure.reason == .count, departure.value! < 100 else { return }
      // Replaces what it stored the last time, evicts another entry, and is refused.
      cache.setValue(departure.value!, forKey: -1, cost: 1)
      cache.setValue(departure.value! + 1, forKey: departure.key, cost: 1)
      let outcome = cache.setValue(0, forKey: -2, cost: 11)
      #expect(outcome == .tooLarge)
    }
    again.withLock { $0 = cache }
    for key in 0..<10 { cache.setValue(key, forKey: key, cost: 1) }
    let numbers = cache.statistics
    let left = numbers.departures.values.reduce(0, +)
    #expect(left == numbers.insertionCount + numbers.replacementCount - cache.count)
    #expect(told.all.count == left + told.count(of: .tooLarge) - (numbers.departures[.tooLarge] ?? 0))
    #expect(told.count(of: .tooLarge) == told.all.count { $0.reason == .count && $0.value! < 100 })
    again.withLock { $0 = nil }
    cache.checkBooksSwept()
  }

  @Test("a cache may end inside its own handler")
  func ending() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      for byLibrary in [false, true] {
        for _ in 0..<100 {
          let holder = Mutex<PurgeableCache<Int, Int>?>(nil)
          let told = Atomic<Int>(0)
          weak var teller: KeyTeller<Int, Int>?
          do {
            let cache = try PurgeableCache<Int, Int> { _ in
              told.add(1, ordering: .relaxed)
              let last = holder.withLock { held in
                defer { held = nil }
                return held
              }
              _ = last
            }
            for key in 0..<20 { cache[key] = key }
            teller = cache.teller
            holder.withLock { $0 = cache }
          }
          if byLibrary {
            asLibrary { if let engine = holder.withLock({ $0?.engine }) { engine.removeAll() } }
          } else {
            holder.withLock({ $0?.engine })?.removeAll()
          }
          require(patiently { told.load(ordering: .relaxed) >= 1 && holder.withLock { $0 == nil } }, "nobody was told")
          require(patiently { teller == nil }, "the teller is left")
        }
      }
    }
  }

  @Test("a handler may fork, on any thread; the child is told nothing of its parent's", .forks, arguments: [false, true])
  func forking(byLibrary: Bool) async {
    await #expect(processExitsWith: .success) { [byLibrary] in
      alarm(600)
      let told = Atomic<Int>(0)
      let isChild = Atomic<Bool>(false)
      let wrong = Atomic<Int>(0)
      let holder = Mutex<PurgeableCache<Int, Int>?>(nil)
      let cache = try PurgeableCache<Int, Int> { departure in
        if isChild.load(ordering: .relaxed), departure.key < 1000 { wrong.add(1, ordering: .relaxed) }
        let number = told.add(1, ordering: .relaxed).newValue
        guard number == 3, !isChild.load(ordering: .relaxed), let cache = holder.withLock({ $0 }) else { return }
        let isWell = childSays {
          isChild.store(true, ordering: .relaxed)
          told.store(0, ordering: .relaxed)
          for key in 1000..<1100 { cache[key] = key }
          cache.removeAll()
          guard told.load(ordering: .relaxed) == 100 else { return false }
          for key in 1000..<1100 { cache[key] = key }
          asLibrary { cache.removeAll() }
          return patiently { told.load(ordering: .relaxed) == 200 } && wrong.load(ordering: .relaxed) == 0
        }
        require(isWell, "the child")
      }
      holder.withLock { $0 = cache }
      for key in 0..<50 { cache[key] = key }
      if byLibrary { asLibrary { cache.removeAll() } } else { cache.removeAll() }
      require(patiently { told.load(ordering: .relaxed) == 50 }, "\(told.load(ordering: .relaxed)) told")
      holder.withLock { $0 = nil }
    }
  }
}
