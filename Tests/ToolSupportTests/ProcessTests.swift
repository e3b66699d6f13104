// SPDX-License-Identifier: MIT
// Child processes, files without a name, and files on disk.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@Suite("processes of the tools")
struct ProcessTests {
  private static func shell(_ script: String, errors: Launch.Stream? = nil) throws -> ChildProcess {
    try ChildProcess.run("/bin/sh", ["-c", script], errors: errors)
  }

  @Test("what a program prints is kept by stream, with its exit status")
  func collects() throws {
    let child = try Self.shell("echo out; echo err >&2; exit 3")
    #expect(child.end == .exited(3) && child.status == 3)
    #expect(child.output == "out\n" && child.errors == "err\n")
    let quiet = try Self.shell("echo out; echo err >&2", errors: .nothing)
    #expect(quiet.end == .exited(0) && quiet.output == "out\n" && quiet.errors.isEmpty)
  }

  @Test("a signal that ends a program is told, and as a status it is 128 and its number")
  func killed() throws {
    let child = try Self.shell("kill -KILL $$")
    #expect(child.end == .killed(SIGKILL) && child.status == 137)
  }

  @Test("a program has no input, this process's environment, and no signal blocked")
  func surroundings() throws {
    #expect(try Self.shell("cat; echo $?").output == "0\n")
    #expect(try Self.shell("echo $PATH").output == (ProcessInfo.processInfo.environment["PATH"] ?? "") + "\n")
    #expect(try Self.shell("grep SigBlk /proc/self/status").output == "SigBlk:\t0000000000000000\n")
  }

  @Test("a program may print more than a pipe holds")
  func muchOutput() throws {
    let count = TestRun.isFull ? 3_000_000 : 500_000
    let child = try Self.shell("head -c \(count) /dev/zero | tr '\\0' x; head -c 300000 /dev/zero | tr '\\0' y >&2")
    #expect(child.end == .exited(0))
    let isRight = child.output == String(repeating: "x", count: count)
    #expect(isRight, "\(child.output.utf8.count) bytes")
    #expect(child.errors.utf8.count == 300_000)
  }

  @Test("a program that is not there is a failure that names it")
  func missing() {
    let failure = #expect(throws: ToolFailure.self) { try ChildProcess.run("/nowhere/program", []) }
    #expect(failure?.description == "/nowhere/program: No such file or directory")
  }

  @Test("signals that this process ignores do what they usually do where that is asked for")
  func usualSignals() async {
    // In a process of its own: what this one ignores, the children of other tests would ignore too.
    await #expect(processExitsWith: .success) {
      _ = signal(SIGUSR2, SIG_IGN)
      func end(usually: Bool) -> ChildEnd? {
        var launch = Launch("/bin/sh", ["sh", "-c", "kill -USR2 $$; exit 5"])
        if usually { unsafe sigaddset(&launch.usualSignals, SIGUSR2) }
        var process: pid_t = 0
        return launch.start(&process) == 0 ? ChildEnd.of(process) : nil
      }
      #expect(end(usually: false) == .exited(5))
      #expect(end(usually: true) == .killed(SIGUSR2))
    }
  }

  @Test("this program's path leads to it, and to those built beside it")
  func ownProgram() throws {
    #expect(FileManager.default.isExecutableFile(atPath: OwnProgram.path))
    #expect(FileManager.default.isExecutableFile(atPath: OwnProgram.beside("purgeablectl")))
    #expect(try ChildProcess.runBuilt("purgeablectl", ["--help"]).end == .exited(0))
  }

  @Test("a file without a name is empty at first, read from its beginning, and in no directory")
  func unnamedFile() throws {
    let root = try FakeRoot()
    defer { root.remove() }
    let file = try UnnamedFile(in: root.path)
    #expect(try file.text(limit: 100) == "")
    #expect(unsafe write(file.descriptor, "hello", 5) == 5)
    #expect(try file.text(limit: 100) == "hello")
    #expect(try file.text(limit: 4) == "hell")
    #expect(try FileManager.default.contentsOfDirectory(atPath: root.path).isEmpty)
    #expect(DiskFile.read(file.path) == nil, "a link, which is not followed")
    let failure = #expect(throws: ToolFailure.self) { try UnnamedFile(in: "/nowhere") }
    #expect(failure?.description == "no temporary file in /nowhere: No such file or directory")
  }

  @Test("only regular files are read, from the disk where that is asked for; names are sorted")
  func diskFiles() throws {
    let root = try FakeRoot(["b": "2", "a/z": "1", "a/y": "22"])
    defer { root.remove() }
    try root.link("c", root.path + "/b")
    #expect(DiskFile.read(root.path + "/a/y") == Array("22".utf8))
    #expect(DiskFile.read(root.path + "/a/y", fromDisk: true) == Array("22".utf8))
    #expect(DiskFile.read(root.path + "/a/y", leavesPageCache: false) == Array("22".utf8))
    for name in ["c", "a", "nothing"] { #expect(DiskFile.read(root.path + "/" + name) == nil) }
    #expect(DiskFile.names(in: root.path)?.map(\.name) == ["a", "b", "c"])
    #expect(DiskFile.names(in: root.path + "/b") == nil)
    #expect(DiskFile.status(root.path + "/c")?.isRegular == false)
    #expect(DiskFile.status(root.path + "/c", followsLinks: true)?.sizeBytes == 1)
  }
}
