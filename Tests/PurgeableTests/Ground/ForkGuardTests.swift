// SPDX-License-Identifier: MIT
// The mutexes that a fork takes, their order, and what the child forgets: in processes that have no caches. The library's thread
// has announced its own already.

import CPurgeableCases
import Glibc
import PurgeableTestSupport
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

/// Notes the calls that a fork makes.
private final class Noting: ForkProtected {
  static let notes = Guarded<[String]>([])
  let name: String

  init(_ name: String) { self.name = name }

  private func note(_ what: String) { Self.notes.withLock { $0.append("\(what) \(name)") } }

  func lockForFork() { note("lock") }
  func unlockAfterFork() { note("unlock") }
  func forgetInChild() { note("forget") }
}

private protocol Counted {
  static var count: Int { get }
}

private enum Start: Counted { static var count: Int { 1 } }
private enum Even<T> {}
private enum Odd<T> {}
extension Even: Counted where T: Counted { static var count: Int { 2 * T.count } }
extension Odd: Counted where T: Counted { static var count: Int { 2 * T.count + 1 } }

/// Has the runtime make types and tables that nobody has asked for before: 2 to the power of `depth` of them, until `goesOn` is
/// false.
@inline(never)
private func makeTypes<T: Counted>(_: T.Type, depth: Int, _ goesOn: () -> Bool) {
  guard goesOn() else { return }
  var types: [T.Type] = [T.self]
  for type in types.reversed() where type.count < 0 { types.append(type) }
  types.removeAll(keepingCapacity: true)
  var options: [T?] = [nil]
  for option in options.reversed() where option != nil { options.append(option) }
  options.removeAll(keepingCapacity: true)
  if depth == 0 { return }
  makeTypes(Even<T>.self, depth: depth - 1, goesOn)
  makeTypes(Odd<T>.self, depth: depth - 1, goesOn)
}

@Suite("forks: what is announced")
struct ForkGuardTests {
  @Test("is taken in the order of mutexes, whoever announced first, and given back the other way round", .forks)
  func order() async {
    await #expect(processExitsWith: .success) {
      let (cache, table, list, group) = (Noting("cache"), Noting("table"), Noting("list"), Noting("group"))
      ForkGuard.shared.announce(.group) { $0.append(group) }
      ForkGuard.shared.announce(.lists) { items in
        require(items.count { $0 is Noting } == 2, "what was collected before")
        items.append(list)
      }
      ForkGuard.shared.announce(.clients) { $0 += [cache, table] }
      ForkGuard.shared.announce(.clients) { _ in require(false, "the first announcement of a place counts") }
      let around = [
        "lock cache", "lock table", "lock list", "lock group", "unlock group", "unlock list", "unlock table", "unlock cache",
      ]
      for _ in 0..<2 {
        Noting.notes.withLock { $0 = [] }
        let childIsWell = childSays {
          Noting.notes.withLock { $0 } == around + ["forget cache", "forget table", "forget list", "forget group"]
        }
        require(childIsWell, "the child forgets, when all is free")
        require(Noting.notes.withLock { $0 } == around, "the parent does not")
      }
    }
  }

  @Test("a fork that collects while another thread makes the first cache waits for nobody who waits for it", .forks)
  func firstCache() async {
    await #expect(processExitsWith: .success) {
      endAfter(seconds: 100)
      let (collects, makes) = (Event(), Event())
      // In place of the roster's own.
      ForkGuard.shared.announce(.clients) { _ in
        collects.happens()
        makes.blocks()
        // Time for it to get as far as it can.
        usleep(50_000)
      }
      let maker = TestThread {
        collects.blocks()
        makes.happens()
        _ = ClientRoster.shared
      }
      require(childSays { true }, "the child")
      maker.join()
    }
  }

  /// The library's handlers would take the cache's mutexes first, and then the program's wait for the thread that waits for them.
  @Test("is taken behind what the program's own handlers take: under their mutexes a cache can be used", .forks)
  func programsMutex() async {
    await #expect(processExitsWith: .success) {
      endAfter(seconds: 100)
      let cache = try PurgeableCache<Int, [UInt8]>()
      let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
      unsafe pthread_mutex_init(mutex, nil)
      unsafe cases_await_before_forks(mutex)
      let isLocked = Atomic<Bool>(false)
      let user = TestThread {
        unsafe pthread_mutex_lock(mutex)
        isLocked.store(true, ordering: .releasing)
        require(patiently { cases_fork_waits() }, "a fork waits for the mutex")
        for key in 0..<1000 { cache[key] = [UInt8](repeating: 7, count: 100) }
        require(cache[999]?.count == 100, "the cache is used")
        unsafe pthread_mutex_unlock(mutex)
      }
      require(patiently { isLocked.load(ordering: .acquiring) }, "the mutex is taken")
      require(childSays { cache.count == 0 }, "the child")
      user.join()
    }
  }

  @Test(
    "the first one leaves a child that goes on, whatever the runtime does on another thread", .forks, .fullRun,
    .enabled(if: unsafe dlsym(nil, "_Fork") != nil, "this C library has no _Fork"))
  func runtime() async {
    await #expect(processExitsWith: .success) {
      // A fork that runs no handlers: in each of these children the library has not seen a fork before.
      typealias Fork = @convention(c) () -> pid_t
      guard let address = unsafe dlsym(nil, "_Fork") else { return require(false, "_Fork") }
      // Safe: the C library's function has exactly this type.
      let bareFork = unsafe unsafeBitCast(address, to: Fork.self)
      for round in 0..<60 {
        let child = bareFork()
        if child == 0 { _exit(firstForkIsWell() ? 0 : 1) }
        require(child > 0 && endsWell(child, seconds: 60), "round \(round)")
      }
    }
  }
}

/// Forks for the first time, while another thread has the runtime make types. The key table, the monitor and the library's thread
/// have something to forget in the child.
private func firstForkIsWell() -> Bool {
  guard let cache = try? PurgeableCache<String, [UInt8]>(tracksKeys: true) else { return false }
  cache["key"] = [1]
  let monitor = PressureMonitor()
  let isOver = Atomic<Bool>(false)
  let looks = Atomic<Int>(0)
  let making = TestThread {
    makeTypes(Start.self, depth: 20) {
      looks.add(1, ordering: .relaxed)
      return !isOver.load(ordering: .relaxed)
    }
  }
  while looks.load(ordering: .relaxed) < 500 { sched_yield() }
  let isWell = childSays(seconds: 20) { true }
  isOver.store(true, ordering: .relaxed)
  making.join()
  return isWell && monitor.level == .normal && cache.count == 1
}
