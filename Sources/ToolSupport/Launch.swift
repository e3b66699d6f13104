// SPDX-License-Identifier: MIT
// Starting a program, and how a process ended.

import Glibc
import Purgeable

/// How a process ended.
package enum ChildEnd: Equatable, Sendable {
  case exited(Int32)
  case killed(Int32)

  /// Waits for a child of this process. nil where the system does not tell: children are not waited for where SIGCHLD is ignored.
  package static func of(_ process: pid_t) -> ChildEnd? {
    var end: Int32 = 0
    while unsafe waitpid(process, &end, 0) < 0 {
      guard errno == EINTR else { return nil }
    }
    // As <sys/wait.h> takes it apart: the signal in the low seven bits, the exit status above them.
    return end & 0x7F == 0 ? .exited((end >> 8) & 0xFF) : .killed(end & 0x7F)
  }

  /// As shells tell it: the exit status, or 128 and the number of the signal.
  package var status: Int32 {
    switch self {
    case .exited(let status): status
    case .killed(let signal): 128 + signal
    }
  }
}

/// A program to be started. The new process has no signal blocked, and this process's environment unless told otherwise.
package struct Launch {
  /// Where a standard stream of the new process leads.
  package enum Stream {
    /// Where this process's leads.
    case own
    /// To /dev/null.
    case nothing
    case descriptor(Int32)
  }

  package var path: String
  /// The first one is the name that the program is called by.
  package var words: [String]
  package var environment = Launch.ownEnvironment
  package var input = Stream.nothing
  package var output = Stream.own
  package var errors = Stream.own
  /// Signals that do what they usually do, whatever this process does with them.
  package var usualSignals = sigset_t()

  package init(_ path: String, _ words: [String]) {
    self.path = path
    self.words = words
    unsafe sigemptyset(&usualSignals)
  }

  /// As this process got it; the global `environ` is not for concurrent programs.
  package static var ownEnvironment: [String] {
    (SmallFile.text("/proc/self/environ", limit: 4 << 20) ?? "").split(separator: "\0").map(String.init)
  }

  /// Starts the program. 0 or an errno; the caller waits for the end of `process`.
  package func start(_ process: inout pid_t) -> Int32 {
    var actions = unsafe posix_spawn_file_actions_t()
    var attributes = posix_spawnattr_t()
    // Each call below copies what it is given; `actions`, `attributes` and the words outlive the spawn.
    unsafe posix_spawn_file_actions_init(&actions)
    unsafe posix_spawnattr_init(&attributes)
    defer {
      unsafe posix_spawn_file_actions_destroy(&actions)
      unsafe posix_spawnattr_destroy(&attributes)
    }
    for (number, stream) in [(STDIN_FILENO, input), (STDOUT_FILENO, output), (STDERR_FILENO, errors)] {
      switch stream {
      case .own: break
      case .nothing: unsafe posix_spawn_file_actions_addopen(&actions, number, "/dev/null", O_RDWR, 0)
      case .descriptor(let descriptor): unsafe posix_spawn_file_actions_adddup2(&actions, descriptor, number)
      }
    }
    var (none, usual) = (sigset_t(), usualSignals)
    unsafe sigemptyset(&none)
    unsafe posix_spawnattr_setsigmask(&attributes, &none)
    unsafe posix_spawnattr_setsigdefault(&attributes, &usual)
    unsafe posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF))
    return unsafe Self.withStrings(words) { words in
      unsafe Self.withStrings(environment) { environment in
        unsafe posix_spawn(&process, path, &actions, &attributes, words, environment)
      }
    }
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

/// The program that this process runs.
package enum OwnProgram {
  /// By its own name, which is what `ps` shows; by the kernel's where it was replaced since it was started.
  package static var path: String { unsafe access(startedPath, X_OK) == 0 ? startedPath : link }

  /// The path of another program in the same folder.
  package static func beside(_ name: String) -> String {
    startedPath.prefix(through: startedPath.lastIndex(of: "/") ?? startedPath.startIndex) + name
  }

  private static let link = "/proc/self/exe"

  private static let startedPath: String = {
    let bytes = unsafe [UInt8](unsafeUninitializedCapacity: Int(PATH_MAX)) { buffer, count in
      // Not more than fits; a path that is cut off is found not to be a program.
      count = unsafe buffer.withMemoryRebound(to: CChar.self) { max(0, unsafe readlink(link, $0.baseAddress!, $0.count)) }
    }
    return String(decoding: bytes, as: UTF8.self)
  }()
}
