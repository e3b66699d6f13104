// SPDX-License-Identifier: MIT
// The stress scenarios as a whole, in short form: the real tool, its reports, its exit statuses, and that it leaves nothing
// behind. A sanitizer's own memory does not fit into groups this small. How much the kernel takes, and so every share, is for the
// long form, and for people.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable
@testable import purgeablectl

@Suite("stress", .serialized, .disabled(if: Sanitizer.isAddress || Sanitizer.isThread, "does not fit into the group"))
struct StressTests {
  /// The smallest group that is allowed.
  private static let limit = "96M"
  private static let program = OwnProgram.beside("purgeablectl")

  private static func run(_ words: [String], _ environment: [String] = []) throws -> ChildProcess {
    try ChildProcess.run("/usr/bin/env", environment + [program, "stress"] + words)
  }

  /// Runs a scenario in short form and returns its object. Cancels the test where it was skipped, which needs a reason.
  private static func object(_ child: ChildProcess, _ scenario: String) throws -> [String: Any] {
    try #require(child.output.split(separator: "\n").count == 1, "\(child.errors)")
    let object = try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any])
    #expect(object["scenario"] as? String == scenario)
    if let reason = object["skipped"] {
      #expect((reason as? String)?.isEmpty == false)
      #expect(child.status == 0)
      #expect(object["passed"] as? Bool == false)
      try Test.cancel("\(scenario): \(reason)")
    }
    return object
  }

  private static func short(_ scenario: String, _ words: [String] = []) throws -> [String: Any] {
    let child = try run([scenario, "--short", "--json", "--limit", limit, "--seed", "3"] + words)
    let object = try object(child, scenario)
    #expect(child.status == 0, "\(object["failures"] ?? "") \(child.errors)")
    #expect(try number(object, "wrongBytes") == 0)
    #expect(try number(object, "kills") == 0)
    #expect(try number(object, "seed") == 3)
    #expect(object["passed"] as? Bool == true)
    #expect((object["failures"] as? [Any])?.isEmpty == true)
    #expect((object["swap"] as? String)?.isEmpty == false)
    #expect((object["pressure"] as? String)?.contains("96 MiB") == true)
    return object
  }

  private static func number(_ object: [String: Any], _ name: String) throws -> Int {
    try #require(object[name] as? Int, "\(name)")
  }

  private static func fraction(_ object: Any?, _ name: String) throws -> Double {
    try #require((object as? [String: Any])?[name] as? Double, "\(name)")
  }

  private let groups = GroupsOfTheDead(of: "stress")

  @Test("overcommit: nobody is killed, no byte is wrong; hits and times over time", .fullRun)
  func overcommit() throws {
    let root = try FakeRoot()
    defer { root.remove() }
    let object = try Self.short("overcommit", ["--record", root.path + "/run"])
    let record = try RunRecord(path: root.path + "/run")
    #expect(record.header.about == "overcommit, seed 3" && record.header.limitBytes == 96 << 20)
    #expect(record.samples.contains { $0.event == "memory is taken in waves" })
    let caches = record.samples.filter { $0.heldBytes != nil }
    #expect(Set(caches.compactMap(\.phase)).isSuperset(of: ["filling", "reading"]) && caches.count > 10)
    #expect(caches.contains { $0.hits ?? 0 > 0 && $0.residentBytes ?? 0 > 0 && $0.wrongBytes == 0 })
    #expect(record.samples.contains { $0.groupBytes ?? 0 > 48 << 20 })
    #expect(try Self.number(object, "storedBytes") > 3 * 96 << 20)
    #expect(try Self.number(object, "refusedStores") == 0)
    #expect(try Self.number(object, "waves") > 1)
    // Entries were taken by the kernel, or given back before it had to: which of the two depends on how threads are scheduled.
    #expect(try Self.number(object, "discardedEntries") + Self.number(object, "evictedEntries") > 0)
    #expect(try Self.number(object, "neighbourBytes") > 76 << 20)
    let rows = try #require(object["intervals"] as? [[String: Any]])
    #expect(rows.count > 3)
    #expect(try rows.reduce(0) { try $0 + Self.number($1, "hits") } > 0)
    for row in rows { #expect(try Self.number(row, "p50Nanoseconds") <= Self.number(row, "p999Nanoseconds")) }
    // The slots of lost entries must not stay: a few bytes for each entry that fits, not for each that was stored.
    #expect(try Self.number(object, "ordinaryBytes") < 12 << 20)
  }

  @Test("compare: four participants, and the cache is the one that nobody was killed for", .fullRun)
  func compare() throws {
    let object = try Self.short("compare")
    let participants = try #require(object["participants"] as? [[String: Any]])
    #expect(participants.map { $0["name"] as? String } == ["Dictionary", "count-limited LRU", "NSCache", "PurgeableCache"])
    #expect(participants.last?["became"] as? String == "survived")
    // A dictionary that is given four times the limit.
    #expect((participants.first?["became"] as? String)?.contains("killed") == true)
  }

  @Test("neighbour: a rate for each holder of the memory, and their ratios", .fullRun)
  func neighbour() throws {
    let object = try Self.short("neighbour")
    for name in [
      "nobody", "files", "bare", "byHand", "cacheAlone", "cacheReacting", "aloneToBare", "reactingToFiles", "slowdownReacting",
    ] {
      #expect(try Self.fraction(object[name], "median") > 0, "\(name)")
    }
  }

  @Test("stopped: memory is taken from a process that does not run, and what is left of it is right", .fullRun)
  func stopped() throws {
    let object = try Self.short("stopped")
    #expect(try Self.number(object, "residentBytesAfter") < Self.number(object, "residentBytesBefore"))
    let hits = try Self.number(object, "hits")
    #expect(hits > 0)
    #expect(try hits < Self.number(object, "reads"))
  }

  @Test(
    "streaming, core, forks, locked: under pressure, all right", .fullRun,
    arguments: ["streaming", "core", "forks", "locked"])
  func others(scenario: String) throws {
    let object = try Self.short(scenario)
    switch scenario {
    case "core":
      // How many of them hangs on the kernel and the disk; the figures say.
      #expect(try Self.number(object, "core0Entries") > 0 && Self.number(object, "core100Reads") > 0)
    case "streaming": #expect(try Self.number(object, "readBytes") > 0)
    case "forks":
      #expect(try Self.number(object, "childrenOfMisses") + Self.number(object, "childrenWithHits") > 0)
    default:
      #expect(try Self.number(object, "holds") > 0)
      #expect(try Self.number(object, "peakLockedBytes") <= Self.number(object, "capBytes"))
    }
  }

  @Test("hot: a share of an ideal LRU for both sizes, by the kernel alone and with the reaction", .fullRun)
  func hot() throws {
    let object = try Self.short("hot")
    let variants = try #require(object["variants"] as? [[String: Any]])
    #expect(variants.map { $0["entryBytes"] as? Int } == [4096, 4096, 100, 100])
    for variant in variants {
      let remaining = try Self.fraction(variant, "remainingShare")
      #expect(remaining > 0 && remaining < 0.6)
      // Which pages the kernel takes hangs on what else the machine does.
      #expect(try Self.fraction(variant, "shareOfIdeal") > 0)
    }
    #expect(groups.added == [])
  }

  @Test("a spoiled byte is found, and makes the exit status 1", .fullRun, arguments: ["stopped", "locked"])
  func spoiled(scenario: String) throws {
    let child = try Self.run(
      [scenario, "--short", "--json", "--limit", Self.limit, "--seconds", "1"], ["PURGEABLECTL_STRESS_SPOIL=hits"])
    let object = try Self.object(child, scenario)
    #expect(child.status == 1)
    #expect(try Self.number(object, "wrongBytes") > 0)
    #expect(object["passed"] as? Bool == false)
  }

  /// For scripts: waits until the process with the cache, a child of `stress`, has content, and leaves its number in `number`.
  /// False when `stress` has ended before that.
  private static let cacheAtWork = #"""
    cache_at_work() {
      while grep -q stress /proc/$stress/cmdline; do
        for status in /proc/[0-9]*/stat; do
          read -r number name state parent others <$status 2>/dev/null || continue
          [ "$parent" = $stress ] && grep -q stress-cache /proc/$number/cmdline &&
            awk '/^VmRSS/ { exit !($2 > 40000) }' /proc/$number/status && return 0
        done
        sleep 0.05
      done
      return 1
    }

    """#

  @Test("a process that is gone makes the exit status 1, and is told; nothing is left behind", .fullRun)
  func killed() throws {
    let script =
      Self.cacheAtWork + #"""
        "$0" stress locked --short --json --limit 96M --seconds 30 & stress=$!
        cache_at_work && kill -KILL $number
        wait $stress
        """#
    let child = try ChildProcess.run("/bin/sh", ["-c", script, Self.program])
    let object = try Self.object(child, "locked")
    #expect(child.status == 1)
    #expect((object["failures"] as? [String])?.first?.hasPrefix("the cache was ended by signal 9") == true)
    #expect(groups.added == [])
  }

  @Test("ended by a signal, it ends its children and removes its group", .fullRun)
  func interrupted() throws {
    let script =
      Self.cacheAtWork + #"""
        "$0" stress locked --short --limit 96M --seconds 30 & stress=$!
        cache_at_work && kill -TERM $stress
        wait $stress
        """#
    let child = try ChildProcess.run("/bin/sh", ["-c", script, Self.program])
    if child.output.contains("skipped") { try Test.cancel("\(child.output)") }
    #expect(child.status == 143)
    #expect(child.errors.contains("ended by signal 15"))
    #expect(groups.added == [])
  }

  @Test(
    "an output that cannot be written ends it, and says so", .fullRun,
    .enabled(if: FileManager.default.isWritableFile(atPath: "/dev/full"), "no /dev/full here"))
  func fullDisk() throws {
    let words = "stress locked --short --json --limit \(Self.limit) --repeat 1000 >/dev/full"
    let child = try ChildProcess.run("/bin/sh", ["-c", "exec \(Self.program) \(words)"])
    #expect(child.status == 1 && child.errors.contains("the output cannot be written: No space left"), "\(child.errors)")
    #expect(groups.added == [])
  }

  @Test("called wrongly it says so and ends with 2")
  func refuses() throws {
    let wrong: [([String], String)] = [
      ([], "a scenario or --all is missing"), (["nonsense"], "unknown scenario"), (["hot", "--all"], "not both"),
      (["hot", "--limit", "1M"], "--limit"), (["hot", "--repeat", "0"], "--repeat"), (["hot", "--seconds", "0"], "--seconds"),
      (["hot", "stopped"], "unexpected argument"),
    ]
    for (words, message) in wrong {
      let child = try Self.run(words)
      #expect(child.status == 2, "\(words)")
      #expect(child.errors.contains(message), "\(words): \(child.errors)")
      #expect(child.output.isEmpty)
    }
  }
}
