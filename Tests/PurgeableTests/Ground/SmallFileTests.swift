// SPDX-License-Identifier: MIT

import Glibc
import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("small files")
struct SmallFileTests {
  @Test("a file is read whole, across several reads, and up to the limit")
  func whole() throws {
    let text = String(repeating: "0123456789", count: 2000)
    let root = try FakeRoot(["file": text, "empty": ""])
    defer { root.remove() }
    #expect(try SmallFile.read(root.path + "/file") == text)
    #expect(try SmallFile.read(root.path + "/file", limit: 5000).count == 5000)
    #expect(try SmallFile.read(root.path + "/file", limit: 0) == "")
    #expect(try SmallFile.read(root.path + "/empty") == "")
  }

  @Test("what cannot be read says why")
  func errors() throws {
    let root = try FakeRoot()
    defer { root.remove() }
    #expect(throws: SmallFile.Failure(number: ENOENT)) { try SmallFile.read(root.path + "/nothing") }
    #expect(throws: SmallFile.Failure(number: EISDIR)) { try SmallFile.read(root.path) }
    #expect(SmallFile.text(root.path + "/nothing") == nil)
  }

  @Test("numbers", arguments: [("12\n", 12), ("max\n", nil), ("", nil), ("-1", nil), ("18446744073709551616", nil), (" 7 8", 7)])
  func numbers(text: String, number: UInt64?) {
    #expect(SmallFile.firstNumber(of: text) == number)
  }

  @Test("keys are whole words at the beginning of a line")
  func keys() {
    let text =
      "total_inactive 1\ninactive_more 2\ninactive 3\nMemTotal:       4 kB\nHuge: 18446744073709551615 kB\nBad: x\nShort\n"
    #expect(SmallFile.number(after: "inactive", in: text) == 3)
    #expect(SmallFile.number(after: "MemTotal", in: text) == 4096)
    #expect(SmallFile.number(after: "Huge", in: text) == .max)
    #expect(SmallFile.number(after: "Bad", in: text) == nil)
    #expect(SmallFile.number(after: "Short", in: text) == nil)
    #expect(SmallFile.number(after: "Mem", in: text) == nil)
  }

  @Test("the machine's memory, also of kernels that tell less")
  func memory() throws {
    let memory = try #require(MachineMemory(meminfo: "MemTotal: 100 kB\nMemFree: 50 kB\nMemAvailable: 70 kB\nSwapTotal: 8 kB\n"))
    #expect(memory.totalBytes == 102_400)
    #expect(memory.availableBytes == 71_680)
    #expect(memory.swapTotalBytes == 8192)
    #expect(MachineMemory(meminfo: "MemTotal: 100 kB\nMemFree: 50 kB\n")?.availableBytes == 51_200)
    #expect(MachineMemory(meminfo: "") == nil)
  }
}
