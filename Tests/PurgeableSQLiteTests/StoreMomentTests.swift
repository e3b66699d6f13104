// SPDX-License-Identifier: MIT
// What comes to a store in the wrong moment: askers of two kinds at a time, calls on its own thread, keys out of all proportion.

#if SQLite
  import Foundation
  import PurgeableTestSupport
  import Synchronization
  import Testing
  import ToolSupport

  @testable import Purgeable
  @testable import PurgeableSQLite

  @Suite("a database behind a cache: in the wrong moment")
  struct StoreMomentTests {
    /// Chains of calls, each of which asks for the next one: ten thousand, and more until the first call is let go of.
    private final class Chains: Sendable {
      final class Token: Sendable {}
      let threads = ReadThreads()
      let count = Atomic<Int>(0)
      let isOver = DispatchSemaphore(value: 0)
      /// Whether the first call was let go of in the middle of them.
      let isFirstGone = Atomic<Bool>(false)
      /// The thread that had it may be kept from going on for a while.
      private let end = MonotonicTime.now + 20_000_000_000
      private let token = Mutex<WeakToken>(WeakToken())
      private struct WeakToken { weak var token: Token? }

      func start() {
        let token = Token()
        self.token.withLock { $0.token = token }
        threads.run { withExtendedLifetime(token) {} }
        for _ in 0..<8 { threads.run { self.goOn() } }
      }

      private func goOn() {
        let number = count.add(1, ordering: .relaxed).newValue
        let isGone = token.withLock { $0.token == nil }
        // Later the chains end, and nobody waits any more.
        let isInTime = MonotonicTime.now < end
        if isGone && isInTime { isFirstGone.store(true, ordering: .relaxed) }
        if number < 10_000 || !isGone && isInTime { threads.run { self.goOn() } } else { isOver.signal() }
      }
    }

    @Test("a call of the threads that read is let go of when it has run, also where others always wait")
    func calls() {
      let chains = Chains()
      chains.start()
      for _ in 0..<8 { #expect(chains.isOver.comes()) }
      let isFirstGone = chains.isFirstGone.load(ordering: .relaxed)
      #expect(isFirstGone)
    }

    @Test("a look-up that finds nothing is no answer for those who load")
    func lookUp() throws {
      try withPlace { place in
        let (count, isReached, isOpen) = (CallCount(), DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
        // Nothing decodes, and the first try waits.
        let format = StoredFormat<[UInt8]>(version: 1) { value in
          value
        } decode: { _, _ in
          count.add()
          if count.value == 1 {
            isReached.signal()
            isOpen.comes()
          }
          return nil
        }
        let store = try place.open(of: [UInt8].self, format)
        store.setValue([1], forKey: "a")
        try store.flush()
        store.cache.removeAll()
        let found = Mutex<[[UInt8]?]>([])
        let lookingUp = onThread { _ = store.value(forKey: "a") }
        #expect(isReached.comes())
        let loading = onThread {
          let value = store.value(forKey: "a") { () -> [UInt8]? in [2] }
          found.withLock { $0.append(value) }
        }
        #expect(loading.comes(), "it waits for nobody")
        // Who looks up takes what others load.
        #expect(store.value(forKey: "a") == [2])
        isOpen.signal()
        #expect(lookingUp.comes())
        #expect(found.withLock { $0 } == [[2]] && store.cache.peekValue(forKey: "a") == [2])
        try? store.close()
      }
    }

    /// A value that says when it is made of its bytes.
    private struct ToldValue: PurgeableValue, Equatable {
      static let isMade = Mutex<(@Sendable () -> Void)?>(nil)
      let number: UInt8

      init(_ number: UInt8) { self.number = number }
      init?(purgeableBytes: RawSpan) {
        guard let number = UInt8(purgeableBytes: purgeableBytes) else { return nil }
        self.number = number
        Self.isMade.withLock { $0 }?()
      }
      func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
        try number.withPurgeableBytes(body)
      }
    }

    @Test("a store between a refresh's beginning and its load stays in the database, too, where the load finds nothing")
    func refresh() async throws {
      try await withPlace { place in
        let store = try place.open(of: ToldValue.self, .purgeableBytes)
        #expect(await store.value(forKey: "a", refreshAfter: .zero) { _ in .found(ToldValue(1)) } == ToldValue(1))
        // The hit makes a value, then the refresh another.
        let count = CallCount()
        ToldValue.isMade.withLock {
          $0 = {
            count.add()
            if count.value == 2 { store.setValue(ToldValue(2), forKey: "a") }
          }
        }
        #expect(await store.value(forKey: "a", refreshAfter: .zero) { _ in .absent() } == ToldValue(1))
        #expect(await TestRun.comes { store.cache.statistics.loadCount == 2 && store.cache.loads.counts(of: "a").waiters == 0 })
        ToldValue.isMade.withLock { $0 = nil }
        #expect(count.value >= 2 && store.cache.peekValue(forKey: "a") == ToldValue(2))
        try await store.flush()
        store.cache.removeAll()
        #expect(await store.value(forKey: "a") == ToldValue(2))
        try store.close()
      }
    }

    @Test("a key of more than a mebibyte is in memory alone, and its removal takes nothing else away")
    func longKeys() throws {
      try withPlace { place in
        try place.withStore { store in
          for key in 0..<100 { store.setValue([1], forKey: "\(key)") }
          try store.flush()
          let long = String(repeating: "a", count: 2 << 20)
          store.setValue([7], forKey: long)
          #expect(store.value(forKey: long) == [7])
          store.remove(forKey: String(repeating: "b", count: 65 << 20))
          try store.flush()
          #expect(store.statistics.recordCount == 100 && store.statistics.failureCount == 0)
          store.cache.removeAll()
          #expect(store.value(forKey: long) == nil && store.value(forKey: "99") == [1])
        }
      }
    }

    @Test("a time that ends after the last year there is does no harm")
    func lateExpiry() throws {
      try withPlace { place in
        try place.withStore { store in
          place.clock.pass(.seconds(140 * 365 * 86_400))
          store.setValue([1], forKey: "a", expiry: .sinceCreation(.seconds(100 * 365 * 86_400)))
          try store.flush()
          #expect(store.value(forKey: "a") == [1])
        }
      }
    }

    @Test("what the store's own thread is asked to wait for is refused; asked to end, it ends")
    func ownThread() throws {
      try withPlace { place in
        let folder = try StoreFolder.open("store", in: place.folder.path, operation: "test")
        let made = Mutex<StoreDatabase?>(nil)
        let kinds = Mutex<[PurgeableError.Kind?]>([])
        @Sendable func note(_ body: () throws(PurgeableError) -> Void) {
          var kind: PurgeableError.Kind?
          do throws(PurgeableError) { try body() } catch { kind = error.kind }
          kinds.withLock { $0.append(kind) }
        }
        let uses = MemoryUses {
          0
        } forEachKey: { _, _ in
          guard let database = made.withLock({ $0 }) else { return }
          note { () throws(PurgeableError) in try database.flush(in: "test") }
          note { () throws(PurgeableError) in _ = try database.removeExpired(in: "test") }
          note { () throws(PurgeableError) in try database.end(in: "test") }
        }
        let database = try StoreDatabase("store", folder, StoreLimits(), uses, now: { WallTime.now }, operation: "test")
        made.withLock { $0 = database }
        try database.trim(toBytes: 0, in: "test")
        made.withLock { $0 = nil }
        #expect(kinds.withLock { $0.prefix(3) } == [.busy, .busy, nil])
        try database.end(in: "test")
        #expect(throws: PurgeableError.self) { try database.flush(in: "test") }
      }
    }

    @Test("a database that somebody else has begun is not put aside for the one before it")
    func otherDatabase() throws {
      try withPlace { place in
        try place.withStore { store in store.setValue([1], forKey: "a") }
        let damaged = try #require(FileNumber(of: place.database))
        let folder = StoreFolder(existing: place.path)
        try folder.locked { () throws(StoreFailure) in try folder.putAside(damaged: damaged) }
        #expect(folder.damagedCount == 1)
        try place.withStore { store in
          #expect(store.value(forKey: "a") == nil)
          store.setValue([2], forKey: "b")
        }
        try folder.locked { () throws(StoreFailure) in try folder.putAside(damaged: damaged) }
        try place.withStore { store in #expect(store.value(forKey: "b") == [2]) }
      }
    }

    @Test("a descriptor that was short for a while fails the flush of that while alone, also with values in files")
    func descriptors() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open(.withFiles) else { fatalError("a store") }
        defer { place.folder.remove() }
        store.setValue(content(1, count: 20_000), forKey: "a")
        demand(patiently { store.statistics.writeCount == 1 }, "written by itself")
        withoutDescriptors { demand((try? store.flush()) == nil, "no descriptor") }
        do { try store.flush() } catch { fatalError("\(error)") }
        demand((try? store.close()) != nil)
      }
    }

    @Test("a log whose name somebody removed while descriptors were short is not lost")
    func logBesideDescriptors() async {
      await #expect(processExitsWith: .success) {
        guard let place = try? StorePlace(), let store = try? place.open() else { fatalError("a store") }
        defer { place.folder.remove() }
        store.setValue([1], forKey: "a")
        demand((try? store.flush()) != nil, "a flush")
        demand(unsafe unlink("\(place.path)/data/database-wal") == 0, "the log's name")
        withoutDescriptors { demand((try? store.flush()) == nil, "no descriptor") }
        do { try store.flush() } catch { fatalError("\(error)") }
        store.cache.removeAll()
        demand(store.value(forKey: "a") == [1], "what was in the log")
        demand((try? store.close()) != nil)
      }
    }

    @Test("a value that does not encode in a forked child waits for no mutex of the parent's")
    func forked() async {
      await #expect(processExitsWith: .success) {
        struct Refusal: Error {}
        let format = StoredFormat<[UInt8]>(version: 1) { value in
          if value == [13] { throw Refusal() }
          return value
        } decode: { bytes, _ in
          [UInt8](purgeableBytes: bytes)
        }
        guard let place = try? StorePlace(), let store = try? place.open(of: [UInt8].self, format) else { fatalError("a store") }
        store.setValue([13], forKey: "a")
        let (isHeld, isOver) = (DispatchSemaphore(value: 0), DispatchSemaphore(value: 0))
        let holder = onThread {
          store.database.mutex.withLock {
            isHeld.signal()
            isOver.comes()
          }
        }
        demand(isHeld.comes())
        let child = fork()
        if child == 0 {
          store.setValue([13], forKey: "a")
          _exit(store.value(forKey: "a") == [13] ? 0 : 1)
        }
        var end: Int32 = -1
        let hasEnded = patiently(seconds: 60) { unsafe waitpid(child, &end, WNOHANG) == child }
        if !hasEnded { kill(child, SIGKILL) }
        demand(hasEnded && end == 0, "the child goes on")
        isOver.signal()
        demand(holder.comes())
        try? store.close()
        place.folder.remove()
      }
    }
  }
#endif
