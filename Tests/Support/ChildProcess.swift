// SPDX-License-Identifier: MIT
// Runs a program and collects what it printed. Not with Foundation's Process and file reading, of
// which the leak sanitizer reports leaks of their own.

import Foundation
import Purgeable

/// How a program ended, and what it printed.
public struct ChildProcess: Sendable {
  /// The exit status, or 128 and the number of the signal that ended it.
  public let status: Int32
  public let output: String
  public let errors: String

  /// The most that is kept of each of the two, in bytes.
  public static let outputLimit = 16 << 20

  public struct Failure: Error {
    public let call: String
    public let errorNumber: Int32
  }

  /// Runs a program that was built beside the tests, and waits for its end.
  public static func runBuilt(_ name: String, _ words: [String]) throws -> ChildProcess {
    let tests = try FileManager.default.destinationOfSymbolicLink(atPath: "/proc/self/exe")
    let folder = URL(fileURLWithPath: tests).deletingLastPathComponent()
    return try run(folder.appendingPathComponent(name).path, words)
  }

  /// Runs the program at a path, with this process's environment and no input, and waits for its end.
  public static func run(_ path: String, _ words: [String]) throws -> ChildProcess {
    // Files and not pipes: however much the program prints, it cannot block.
    let folder = try FakeRoot(["output": "", "errors": ""])
    defer { folder.remove() }
    var actions = unsafe posix_spawn_file_actions_t()
    // Each call below copies the paths it is given; `actions` and `arguments` outlive the spawn.
    unsafe posix_spawn_file_actions_init(&actions)
    defer { unsafe posix_spawn_file_actions_destroy(&actions) }
    unsafe posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0)
    unsafe posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, folder.path + "/output", O_WRONLY, 0)
    unsafe posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, folder.path + "/errors", O_WRONLY, 0)
    // A test's thread may have signals blocked, which a child would inherit.
    var attributes = posix_spawnattr_t()
    var none = sigset_t()
    unsafe posix_spawnattr_init(&attributes)
    defer { unsafe posix_spawnattr_destroy(&attributes) }
    unsafe sigemptyset(&none)
    unsafe posix_spawnattr_setsigmask(&attributes, &none)
    unsafe posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK))
    let environment = ProcessInfo.processInfo.environment.map { "\($0)=\($1)" }
    var child: pid_t = 0
    let error = unsafe withStrings([path] + words) { arguments in
      unsafe withStrings(environment) { environment in
        unsafe posix_spawn(&child, path, &actions, &attributes, arguments, environment)
      }
    }
    guard error == 0 else { throw Failure(call: "posix_spawn \(path)", errorNumber: error) }
    var end: Int32 = 0
    while unsafe waitpid(child, &end, 0) < 0 {
      guard errno == EINTR else { throw Failure(call: "waitpid", errorNumber: errno) }
    }
    // As <sys/wait.h> takes it apart: the signal in the low seven bits, the exit status above them.
    let signal = end & 0x7F
    return ChildProcess(
      status: signal == 0 ? (end >> 8) & 0xFF : 128 + signal,
      output: try SmallFile.read(folder.path + "/output", limit: outputLimit),
      errors: try SmallFile.read(folder.path + "/errors", limit: outputLimit))
  }

  /// Lends C strings with a NULL behind them, as `exec` wants them.
  private static func withStrings(
    _ strings: [String], _ body: (UnsafeMutablePointer<UnsafeMutablePointer<CChar>?>) -> Int32
  ) -> Int32 {
    var copies = unsafe strings.map { unsafe strdup($0) } + [nil]
    defer { for index in 0...strings.count { unsafe free(copies[index]) } }
    // The array is not touched by anybody else while its buffer is lent.
    return unsafe copies.withUnsafeMutableBufferPointer { unsafe body($0.baseAddress!) }
  }
}
