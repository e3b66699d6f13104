// SPDX-License-Identifier: MIT
// Saving and restoring: beside copying and reading such a file with the system's own programs, in time and in memory; and what
// the file traffic takes from the cache. Times are of the clock on the wall, since the disk is waited for.

import Foundation
import Glibc
import Purgeable
import Synchronization
import ToolSupport

enum Files {
  static func figures(_ scale: Scale) throws -> [Figure] {
    func lost(_ what: String, _ numbers: Numbers?, _ name: String, _ why: String?) -> Figure {
      Figure(
        "entries lost to \(what) own file traffic, in a group of one and a half times the cache", .time,
        numbers?[name], .atMost(1), "%", note: why.map { "not measured: \($0)" })
    }
    var (losses, why): (Numbers?, String?)
    do {
      losses = try ChildRun.run("file-losses", [scale(200_000, quick: 50_000)])
      if losses?["saver"] == nil { why = "no memory group can be made here" }
    }
    return try rows(scale, valueBytes: 1024) + rows(scale, valueBytes: 16 << 10) + [
      lost("the saver's", losses, "saver", why), lost("the loader's", losses, "loader", why),
    ]
  }

  /// Of a gigabyte.
  private static func rows(_ scale: Scale, valueBytes: Int) throws -> [Figure] {
    let count = scale(1_000_000, quick: 50_000) * 1024 / valueBytes
    let each = try ChildRun.run("files", [count, scale(5, quick: 3), valueBytes])
    let seconds = try ["save", "cp", "restore", "cat"].map { Figure.text(try each.value($0)) }
    let size = "\(count) values of \(valueBytes >> 10) KiB"
    return [
      Figure(
        "\(size) saved, against cp and sync of the file", .time, try Spread(each, "save-cp"), .atMost(1.2), "times",
        note: "\(seconds[0]) s and \(seconds[1]) s; cp's source was in the page cache"),
      Figure(
        "\(size) restored, against cat of the cold file", .time, try Spread(each, "restore-cat"), .atMost(1.3), "times",
        note: "\(seconds[2]) s and \(seconds[3]) s"),
      // A count, but one that does not hold yet: the walk notes 8 bytes an entry.
      Figure(
        "memory beside the cache while \(size) are saved", .time, try each.value("beside"), .atMost(6), "MiB",
        note: "the most that was resident, less what was before"),
      Figure(
        "until the first hit of a restore of \(size), cold", .time, try Spread(each, "first"), .atMost(20), "ms",
        note: "of the entry that was used last"),
    ]
  }

  private static func fill(_ cache: PurgeableCache<Int, [UInt8]>, _ count: Int, valueBytes: Int = 1024) {
    var value = [UInt8](repeating: 7, count: valueBytes)
    for key in 0..<count {
      unsafe value.withUnsafeMutableBytes { unsafe $0.storeBytes(of: key, as: Int.self) }
      cache[key] = value
    }
  }

  private static func seconds(_ body: () throws -> Void) rethrows -> Double {
    let start = ContinuousClock.now
    try body()
    return (ContinuousClock.now - start) / .seconds(1)
  }

  private static func run(_ command: String, _ words: String...) throws {
    let end = try ChildProcess.run("/usr/bin/env", [command] + words, errors: .own)
    guard end.status == 0 else { throw ToolFailure("\(command) ended with status \(end.status)") }
  }

  private static func read(_ path: String) throws { try run("sh", "-c", "cat \"$0\" >/dev/null", path) }

  /// Brings a file to the disk and out of the page cache.
  private static func forget(_ path: String) {
    let file = unsafe open(path, O_RDWR | O_CLOEXEC)
    fsync(file)
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)
    close(file)
  }

  /// In bytes, by /proc/self/status.
  private static func resident(_ field: String) throws -> Double {
    let text = try String(contentsOfFile: "/proc/self/status", encoding: .utf8)
    let line = text.split(separator: "\n").first { $0.hasPrefix(field + ":") }
    guard let kilobytes = line?.split(whereSeparator: { $0 == " " || $0 == "\t" }).dropFirst().first.flatMap({ Double($0) })
    else {
      throw ToolFailure("/proc/self/status has no \(field)")
    }
    return kilobytes * 1024
  }

  /// Arguments: entries, rounds, bytes of a value.
  @Sendable static func measure(_ arguments: [Int]) throws -> Numbers {
    try FigureFolder.with { try measure(arguments[0], rounds: arguments[1], valueBytes: arguments[2], in: $0) }
  }

  private static func measure(_ count: Int, rounds: Int, valueBytes: Int, in folder: String) throws -> Numbers {
    let (path, copy) = (folder + "/saved", folder + "/copy")
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    fill(cache, count, valueBytes: valueBytes)
    var (times, firsts, beside): ([[Double]], [Double], Double) = ([], [], 0)
    for round in 0...rounds {
      let before = try resident("VmRSS")
      try "5".write(toFile: "/proc/self/clear_refs", atomically: false, encoding: .utf8)
      let save = try seconds { try cache.save(to: path) }
      beside = max(beside, try resident("VmHWM") - before)
      try read(path)
      try? FileManager.default.removeItem(atPath: copy)
      let cp = try seconds {
        try run("cp", path, copy)
        try run("sync", copy)
      }
      forget(path)
      forget(copy)
      let cat = try seconds { try read(copy) }
      let restored = try PurgeableCache<Int, [UInt8]>(name: "figures")
      // Asked again and again, from the beginning of the restore.
      let first = Mutex<Double?>(nil)
      let (start, ended) = (ContinuousClock.now, DispatchSemaphore(value: 0))
      Thread {
        while restored.peekValue(forKey: count - 1) == nil, ContinuousClock.now < start + .seconds(60) { usleep(100) }
        first.withLock { $0 = (ContinuousClock.now - start) / .milliseconds(1) }
        ended.signal()
      }.start()
      var report: FileReport?
      let restore = try seconds { report = try restored.restore(from: path) }
      ended.wait()
      guard report?.entryCount == count else { throw ToolFailure("\(report?.entryCount ?? 0) entries were restored") }
      if round == 0 { continue }
      times.append([save, cp, restore, cat])
      firsts.append(first.withLock { $0 } ?? 60_000)
    }
    var numbers: Numbers = ["beside": beside / Double(1 << 20)]
    for (side, name) in ["save", "cp", "restore", "cat"].enumerated() { numbers[name] = Spread(times.map { $0[side] }).median }
    Rounds.ratio(times, 0, over: 1).write(to: &numbers, "save-cp")
    Rounds.ratio(times, 2, over: 3).write(to: &numbers, "restore-cat")
    Spread(firsts).write(to: &numbers, "first")
    return numbers
  }

  /// Arguments: entries.
  @Sendable static func measureLosses(_ arguments: [Int]) throws -> Numbers {
    let count = arguments[0]
    return try GroupRun.run(limit: GroupRun.limit(entries: count)) { try FigureFolder.with { try losses(count, "\($0)/saved") } }
  }

  private static func losses(_ count: Int, _ path: String) throws -> Numbers {
    func share(_ count: Int, of all: Int) -> Double { 100 * Double(count) / Double(all) }
    var numbers: Numbers = [:]
    do {
      let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
      fill(cache, count)
      cache.offerIdle()
      let before = cache.count - cache.sweep()
      try cache.save(to: path)
      _ = cache.sweep()
      numbers["saver"] = share(before - cache.count, of: before)
    }
    let cache = try PurgeableCache<Int, [UInt8]>(name: "figures")
    let restored = try cache.restore(from: path).entryCount
    _ = cache.sweep()
    numbers["loader"] = share(restored - cache.count, of: restored)
    return numbers
  }
}
