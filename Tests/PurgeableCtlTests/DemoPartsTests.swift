// SPDX-License-Identifier: MIT
// The demonstration's parts by themselves: options, choice of files, order of reads, digests, comparison, frames, words.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import Purgeable
@testable import purgeablectl

@Suite("parts of the demo")
struct DemoPartsTests {
  // MARK: Judging

  @Test("one flipped bit anywhere, a byte more or a byte less: another digest, and the number of wrong bytes")
  func corruption() {
    for count in [1, 15, 16, 17, 4096, 5000] {
      let right = (0..<count).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ 7) }
      let digest = Digest(right)
      #expect(HitCheck.wrongBytes(right, digest: digest) { nil } == 0)
      for place in Set([0, count / 2, count - 1]) {
        for bit in 0..<8 {
          var wrong = right
          wrong[place] ^= 1 << bit
          #expect(HitCheck.wrongBytes(wrong, digest: digest) { right } == 1, "\(count) bytes, bit \(bit) of \(place)")
        }
      }
      #expect(HitCheck.wrongBytes(right + [0], digest: digest) { right } == 1)
      #expect(HitCheck.wrongBytes(Array(right.dropLast()), digest: digest) { right } == 1)
      // When the right content is no longer known, all bytes count as wrong.
      #expect(HitCheck.wrongBytes([UInt8](repeating: 0, count: count), digest: digest) { nil } == UInt64(count))
    }
    #expect(HitCheck.wrongBytes([], digest: Digest([1])) { nil } == 1)
  }

  @Test("a discarded page, zeros in the middle of content, is another digest")
  func zeroPage() {
    var random = SplitMix64(seed: 3)
    let right = (0..<32768).map { _ in UInt8(truncatingIfNeeded: random.next()) }
    var wrong = right
    for place in 8192..<12288 { wrong[place] = 0 }
    #expect(HitCheck.wrongBytes(wrong, digest: Digest(right)) { right } > 4000)
  }

  @Test("digests of many similar contents are all different")
  func digestsDiffer() {
    var seen: Set<String> = []
    for count in 0..<200 { seen.insert("\(Digest([UInt8](repeating: 0, count: count)))") }
    for place in 0..<1024 {
      var bytes = [UInt8](repeating: 0, count: 1024)
      bytes[place] = 1
      seen.insert("\(Digest(bytes))")
    }
    #expect(seen.count == 200 + 1024)
  }

  @Test("the comparison with the file: right, wrong, changed meanwhile, gone")
  func finalCheck() throws {
    let root = try FakeRoot(["file": "hello there"])
    defer { root.remove() }
    let path = root.path + "/file"
    let file = CorpusFile(path: path, status: try #require(DiskFile.status(path)))
    var check = FinalCheck()
    check.check(Array("hello there".utf8), against: file)
    #expect(check.entries == 1 && check.bytes == 11 && check.wrongBytes == 0)
    check.check(Array("hello thexe".utf8), against: file)
    #expect(check.entries == 2 && check.wrongBytes == 1)
    check.check([], against: file)
    #expect(check.wrongBytes == 12 && check.changedFiles == 0)
    try root.write("file", "changed by somebody")
    check.check(Array("hello there".utf8), against: file)
    #expect(check.changedFiles == 1 && check.entries == 3 && check.wrongBytes == 12)
    try FileManager.default.removeItem(atPath: path)
    check.check(Array("hello there".utf8), against: file)
    #expect(check.changedFiles == 2)
  }

  // MARK: Choosing

  @Test("files are found in a fixed order: no links, no empty ones, no directories")
  func walk() throws {
    let root = try FakeRoot(["b": "2", "a/z": "1", "a/y": "22", "empty": "", "ä": "3"])
    defer { root.remove() }
    try FileManager.default.createSymbolicLink(atPath: root.path + "/c", withDestinationPath: root.path + "/b")
    try FileManager.default.createSymbolicLink(atPath: root.path + "/d", withDestinationPath: root.path + "/a")
    let corpus = Corpus.choose(in: root.path, sizeBytes: 1 << 20, seed: 1)
    #expect(corpus.isAll)
    #expect(corpus.files.map { $0.path.dropFirst(root.path.count) } == ["/b", "/ä", "/a/y", "/a/z"])
    #expect(corpus.sizeBytes == 5 + 0)
  }

  private static func file(_ number: Int, _ size: UInt64) -> CorpusFile {
    CorpusFile(
      path: "/\(number)",
      status: FileStatus(
        device: 1, inode: UInt64(number), sizeBytes: size, changedSeconds: 0, changedNanoseconds: 0, isRegular: true,
        isDirectory: false))
  }

  @Test("where there is more than enough the seed chooses: the same one the same, another one others, never too much")
  func choice() {
    let found = (0..<5000).map { Self.file($0, UInt64($0 % 700 * 100 + 1)) } + [Self.file(5000, 9 << 20)]
    let one = Corpus.choose(from: found, sizeBytes: 10 << 20, seed: 1) { _ in true }
    #expect(one == Corpus.choose(from: found, sizeBytes: 10 << 20, seed: 1) { _ in true })
    #expect(one != Corpus.choose(from: found, sizeBytes: 10 << 20, seed: 2) { _ in true })
    #expect(one.sizeBytes <= 10 << 20 && one.sizeBytes > 10_400_000)
    #expect(!one.isAll && !one.files.contains { $0.status.sizeBytes > 1 << 20 })
    #expect(one.files.map(\.status.inode) == one.files.map(\.status.inode).sorted())
    let half = Corpus.choose(from: found, sizeBytes: 10 << 20, seed: 1) { $0.status.inode % 2 == 0 }
    #expect(half.files.allSatisfy { $0.status.inode % 2 == 0 })
    #expect(Corpus.choose(from: [], sizeBytes: 1, seed: 1) { _ in true }.files.isEmpty)
    #expect(Corpus.choose(from: found, sizeBytes: 50, seed: 1) { _ in true }.sizeBytes <= 50)
  }

  @Test("reads are skewed, seeded, and within bounds")
  func order() {
    func first(_ seed: UInt64, _ count: Int) -> [Int] { Array(ReadOrder(count: count, seed: seed).prefix(20_000)) }
    #expect(first(1, 1000) == first(1, 1000))
    #expect(first(1, 1000) != first(2, 1000))
    #expect(first(1, 1).allSatisfy { $0 == 0 })
    var counts = [Int](repeating: 0, count: 1000)
    for place in first(5, 1000) { counts[place] += 1 }
    let sorted = counts.sorted(by: >)
    // The first hundredth gets about a quarter of all reads; of 1,000 nearly every one is read now and then.
    #expect((4000...9000).contains(sorted.prefix(10).reduce(0, +)), "\(sorted.prefix(10))")
    #expect(counts.count { $0 > 0 } > 850)
  }

  // MARK: Talking

  @Test("frames go through a pipe as they are; a pipe that ends inside of one is a failure")
  func frames() throws {
    var ends: [Int32] = [0, 0]
    try #require(unsafe pipe(&ends) == 0)
    let writer = WireWriter(descriptor: ends[1])
    let reader = WireReader(descriptor: ends[0])
    try writer.write(.entry, 7, [1, 2, 3])
    try writer.write(.result, 0, Frame.bytes(of: [5, .max]))
    try writer.write(.ready)
    let entry = try #require(try reader.next())
    #expect(entry.tag == .entry && entry.number == 7 && entry.bytes == [1, 2, 3])
    #expect(try reader.next()?.words == [5, .max])
    #expect(try reader.next()?.bytes == [])
    let half: [UInt8] = [WireTag.entry.rawValue, 0, 0]
    _ = unsafe half.withUnsafeBytes { unsafe write(ends[1], $0.baseAddress, $0.count) }
    close(ends[1])
    #expect(throws: WireFailure.self) { try reader.next() }
    #expect(try reader.next() == nil)
    close(ends[0])
  }

  @Test("results survive the pipe; others are refused")
  func results() {
    var result = WorkerResult()
    for (place, field) in WorkerResult.Field.allCases.enumerated() { result[field] = UInt64(place) + 1 }
    result.misses[0...3] = [1, 0, 3, 9]
    #expect(WorkerResult(result.words) == result)
    #expect(WorkerResult([1, 2]) == nil)
    #expect(result.missesByReason.map(\.count) == [9, 3, 1])
    #expect(NeighbourResult([4, 5])?.words == [4, 5])
    #expect(NeighbourResult([]) == nil)
  }

  @Test("what became of the dictionary, in words")
  func dictionary() {
    func words(_ end: ChildEnd, group: Bool, done: Bool = false, killed: Bool? = nil, loaded: UInt64 = 1 << 20) -> String {
      DictionaryOutcome(
        end: end, loadedBytes: loaded, reads: done ? 10 : 0, isDone: done, wasKilledForMemory: killed, hasGroup: group
      ).description(limitBytes: 1 << 20, totalBytes: 1 << 21, readCount: 10)
    }
    #expect(words(.killed(9), group: true, killed: true) == "killed by the out-of-memory killer (signal 9), 1 MiB of 2 MiB in it")
    #expect(words(.killed(9), group: true, killed: false).hasPrefix("ended by signal 9"))
    #expect(words(.killed(11), group: false).contains("RLIMIT_AS at 1 MiB"))
    #expect(words(.exited(0), group: true, done: true, loaded: 1 << 21) == "finished under the same limit, all 10 reads")
    #expect(words(.exited(0), group: true, done: true).hasPrefix("stopped after its time"))
    #expect(words(.exited(1), group: true).hasPrefix("failed with status 1"))
  }

  @Test("the report: wrong bytes of both kinds make the exit status, JSON has every field, the table the verdict")
  func report() throws {
    var worker = WorkerResult()
    worker[.reads] = 3
    worker[.hits] = 2
    var report = DemoReport(
      directory: "/made \"up\"", options: DemoOptions(), fileCount: 2, fileBytes: 10, limitBytes: 5, pressure: "none",
      worker: worker, check: FinalCheck(), dictionary: "finished", nanoseconds: 1)
    #expect(report.exitStatus == 0)
    #expect(report.table.contains("No wrong byte."))
    #expect(report.table.contains("The kernel took nothing"))
    report.check.wrongBytes = 1
    #expect(report.exitStatus == 1 && report.wrongBytes == 1)
    report.worker[.wrongBytes] = 2
    #expect(report.wrongBytes == 3 && report.table.contains("WRONG BYTES"))
    let object = try #require(try JSONSerialization.jsonObject(with: Data(report.json.text.utf8)) as? [String: Any])
    let wanted = [
      "entries", "hits", "misses", "wrongBytes", "discardedBytes", "residentBytes", "offeredBytes", "hitNanoseconds",
      "reloadNanoseconds", "coldReloadNanoseconds", "pressure", "dictionaryOutcome", "directory", "seed", "sizeBytes",
      "limitBytes",
    ]
    #expect(Set(object.keys).isSuperset(of: wanted))
    #expect(object["hitNanoseconds"] is NSNull)
    #expect(object["directory"] as? String == "/made \"up\"")
  }

  @Test("numbers are written for people")
  func figures() {
    #expect([0, 999, 1000, 1_234_567].map(Figures.count) == ["0", "999", "1,000", "1,234,567"])
    #expect([0, 850, 6_240, 14_000_000, 3_140_000_000].map(Figures.time) == ["0 ns", "850 ns", "6.2 us", "14.0 ms", "3.1 s"])
    #expect(Figures.share(1, of: 3) == "33.3 %" && Figures.share(1, of: 0) == "-" && Figures.oneDecimal(99.96) == "100")
  }
}
