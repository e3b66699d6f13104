// SPDX-License-Identifier: MIT
// A cache with a database behind it.

#if SQLite
  import Glibc
  import Synchronization
  // For the normal form by the tables that `==` goes by; Foundation's are of another version of Unicode.
  @_spi(_Unicode) import Swift
  @_exported public import Purgeable

  /// A cache whose values are also in a database, and so outlive memory and restarts. Look-ups ask memory, then the database,
  /// then the loader.
  ///
  ///     import PurgeableSQLite
  ///
  ///     let memory = try PurgeableCache<String, [UInt8]>(byteLimit: 64 << 20)
  ///     let options = PurgeableStoreOptions(byteLimit: 1 << 30, expiry: .sinceLastUse(.seconds(30 * 86_400)))
  ///     let thumbnails = try PurgeableStore("thumbnails", cache: memory, options: options)
  ///     let thumbnail = await thumbnails.value(forKey: "cat.jpg") { render("cat.jpg") }
  ///
  /// - Values are written behind: within `writeInterval`, by a thread of the store's. Nothing has to be written when memory is
  ///   short. What has not been written when the process ends is lost; `flush()` and `close()` wait for it.
  /// - A database that fails is a miss, and counted (`statistics`). As long as the process runs no value is returned that was not
  ///   stored under the key last: each record has a checksum, and a value that could not be written hides the older one. After a
  ///   restart there is what was written last.
  /// - Keys with the same bytes are the same record. Strings that are equal are. A key whose memory may have padding, or that has
  ///   a floating-point number, is refused; other types whose equal keys have different bytes must not be used.
  /// - Several processes may use one database. Each has its own memory: what one stores, another finds when its memory has
  ///   nothing under the key.
  /// - A key of more than a mebibyte has its value in memory alone.
  /// - In a forked child the store has memory alone, and loads.
  ///
  /// Any thread. A store takes one thread, four more while tasks wait for the disk, up to four connections of two mebibytes each
  /// at most, and one of eight, which it gives back when nothing was written for some seconds. Of the pages of its database no
  /// more stay in the kernel's page cache, where they would push out what the cache has on offer, than a 128th of the memory that
  /// the process may have (8 MiB at least); beside them the log's, 16 MiB as a rule, as long as it is written.
  public final class PurgeableStore<Key: Hashable & PurgeableValue, Value: PurgeableValue>: Sendable {
    /// The memory in front: for its limits, handlers and numbers. Store and remove through the store.
    public let cache: PurgeableCache<Key, Value>

    let database: StoreDatabase
    private let format: StoredFormat<Value>
    private let ownExpiry: Expiry?
    /// Whether the cache is this store's still.
    private let hasCache = Atomic<Bool>(true)
    /// Of values that are stored without an expiry of their own.
    private var defaultExpiry: Expiry? { ownExpiry ?? cache.expiry }
    private let threads = ReadThreads()

    // MARK: Opening and closing

    /// Opens the database, or makes it.
    ///
    /// A damaged database is put aside, and deleted later; a new one takes its place. Records whose time is over are never
    /// returned, and are removed first thing.
    ///
    /// - Parameters:
    ///   - name: of a folder for the database and what belongs to it, with a CACHEDIR.TAG for programs that make backups.
    ///   - directory: where the folder is; nil: `XDG_CACHE_HOME`, else `~/.cache`. It is made with permissions for its owner
    ///     alone.
    ///   - cache: for this store alone, until it is closed. Where its options name a clock, times are measured by that from the
    ///     opening on, and else by the machine's time of the day.
    ///   - options: limits of the database, and how it is written.
    ///   - format: how values are written. Values of another version are converted when they are read, and replaced.
    /// - Throws: `PurgeableError` of kind `invalidArgument`, also for a folder that has other files; `invalidFile` for a database
    ///   of a newer version, of keys of another type, or of values of another type where both are written as `purgeableBytes`: it
    ///   is left as it is; `notSupported` on a network's file system, and in a forked child whose parent has a database open;
    ///   `systemCallFailed`, `busy`, `outOfMemory`.
    public convenience init(
      _ name: String, directory: String? = nil, cache: PurgeableCache<Key, Value>,
      options: PurgeableStoreOptions = PurgeableStoreOptions(), format: StoredFormat<Value> = .purgeableBytes
    ) throws(PurgeableError) {
      try self.init(name, directory: directory, cache: cache, options: options, format: format, now: cache.wallTime)
    }

    /// `now`: nanoseconds since 1970.
    package init(
      _ name: String, directory: String?, cache: PurgeableCache<Key, Value>,
      options: PurgeableStoreOptions = PurgeableStoreOptions(),
      format: StoredFormat<Value> = .purgeableBytes, now: @escaping @Sendable () -> Int64
    ) throws(PurgeableError) {
      let operation = "PurgeableStore '\(name)'.init"
      let limits = try options.limits(in: operation)
      try StoreKey.check(Key.self, in: operation)
      guard cache.takeForTier() else {
        throw PurgeableError(
          .invalidArgument("cache"), in: operation, explanation: "another store has this cache: give each one of its own")
      }
      do throws(PurgeableError) {
        let folder = try StoreFolder.open(name, in: directory, operation: operation)
        cache.noteUses()
        let uses = MemoryUses {
          cache.useMoment
        } forEachKey: { moment, body in
          cache.forEachKey(usedSince: moment) { key, age in Self.keyBytes(key).map { body($0, age) } ?? true }
        }
        // Of values in another format it is for the format to tell.
        let kinds = StoreKinds(keys: nameInFiles(Key.self), values: format.isPlain ? nameInFiles(Value.self) : nil)
        database = try StoreDatabase(name, folder, limits, kinds: kinds, uses, now: now, operation: operation)
      } catch {
        cache.leaveTier()
        throw error
      }
      (self.cache, self.format, ownExpiry) = (cache, format, options.expiry)
    }

    deinit {
      try? database.end(in: "deinit")
      leaveCache()
    }

    private func leaveCache() {
      if hasCache.exchange(false, ordering: .relaxed) { cache.leaveTier() }
    }

    /// Flushes, and ends the thread and the connections. Later look-ups find what memory has, and load; later stores are in
    /// memory alone. Done, without its error, when the store ends. Throws as `flush()`.
    public func close() throws(PurgeableError) {
      defer { leaveCache() }
      try database.end(in: operation("close"))
    }

    private func operation(_ call: String) -> String { "PurgeableStore '\(database.name)'.\(call)" }

    // MARK: Looking up

    /// The value of a key, from memory, or from the database: then it is in memory afterwards, and its use is noted. Waits for
    /// the disk, for a database that somebody has locked up to 50 ms; in tasks take the async form.
    ///
    /// Others who ask for the key meanwhile wait, and get the same.
    @_disfavoredOverload
    @inlinable
    public func value(forKey key: Key) -> Value? { cache.value(forKey: key) ?? readValue(key) }

    @usableFromInline
    func readValue(_ key: Key) -> Value? {
      cache.loadedValue(forKey: key, version: nil, isLookUp: true) { self.read(key, nil).result }
    }

    /// As the form without `async`, with the task suspended while the disk is read.
    @inlinable
    public nonisolated(nonsending) func value(forKey key: Key) async -> Value? {
      if let value = cache.value(forKey: key) { return value }
      return await readValueInThread(key)
    }

    @usableFromInline
    nonisolated(nonsending) func readValueInThread(_ key: Key) async -> Value? {
      await cache.loadedValue(forKey: key, version: nil, isLookUp: true) { _ in await self.readInThread(key, nil).result }
    }

    /// The value of a key, from memory, from the database, or made by `load` on this thread, and then in both. As
    /// `PurgeableCache.value(forKey:loading:)`, with the database between: one load a key at a time; a store or a removal
    /// meanwhile wins; errors are not kept; `version` and `expiry` mean the same.
    @_disfavoredOverload
    @inlinable
    public func value<E: Error>(
      forKey key: Key, version: String? = nil, expiry: Expiry? = nil, loading load: () throws(E) -> Value
    ) throws(E) -> Value {
      if let value = cache.found(key, version) { return value }
      return try loadedValue(key, version, expiry, load)
    }

    @usableFromInline
    func loadedValue<E: Error>(
      _ key: Key, _ version: String?, _ expiry: Expiry?, _ load: () throws(E) -> Value
    ) throws(E) -> Value {
      try cache.loadedValue(forKey: key, version: version, takesNil: false) { () throws(E) in
        let found = self.read(key, version)
        if case .found(let found) = found.result { return .found(found) }
        return self.loaded(self.made(try load(), version, expiry), key, found.number)
      }!
    }

    /// As the form for a `load` that always makes a value, for one that may find nothing: `keepingNilFor` says how long memory
    /// remembers that, as in `PurgeableCache.value(forKey:keepingNilFor:loading:)`. A value of another `version` stays where it
    /// is.
    @_disfavoredOverload
    @inlinable
    public func value<E: Error>(
      forKey key: Key, version: String? = nil, expiry: Expiry? = nil, keepingNilFor: Duration? = nil,
      loading load: () throws(E) -> Value?
    ) throws(E) -> Value? {
      if let value = cache.found(key, version) { return value }
      return try loadedValueIfAny(key, version, expiry, keepingNilFor, load)
    }

    @usableFromInline
    func loadedValueIfAny<E: Error>(
      _ key: Key, _ version: String?, _ expiry: Expiry?, _ absenceTime: Duration?, _ load: () throws(E) -> Value?
    ) throws(E) -> Value? {
      try cache.loadedValue(forKey: key, version: version) { () throws(E) in
        let found = self.read(key, version)
        if case .found(let found) = found.result { return .found(found) }
        return self.loadedIfAny(try load(), key, version, expiry, absenceTime, found.number, takesOlderAway: false)
      }
    }

    /// As the form without `async`; `load` runs in a task of its own, and cancellation and `refreshAfter` are as in
    /// `PurgeableCache.value(forKey:loading:)`. The age of a value counts from its store, also over a restart. What comes from
    /// the database counts as loaded, whoever stored it; where it is old, the next hit in memory loads it anew.
    @inlinable
    public nonisolated(nonsending) func value<E: Error>(
      forKey key: Key, version: String? = nil, expiry: Expiry? = nil, refreshAfter: Duration? = nil,
      loading load: @escaping @Sendable () async throws(E) -> Value
    ) async throws(E) -> Value {
      let isFound = cache.found(key, version)
      if let value = isFound, refreshAfter == nil { return value }
      return try await loadedValue(isFound, key, version, expiry, refreshAfter, load)
    }

    @usableFromInline
    nonisolated(nonsending) func loadedValue<E: Error>(
      _ found: Value?, _ key: Key, _ version: String?, _ expiry: Expiry?, _ refreshAfter: Duration?,
      _ load: @escaping @Sendable () async throws(E) -> Value
    ) async throws(E) -> Value {
      try await cache.loadedValue(found, forKey: key, version: version, refreshAfter: refreshAfter, takesNil: false) {
        isRefresh async throws(E) in
        let found = await self.readInThread(key, version, isRefresh: isRefresh)
        if case .found(let found) = found.result { return .found(found) }
        return self.loaded(self.made(try await load(), version, expiry), key, found.number)
      }!
    }

    /// As the async form for a `load` that always makes a value, for one that may find nothing. `keepingNilFor`: as in the form
    /// without `async`. A load that finds nothing while there is an older value takes that away.
    @inlinable
    public nonisolated(nonsending) func value<E: Error>(
      forKey key: Key, version: String? = nil, expiry: Expiry? = nil, refreshAfter: Duration? = nil,
      keepingNilFor: Duration? = nil, loading load: @escaping @Sendable () async throws(E) -> Value?
    ) async throws(E) -> Value? {
      let isFound = cache.found(key, version)
      if let value = isFound, refreshAfter == nil { return value }
      return try await loadedValueIfAny(isFound, key, version, expiry, refreshAfter, keepingNilFor, load)
    }

    @usableFromInline
    nonisolated(nonsending) func loadedValueIfAny<E: Error>(
      _ found: Value?, _ key: Key, _ version: String?, _ expiry: Expiry?, _ refreshAfter: Duration?, _ absenceTime: Duration?,
      _ load: @escaping @Sendable () async throws(E) -> Value?
    ) async throws(E) -> Value? {
      try await cache.loadedValue(found, forKey: key, version: version, refreshAfter: refreshAfter) {
        isRefresh async throws(E) in
        let found = await self.readInThread(key, version, isRefresh: isRefresh)
        if case .found(let found) = found.result { return .found(found) }
        return self.loadedIfAny(
          try await load(), key, version, expiry, absenceTime, found.number, takesOlderAway: isRefresh)
      }
    }

    /// The value of a key, from memory, from the database, or what `load` finds, in a task of its own, and then in both. For
    /// validators that come with the value, as HTTP's ETag: as `PurgeableCache.value(forKey:refreshAfter:reloading:)`, with the
    /// database between. `load` gets the entry in memory that is due; nil where neither memory nor the database has a value. What
    /// comes from the database is returned as it is, and counts as loaded, whoever stored it; where it is old, the next hit in
    /// memory asks. After `unchanged` the record's age and expiry begin anew, too.
    @inlinable
    public nonisolated(nonsending) func value<E: Error>(
      forKey key: Key, refreshAfter: Duration? = nil,
      reloading load: @escaping @Sendable (_ current: CacheEntry<Key, Value>?) async throws(E) -> LoadResult<Value>
    ) async throws(E) -> Value? {
      let isFound = cache.value(forKey: key)
      if let value = isFound, refreshAfter == nil { return value }
      return try await reloadedValue(isFound, key, refreshAfter, load)
    }

    @usableFromInline
    nonisolated(nonsending) func reloadedValue<E: Error>(
      _ found: Value?, _ key: Key, _ refreshAfter: Duration?,
      _ load: @escaping @Sendable (CacheEntry<Key, Value>?) async throws(E) -> LoadResult<Value>
    ) async throws(E) -> Value? {
      try await cache.loadedValue(found, forKey: key, version: nil, refreshAfter: refreshAfter) { _ async throws(E) in
        let current = self.cache.currentInTier(key)
        let found = await self.readInThread(key, nil, isRefresh: current != nil)
        if case .found(let found) = found.result { return .found(found) }
        let number = found.number
        switch try await load(current?.entry) {
        case .found(let value, let cost, let expiry, let version):
          return self.loaded(self.made(value, version, expiry, cost: cost), key, number)
        case .unchanged: return current.map { self.loaded($0.kept, key, number) } ?? .absent(isMade: true)
        case .absent(let time):
          return self.loadedNothing(key, number, keptFor: time)
        }
      }
    }

    /// Whether memory or the database has a value for the key. Not a use. Waits for the disk.
    public func containsValue(forKey key: Key) -> Bool {
      if cache.containsValue(forKey: key) { return true }
      return Self.storeKey(key).map { database.has($0) } ?? false
    }

    // MARK: Storing and removing

    /// Stores in memory now, and in the database within `writeInterval`, off this thread; there also where memory refuses the
    /// value. `cost`, `expiry` and `version` as in `PurgeableCache.setValue`; `expiry` nil stands for the store's default, else
    /// for the cache's. Returns what memory did.
    ///
    /// Of stores that are under way at the same time, memory and database keep the same one. Where more than 32 MiB wait to be
    /// written (or an eighth of the memory that the process may have, if that is less), values are not written any more until
    /// there is less; they are counted as failures, and `flush()` throws. Who fills a store at once calls `flush()` now and then.
    /// The same holds for a value for which, on a full disk, more than an eighth of the records would have to go. A value of more
    /// than an eighth of the store's byte limit is in memory only.
    @discardableResult
    public func setValue(
      _ value: Value, forKey key: Key, cost: Int? = nil, expiry: Expiry? = nil, version: String? = nil
    ) -> StoreOutcome {
      let expiry = expiry ?? defaultExpiry
      // Refused there: what was under the key stays.
      guard let change = change(to: value, cost, expiry, version) else {
        return cache.setValue(value, forKey: key, version: version)
      }
      defer { database.giveWay() }
      return cache.setValue(
        value, forKey: key, cost: cost, expiry: expiry, version: version, announcing: announcement(of: change, key))
    }

    /// Removes a key's value from memory now, and from the database soon; no later look-up finds it. (After a restart one may,
    /// where the process ended before the removal was written: `flush()` waits for that.)
    public func remove(forKey key: Key) {
      cache.remove(forKey: key, announcing: announcement(of: .removal, key))
      database.giveWay()
    }

    /// Removes everything from memory now, and from the database before this returns. Throws where the database cannot be
    /// written, or is closed (`notSupported`): memory is empty then.
    public func removeAll() throws(PurgeableError) {
      cache.removeAll { database.removeAll() }
      try database.waitForRemoval(in: operation("removeAll"))
    }

    // MARK: The database

    /// Waits until what was stored before is on the disk. Throws the first failure since the last flush: values that could not be
    /// written, or were given up because too much waited; a damaged database that was put aside, with what it had (found at the
    /// opening, it is in `statistics` alone). Where the disk has failed to keep what it was given, each flush throws until the
    /// store is opened anew. `notSupported` after `close()`, and in a forked child, which has no database; `busy` in code of a
    /// key that the store's own thread runs. So with the functions below.
    public func flush() throws(PurgeableError) { try database.flush(in: operation("flush")) }

    /// As the form without `async`, with the task suspended.
    public nonisolated(nonsending) func flush() async throws(PurgeableError) { try await database.flush(in: operation("flush")) }

    /// Removes the least recently used records of the database until at most so many bytes are left; memory keeps what it has.
    /// Throws `invalidArgument` below 0, and as `flush()` where the database cannot be written.
    public func trim(toBytes byteCount: Int) throws(PurgeableError) {
      let operation = operation("trim")
      guard byteCount >= 0 else {
        throw PurgeableError(.invalidArgument("byteCount"), in: operation, explanation: "\(byteCount) is less than 0")
      }
      try database.trim(toBytes: byteCount, in: operation)
    }

    /// Removes the records whose time is over, and returns how many. (They go by themselves, too.)
    @discardableResult
    public func removeExpired() throws(PurgeableError) -> Int { try database.removeExpired(in: operation("removeExpired")) }

    /// Of the database; the cache has its own.
    public var statistics: PurgeableStoreStatistics { database.statistics }

    // MARK: Inside

    private static func storeKey(_ key: Key) -> StoreKey? { keyBytes(key).map { StoreKey($0) } }

    /// The key's bytes, the same for equal keys; nil for one that has none, or too many for the database.
    static func keyBytes(_ key: Key) -> [UInt8]? {
      if let text = key as? String {
        let isASCII = text.utf8Span.isKnownASCII || text.utf8.allSatisfy { $0 < 128 }
        let bytes = Array((isASCII ? text : String(String.UnicodeScalarView(text._nfd))).utf8)
        return bytes.count <= StoreKey.mostBytes ? bytes : nil
      }
      return key.withPurgeableBytesIfEncodable { span in
        span.byteCount <= StoreKey.mostBytes ? unsafe span.withUnsafeBytes { unsafe [UInt8]($0) } : nil
      } ?? nil
    }

    /// Whether memory can have it.
    private static func isEncodable(_ value: Value) -> Bool { value.withPurgeableBytesIfEncodable { _ in } != nil }

    /// What a value makes of its key's record; nil where neither memory nor the database can have it: what is there stays.
    private func change(to value: Value, _ cost: Int?, _ expiry: Expiry?, _ version: String?) -> Change? {
      if VersionLimit.isExceeded(by: version) { return nil }
      if let record = record(of: value, cost, expiry, version) { return .put(record) }
      return expiry?.isOver == true || Self.isEncodable(value) ? .removal : nil
    }

    /// nil for a value that the database is not to have.
    private func record(of value: Value, _ cost: Int?, _ expiry: Expiry?, _ version: String?) -> StoredRecord? {
      if expiry?.isOver == true { return nil }
      let lifetime = expiry.map { ($0.sinceCreation?.wholeNanoseconds, $0.sinceLastUse?.wholeNanoseconds) }
      guard let bytes = (value as? [UInt8]).flatMap({ format.isPlain ? $0 : nil }) ?? (try? format.encode(value)) else {
        database.noteFailure(.notSupported, "a value does not encode, and is not written", isNews: true)
        return nil
      }
      let now = database.now()
      func time(_ time: UInt64?) -> Int64? { time.flatMap { $0 < UInt64(Int64.max / 2) ? Int64($0) : nil } }
      return StoredRecord(
        value: bytes, format: UInt32(format.version), cost: cost.map { Int64($0) }, version: version, made: now, used: now,
        deadline: time(lifetime?.0).map { $0 < Schema.latest - now ? now + $0 : Schema.latest }, idle: time(lifetime?.1))
    }

    private func announcement(of change: Change, _ key: Key) -> @Sendable () -> Void {
      guard let key = Self.storeKey(key) else { return {} }
      return { [database] in database.change(key, change) }
    }

    private func changeNumber(of key: Key) -> UInt32 { Self.storeKey(key).map { database.changeNumber(of: $0) } ?? 0 }

    /// What the database has, of a version; nil: of any. With the number that tells whether the key has changed since.
    private func read(_ key: Key, _ version: String?) -> (result: TierResult<Value>, number: UInt32) {
      guard let key = Self.storeKey(key) else { return (.absent(), 0) }
      let (read, number) = database.read(key)
      guard let record = read, version == nil || VersionLimit.isSame(record.version, version) else {
        database.noteLookUp(isHit: false)
        return (.absent(), number)
      }
      guard let value = unsafe try? format.decode(record.value.span.bytes, Int(record.format)) else {
        database.noteLookUp(isHit: false)
        database.noteFailure(.notSupported, "a value of format \(record.format) does not decode; its record stays")
        return (.absent(), number)
      }
      database.noteLookUp(isHit: true)
      let now = database.now()
      var found = TierValue(value)
      (found.cost, found.version) = (record.cost.map { Int($0) }, record.version)
      found.age = .nanoseconds(max(0, now - record.made))
      found.expiry = Expiry(
        sinceCreation: record.deadline.map { .nanoseconds(max(1, $0 - now)) }, sinceLastUse: record.idle.map { .nanoseconds($0) })
      found.announce = { [database] in database.isUnchanged(key, since: number) }
      if record.format != UInt32(format.version) || record.hasBegunAnew {
        found.announce = rewriting(of: value, record, key, number) ?? found.announce
      }
      return (.found(found), number)
    }

    /// A value of another version takes the form of this one, with all that it had beside; and a record a new life.
    private func rewriting(
      of value: Value, _ record: StoredRecord, _ key: StoreKey, _ number: UInt32
    ) -> (@Sendable () -> Bool)? {
      guard let bytes = try? format.encode(value) else { return nil }
      var record = record
      let isConversion = record.format != UInt32(format.version)
      (record.value, record.format, record.used) = (bytes, UInt32(format.version), database.now())
      record.hasBegunAnew = false
      return { [record, database] in
        guard database.change(key, .put(record), ifUnchangedSince: number) else { return false }
        if isConversion { database.convertedCount.add(1, ordering: .relaxed) }
        return true
      }
    }

    private func made(_ value: Value, _ version: String?, _ expiry: Expiry?, cost: Int? = nil) -> TierValue<Value> {
      var made = TierValue(value)
      (made.cost, made.expiry, made.version) = (cost, expiry ?? defaultExpiry, version)
      return made
    }

    /// What was loaded goes to the database, too.
    private func loaded(_ made: TierValue<Value>, _ key: Key, _ number: UInt32) -> TierResult<Value> {
      var made = made
      made.isMade = true
      if let key = Self.storeKey(key), let change = change(to: made.value, made.cost, made.expiry, made.version) {
        made.announce = { [database] in database.change(key, change, ifUnchangedSince: number) }
      }
      return .found(made)
    }

    private func loadedIfAny(
      _ value: Value?, _ key: Key, _ version: String?, _ expiry: Expiry?, _ absenceTime: Duration?, _ number: UInt32,
      takesOlderAway: Bool
    ) -> TierResult<Value> {
      if let value { return loaded(made(value, version, expiry), key, number) }
      if takesOlderAway { return loadedNothing(key, number, keptFor: absenceTime) }
      return .absent(keptFor: absenceTime, isMade: true)
    }

    /// An older value goes from the database, too.
    private func loadedNothing(_ key: Key, _ number: UInt32, keptFor time: Duration?) -> TierResult<Value> {
      let key = Self.storeKey(key)
      return .absent(keptFor: time, isMade: true) { [database] in
        key.map { database.change($0, .removal, ifUnchangedSince: number) } ?? true
      }
    }

    /// As `read`. `isRefresh`: memory has the value, and what the database has is not wanted.
    private nonisolated(nonsending) func readInThread(
      _ key: Key, _ version: String?, isRefresh: Bool = false
    ) async -> (result: TierResult<Value>, number: UInt32) {
      if isRefresh { return (.absent(), changeNumber(of: key)) }
      // A forked child has neither the threads nor the database.
      guard database.isOurs else { return (.absent(), 0) }
      return await unsafe withUnsafeContinuation {
        (continuation: UnsafeContinuation<(result: TierResult<Value>, number: UInt32), Never>) in
        // Safe: each call runs once.
        threads.run { unsafe continuation.resume(returning: self.read(key, version)) }
      }
    }
  }
#endif
