// SPDX-License-Identifier: MIT
// A store in a folder of its own, with a clock that tests set.

#if SQLite
  import CSQLite
  import Foundation
  import PurgeableTestSupport
  import Synchronization

  @testable import PurgeableSQLite

  typealias BytesStore = PurgeableStore<String, [UInt8]>

  /// The time of the day, and that of the memory in front, as a test has them.
  final class WallClock: Sendable {
    private let offset = Atomic<Int64>(0)
    let memory = ManualClock()

    var now: Int64 { WallTime.now + offset.load(ordering: .relaxed) }

    func pass(_ time: Duration) {
      offset.add(Int64(time.components.seconds) * 1_000_000_000, ordering: .relaxed)
      memory.advance(by: time)
    }
  }

  final class CallCount: Sendable {
    private let count = Atomic<Int>(0)
    var value: Int { count.load(ordering: .relaxed) }
    func add() { count.add(1, ordering: .relaxed) }
  }

  /// Has bytes, but for 13.
  struct Odd: PurgeableValue, BitwiseCopyable, Equatable {
    let number: UInt8

    func withPurgeableBytesIfEncodable<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R? {
      number == 13 ? nil : try withPurgeableBytes(body)
    }
  }

  /// Where a store is; it outlives the store.
  struct StorePlace {
    let folder: FakeRoot
    let clock = WallClock()
    var path: String { folder.path + "/store" }
    var database: String { path + "/data/database" }
    var logByteCount: Int { StoreFolder(existing: path).logByteCount }

    init() throws { folder = try FakeRoot() }

    /// With an empty memory.
    func open(_ options: PurgeableStoreOptions = PurgeableStoreOptions()) throws -> BytesStore {
      try open(options, of: [UInt8].self, .purgeableBytes)
    }

    func open<Value: PurgeableValue>(
      _ options: PurgeableStoreOptions = PurgeableStoreOptions(), of _: Value.Type, _ format: StoredFormat<Value>,
      memoryExpiry: Expiry? = nil
    ) throws -> PurgeableStore<String, Value> {
      var memory = CacheOptions()
      (memory.clock, memory.expiry) = (clock.memory, memoryExpiry)
      let cache = try PurgeableCache<String, Value>(memory)
      return try PurgeableStore("store", directory: folder.path, cache: cache, options: options, format: format) { [clock] in
        clock.now
      }
    }

    /// Runs `body` with a store, and closes it.
    @discardableResult
    func withStore<R>(_ options: PurgeableStoreOptions = PurgeableStoreOptions(), _ body: (BytesStore) throws -> R) throws -> R {
      let store = try open(options)
      let result = try body(store)
      try store.close()
      return result
    }

    /// What another program sees in the database: the first number that a statement answers.
    func number(_ statement: String) throws -> Int64? {
      try Connection(database, makes: false, busyMilliseconds: 1000).number(statement)
    }

    func run(_ statements: String) throws {
      try Connection(database, makes: false, busyMilliseconds: 1000).run(statements)
    }

    /// Files of values.
    func valueFiles() -> [String] {
      let values = path + "/data/values"
      let all = FileManager.default.subpaths(atPath: values) ?? []
      return all.filter { $0.contains("/") }.map { values + "/" + $0 }
    }
  }

  func withPlace<R>(_ body: (StorePlace) throws -> R) throws -> R {
    let place = try StorePlace()
    defer { place.folder.remove() }
    return try body(place)
  }

  func withPlace<R>(_ body: (StorePlace) async throws -> R) async throws -> R {
    let place = try StorePlace()
    defer { place.folder.remove() }
    return try await body(place)
  }

  /// Runs it on a thread; signalled at its end.
  func onThread(_ body: @escaping @Sendable () -> Void) -> DispatchSemaphore {
    let ended = DispatchSemaphore(value: 0)
    Thread.detachNewThread {
      body()
      ended.signal()
    }
    return ended
  }

  /// A value that follows from its key and a version.
  func content(_ key: Int, version: Int = 0, count: Int = 1000) -> [UInt8] {
    (0..<count).map { UInt8(truncatingIfNeeded: key &* 31 &+ version &* 7 &+ $0 &* ($0 >> 8 | 1)) }
  }

  /// As above; of twenty keys one has a value that is a file by `withFiles`.
  func mixedContent(_ key: Int, _ version: Int = 0) -> [UInt8] {
    content(key, version: version, count: key % 20 == 0 ? 20_000 + key : 500 + key)
  }

  /// Adds its version to each byte, and reads what earlier versions wrote.
  func versionedFormat(_ version: Int) -> StoredFormat<[UInt8]> {
    StoredFormat(version: version) {
      $0.map { $0 &+ UInt8(version) }
    } decode: { bytes, written in
      guard written <= version else { return nil }
      return [UInt8](purgeableBytes: bytes)?.map { $0 &- UInt8(written) }
    }
  }

  extension PurgeableStoreOptions {
    /// Of a hundred records, which are written by a flush alone.
    static var hundred: Self {
      var options = Self(countLimit: 100)
      options.writeInterval = .seconds(1000)
      return options
    }

    /// Files in place of the values that are longer than 16 KiB.
    static var withFiles: Self {
      var options = Self()
      options.fileThresholdBytes = 16 << 10
      return options
    }
  }
#endif
