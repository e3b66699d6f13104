// SPDX-License-Identifier: MIT
// The demonstration as a whole: the real tool on real files, its report, its exit statuses, and that it leaves nothing behind.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable
@testable import purgeablectl

@Suite("demo", .serialized)
struct DemoTests {
  private static let program = OwnProgram.beside("purgeablectl")

  private static func run(_ words: [String], _ environment: [String] = []) throws -> ChildProcess {
    // Freed memory that the address sanitizer keeps would count against the limit.
    let sanitizer = "ASAN_OPTIONS=quarantine_size_mb=1:thread_local_quarantine_size_kb=16"
    return try ChildProcess.run("/usr/bin/env", [sanitizer] + environment + [program, "demo"] + words)
  }

  /// Makes a directory with some MiB of files without pages of zeros, and a few things that must not be read.
  private static func makeDirectory(fileCount: Int = 96, fileBytes: Int = 64 << 10) throws -> FakeRoot {
    let root = try FakeRoot(["empty": ""])
    for number in 0..<fileCount {
      var random = SplitMix64(seed: UInt64(number))
      let text = (0..<fileBytes / 16).map { _ in String(random.next() | 1 << 63, radix: 16) }.joined()
      try root.write(number % 2 == 0 ? "file-\(number)" : "inner/größe \(number)", text)
    }
    try FileManager.default.createSymbolicLink(atPath: root.path + "/link", withDestinationPath: root.path + "/file-0")
    return root
  }

  private static func object(_ child: ChildProcess) throws -> [String: Any] {
    try #require(child.output.split(separator: "\n").count == 1, "\(child.errors)")
    return try #require(try JSONSerialization.jsonObject(with: Data(child.output.utf8)) as? [String: Any])
  }

  private let groups = GroupsOfTheDead(of: "demo")

  private static func number(_ object: [String: Any], _ name: String) throws -> Int {
    try #require(object[name] as? Int, "\(name)")
  }

  @Test("on a part of /usr: discards really happen, no byte is wrong, all is reported, nothing is left behind", .fullRun)
  func partOfUsr() throws {
    let size = Sanitizer.isAddress ? 128 : 32
    var words = ["--size", "\(size)M", "--seed", "7", "--json"]
    // The sanitizers' own memory does not fit under the usual limit, and with threads it makes no shortage at all.
    if Sanitizer.isAddress { words += ["--limit", "96M"] }
    if Sanitizer.isThread { words += ["--limit", "2G"] }
    let child = try Self.run(words)
    #expect(child.status == 0, "\(child.errors)")
    let object = try Self.object(child)
    #expect(object["directory"] as? String == "/usr")
    #expect(try Self.number(object, "seed") == 7)
    #expect(try Self.number(object, "sizeBytes") == size << 20)
    #expect(try Self.number(object, "wrongBytes") == 0)
    let entries = try Self.number(object, "entries")
    #expect(entries > 10)
    let hits = try Self.number(object, "hits")
    let misses = try #require(object["misses"] as? [String: Int])
    #expect(Set(misses.keys) == Set(MissReason.allCases.map { "\($0)" }))
    #expect(hits > 0)
    #expect(hits + misses.values.reduce(0, +) == (try Self.number(object, "reads")))
    for name in ["residentBytes", "offeredBytes", "hitNanoseconds", "reloadNanoseconds", "coldReloadNanoseconds"] {
      #expect(try Self.number(object, name) > 0, "\(name)")
    }
    #expect(try Self.number(object, "comparedEntries") > 0)
    #expect((object["dictionaryOutcome"] as? String)?.isEmpty == false)
    let pressure = try #require(object["pressure"] as? String)
    if !pressure.hasPrefix("none") && !Sanitizer.isThread {
      #expect(try Self.number(object, "discardedEntries") > 0, "\(pressure)")
      #expect(try Self.number(object, "discardedBytes") > 0)
    }
    #expect(groups.added == [])
  }

  @Test(
    "on a small directory: all of its files are entries, links and empty files are none; the table names the directory",
    .fullRun)
  func smallDirectory() throws {
    let root = try Self.makeDirectory()
    defer { root.remove() }
    let start = Clock.now
    let record = root.path + "-run.jsonl"
    defer { try? FileManager.default.removeItem(atPath: record) }
    let child = try Self.run([root.path, "--record", record])
    let seconds = Int((Clock.now - start) / 1_000_000_000)
    #expect(child.status == 0, "\(child.errors)")
    #expect(child.output.contains("96 files of \(root.path), 6 MiB, seed 1"))
    #expect(child.output.contains("No wrong byte."))
    #expect(child.output.contains("a plain dictionary: "))
    // Standard error is a file here: a line for each part at most every ten seconds, and nothing that rewrites itself.
    #expect(child.errors.split(separator: "\n").count < 15 + seconds / 10)
    #expect(!child.errors.contains("\r"))
    let run = try RunRecord(path: record)
    #expect(run.header.about.hasPrefix("96 files of \(root.path), 6 MiB"))
    #expect(run.samples.count > 5 && run.samples.contains { $0.residentBytes ?? 0 > 1 << 20 })
    #expect(Set(run.samples.compactMap(\.phase)).count == 2 && run.samples.compactMap(\.wrongBytes).max() == 0)
    #expect(groups.added == [])
  }

  @Test(
    "a spoiled byte is found, by digest and by comparison, and makes the exit status 1", .fullRun,
    arguments: ["hits", "rest"])
  func spoiled(what: String) throws {
    let root = try Self.makeDirectory(fileCount: 48)
    defer { root.remove() }
    let child = try Self.run([root.path, "--json"], ["PURGEABLECTL_DEMO_SPOIL=\(what)"])
    #expect(child.status == 1, "\(child.errors)")
    let wrong = try Self.number(Self.object(child), "wrongBytes")
    // One byte of each spoiled hit; and there is one first entry.
    #expect(what == "hits" ? wrong >= 1 : wrong == 1)
    #expect(groups.added == [])
  }

  @Test("ended by a signal, it ends its children and removes its group", .fullRun)
  func interrupted() throws {
    let root = try FakeRoot()
    defer { root.remove() }
    // The signal comes when there is a group, or else when the second part has begun, of which a line tells.
    let script = #"""
      "$0" demo --size 32M 2>"$1/errors" & demo=$!
      until [ -d "$2/purgeable-demo-$demo" ] || [ $(wc -l <"$1/errors") -gt 1 ] || ! grep -q demo /proc/$demo/cmdline
      do sleep 0.05; done
      kill -TERM $demo; wait $demo; status=$?
      cat "$1/errors" >&2; exit $status
      """#
    let child = try ChildProcess.run("/bin/sh", ["-c", script, Self.program, root.path, OwnGroup.directory ?? "/nowhere"])
    #expect(child.status == 143)
    #expect(child.errors.contains("ended by signal 15"))
    #expect(child.output.isEmpty)
    #expect(groups.added == [])
  }

  @Test("called wrongly it says so and ends with 2; with nothing to read, with 1")
  func refuses() throws {
    let root = try FakeRoot(["empty": "", "file": "x"])
    defer { root.remove() }
    try FileManager.default.createDirectory(atPath: root.path + "/none", withIntermediateDirectories: true)
    let wrong: [([String], String)] = [
      ([root.path + "/missing"], "No such file"), ([root.path + "/file"], "is not a directory"), (["--size", "0"], "--size"),
      (["--size", "much"], "--size"), (["--seed", "x"], "--seed"), (["--seed", "-1"], "--seed"), (["--limit", "0"], "--limit"),
      ([root.path, "/usr"], "unexpected argument"), (["--jason"], "unknown option"),
    ]
    for (words, message) in wrong {
      let child = try Self.run(words)
      #expect(child.status == 2, "\(words)")
      #expect(child.errors.contains(message), "\(words): \(child.errors)")
      #expect(child.output.isEmpty)
    }
    let nothing = try Self.run([root.path + "/none", "--json"])
    #expect(nothing.status == 1)
    #expect(nothing.errors.contains("has no readable file"))
    #expect(nothing.output.isEmpty)
  }
}
