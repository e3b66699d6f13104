// SPDX-License-Identifier: MIT
// A database behind a cache, beside prepared statements on a plain table; and what having it costs memory. Without the trait
// SQLite there is nothing to measure.

import Foundation
import Glibc
import Purgeable
import PurgeableSQLite
import ToolSupport

enum DatabaseFigures {
  #if SQLite
    static func figures(_ scale: Scale) throws -> [Figure] {
      let (count, rounds) = (scale(100_000, quick: 20_000), scale(5, quick: 3))
      let each = try ChildRun.run("database", [count, rounds])
      let touched = try ChildRun.run("database-touches", [count])
      let opening = try ChildRun.run("database-opening", [count])
      let memory = try ChildRun.run("database-memory", [count, rounds])
      let lost = try ChildRun.run("database-losses", [count])["lost"]
      let size = "\(count) values of 1 KiB"
      return [
        Figure(
          "\(size) into a store, against a plain table: processor", .time, try Spread(each, "write-processor"), .atMost(1.0),
          "times",
          note: "batches of 1,000, the log written back at the end; the plain table has pages of 4 KiB"),
        Figure(
          "\(size) into a store, against a plain table: wall time", .time, try Spread(each, "write-wall"), .atMost(1.2), "times"),
        Figure("log pages of 8 KiB for a value of 1 KiB", .count, try touched.value("put-pages"), .atMost(0.35), "pages"),
        Figure(
          "read cold in random order, against a plain table: wall time", .time, try Spread(each, "read"), .atMost(1.1), "times",
          note: "\(Figure.text(try each.value("read-time"))) us each"),
        Figure(
          "log pages for a use, a fifth of \(count) at once", .count, try touched.value("touch-pages"), .atMost(0.1), "pages"),
        Figure("setValue with the database behind, against without", .time, try Spread(memory, "store"), .atMost(1.2), "times"),
        Figure(
          "hit in memory with the database behind, against without", .time, try Spread(memory, "hit"), .atMost(1.1), "times"),
        Figure(
          "opening \(count) records of which a tenth has expired: until it answers", .time, try opening.value("answer"),
          .atMost(50), "ms"),
        Figure("until the expired are gone", .time, try opening.value("gone"), .atMost(1000), "ms"),
        Figure(
          "entries lost to reads of a database, in a group of one and a half times the cache", .time, lost, .atMost(1), "%",
          note: lost == nil ? "not measured: no memory group can be made here" : "as many values read as the cache has"),
      ]
    }

    static let jobs: [String: ChildRun.Job] = [
      "database": measure, "database-touches": countPages, "database-opening": measureOpening, "database-memory": measureMemory,
      "database-losses": measureLosses,
    ]

    private typealias Store = PurgeableStore<String, [UInt8]>

    private static func open(_ name: String, _ folder: String, now: @escaping @Sendable () -> Int64 = { WallTime.now }) throws
      -> Store
    {
      try Store(name, directory: folder, cache: PurgeableCache(byteLimit: 4 << 20), now: now)
    }

    /// Of 36 bytes, in no order.
    private static func key(_ number: Int) -> String {
      let digits = String(UInt64(bitPattern: Int64(number)) &* 0x9E37_79B9_7F4A_7C15, radix: 16)
      return String(repeating: "k", count: 36 - digits.count) + digits
    }

    private static let value = [UInt8](repeating: 7, count: 1024)

    private static func seconds(_ body: () throws -> Void) rethrows -> (processor: Double, wall: Double) {
      let start = ContinuousClock.now
      let processor = try Rounds.nanoseconds(body) / 1e9
      return (processor, (ContinuousClock.now - start) / .seconds(1))
    }

    private static func forget(_ path: String) {
      let file = unsafe Glibc.open(path, O_RDWR | O_CLOEXEC)
      fsync(file)
      posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)
      close(file)
    }

    // MARK: Beside a plain table

    private static let plain = """
      PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA secure_delete=OFF; PRAGMA wal_autocheckpoint=4096;
      """

    private static func writePlain(_ path: String, _ keys: [String]) throws {
      let connection = try Connection(path, makes: true, busyMilliseconds: 1000)
      try connection.run("PRAGMA page_size=4096; \(plain) CREATE TABLE plain(key BLOB UNIQUE NOT NULL, value BLOB NOT NULL)")
      let insert = try connection.prepare("INSERT INTO plain VALUES(?1, ?2)")
      for start in stride(from: 0, to: keys.count, by: 1000) {
        try connection.run("BEGIN IMMEDIATE")
        for key in keys[start..<min(start + 1000, keys.count)] {
          insert.bind(1, Array(key.utf8))
          insert.bind(2, value)
          try insert.run()
        }
        try connection.run("COMMIT")
      }
      try connection.checkpoint(cuts: true)
    }

    /// Arguments: values, rounds.
    @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
      let (count, rounds) = (arguments[0], arguments[1])
      let keys = (0..<count).map(key)
      var (processor, wall, reads): ([[Double]], [[Double]], [[Double]]) = ([], [], [])
      for round in 0...rounds {
        try FigureFolder.with { folder in
          let ours = try seconds {
            let store = try open("store", folder)
            for (number, key) in keys.enumerated() {
              store.setValue(value, forKey: key)
              // Else more would wait than may.
              if number % 10_000 == 9999 { try store.flush() }
            }
            try store.close()
          }
          let plain = try seconds { try writePlain(folder + "/plain", keys) }
          forget(folder + "/store/data/database")
          forget(folder + "/plain")
          let read = Array(keys.shuffled().prefix(count / 5))
          let store = try open("store", folder)
          let connection = try Connection(folder + "/plain", makes: false, busyMilliseconds: 1000)
          let find = try connection.prepare("SELECT value FROM plain WHERE key=?1")
          let sides = [
            { for key in read where store.value(forKey: key) != value { throw ToolFailure("a value is missing") } },
            {
              for key in read {
                find.bind(1, Array(key.utf8))
                guard try find.next(), try find.bytes(0) == value else { throw ToolFailure("a value is missing") }
                find.reset()
              }
            },
          ]
          // Each is first in every other round.
          var times = [0.0, 0.0]
          for side in round.isMultiple(of: 2) ? [0, 1] : [1, 0] { times[side] = try seconds(sides[side]).wall }
          try store.close()
          if round == 0 { return }
          processor.append([ours.processor, plain.processor])
          wall.append([ours.wall, plain.wall])
          reads.append(times + [times[0] / Double(read.count) * 1e6])
        }
      }
      var numbers: Numbers = ["read-time": Spread(reads.map { $0[2] }).median]
      Rounds.ratio(processor, 0, over: 1).write(to: &numbers, "write-processor")
      Rounds.ratio(wall, 0, over: 1).write(to: &numbers, "write-wall")
      Rounds.ratio(reads, 0, over: 1).write(to: &numbers, "read")
      return numbers
    }

    // MARK: Pages of the log

    /// A frame of the log is a page and 24 bytes, after 32 bytes.
    private static func logPages(_ folder: String) throws -> Double {
      let log = try FileManager.default.attributesOfItem(atPath: folder + "/store/data/database-wal")
      return Double((log[.size] as? Int ?? 0) - 32) / Double(8192 + 24)
    }

    /// Arguments: values.
    @Sendable static func countPages(_ arguments: [Int]) throws -> Numbers {
      let count = arguments[0]
      return try FigureFolder.with { folder in
        var numbers: Numbers = [:]
        var pages = 0.0
        // The log begins anew with each store: it is written back at the end of the last.
        for start in stride(from: 0, to: count, by: 4000) {
          let store = try open("store", folder)
          for number in start..<min(start + 4000, count) {
            store.setValue(value, forKey: key(number))
            if number % 1000 == 999 { try store.flush() }
          }
          try store.flush()
          pages += try logPages(folder)
          try store.close()
        }
        numbers["put-pages"] = pages / Double(count)
        let store = try open("store", folder) { WallTime.now + 3_600_000_000_000 }
        for number in (0..<count).shuffled().prefix(count / 5) where store.value(forKey: key(number)) == nil {
          throw ToolFailure("a value is missing")
        }
        try store.flush()
        numbers["touch-pages"] = try logPages(folder) / Double(count / 5)
        try store.close()
        return numbers
      }
    }

    // MARK: What reading takes away

    /// Arguments: entries.
    @Sendable static func measureLosses(_ arguments: [Int]) throws -> Numbers {
      let count = arguments[0]
      return try GroupRun.run(limit: GroupRun.limit(entries: count)) {
        try FigureFolder.with { folder in
          let store = try open("store", folder)
          for number in 0..<count {
            store.setValue(value, forKey: key(number))
            // In a small group less may wait to be written.
            if number % 2000 == 1999 { try store.flush() }
          }
          let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
          for number in 0..<count { cache[number] = value }
          cache.offerIdle()
          let before = cache.count - cache.sweep()
          for number in (0..<count).shuffled() where store.value(forKey: key(number)) != value {
            throw ToolFailure("a value is missing")
          }
          _ = cache.sweep()
          return ["lost": 100 * Double(before - cache.count) / Double(before)]
        }
      }
    }

    // MARK: Opening

    /// Arguments: values.
    @Sendable static func measureOpening(_ arguments: [Int]) throws -> Numbers {
      let count = arguments[0]
      return try FigureFolder.with { folder in
        do {
          let store = try open("store", folder)
          for number in 0..<count {
            store.setValue(value, forKey: key(number), expiry: number % 10 == 0 ? .sinceCreation(.seconds(60)) : nil)
            if number % 10_000 == 9999 { try store.flush() }
          }
          try store.close()
        }
        forget(folder + "/store/data/database")
        func milliseconds(_ start: ContinuousClock.Instant) -> Double { (ContinuousClock.now - start) / .milliseconds(1) }
        let start = ContinuousClock.now
        let store = try open("store", folder) { WallTime.now + 3_600_000_000_000 }
        guard store.value(forKey: key(1)) == value, store.value(forKey: key(10)) == nil else {
          throw ToolFailure("a wrong answer")
        }
        let answer = milliseconds(start)
        while store.statistics.recordCount > count - count / 10, milliseconds(start) < 60_000 { usleep(500) }
        let gone = milliseconds(start)
        try store.close()
        return ["answer": answer, "gone": gone]
      }
    }

    // MARK: Memory with and without

    /// Arguments: values, rounds.
    @Sendable static func measureMemory(_ arguments: [Int]) throws -> Numbers {
      let (count, rounds) = (arguments[0], arguments[1])
      return try FigureFolder.with { folder in
        let keys = (0..<20_000).map(key)
        let bare = try PurgeableCache<String, [UInt8]>()
        let memory = try PurgeableCache<String, [UInt8]>()
        let store = try Store("store", directory: folder, cache: memory)
        // What the caller's thread does: the writer's is in the figures above.
        let stores = (0...rounds).map { _ in
          defer { try? store.flush() }
          return [
            Rounds.threadNanoseconds { for key in keys { store.setValue(value, forKey: key) } },
            Rounds.threadNanoseconds { for key in keys { bare.setValue(value, forKey: key) } },
          ]
        }.dropFirst()
        let hits = try Rounds.alternate(
          rounds,
          [
            { for i in 0..<5 * count where store.value(forKey: keys[i % keys.count]) == nil { throw ToolFailure("a miss") } },
            { for i in 0..<5 * count where bare.value(forKey: keys[i % keys.count]) == nil { throw ToolFailure("a miss") } },
          ])
        try store.close()
        var numbers: Numbers = [:]
        Rounds.ratio(Array(stores), 0, over: 1).write(to: &numbers, "store")
        Rounds.ratio(hits, 0, over: 1).write(to: &numbers, "hit")
        return numbers
      }
    }
  #else
    static func figures(_ scale: Scale) throws -> [Figure] { [] }
    static let jobs: [String: ChildRun.Job] = [:]
  #endif
}
