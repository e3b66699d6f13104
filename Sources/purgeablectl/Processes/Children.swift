// SPDX-License-Identifier: MIT
// Child processes: started, waited for, and ended with this one, also when a signal ends it.

import Glibc
import Purgeable
import Synchronization

/// How a process ended.
enum ChildEnd: Equatable, Sendable {
  case exited(Int32)
  case killed(Int32)
}

/// A child and the two pipes to it. Whoever started it waits for it.
final class Child {
  let process: pid_t
  let reader: WireReader
  private var inputDescriptor: Int32

  fileprivate init(process: pid_t, input: Int32, output: Int32) {
    self.process = process
    inputDescriptor = input
    reader = WireReader(descriptor: output)
  }

  deinit {
    closeInput()
    close(reader.descriptor)
  }

  var writer: WireWriter { WireWriter(descriptor: inputDescriptor) }

  /// The child reads the end of its input.
  func closeInput() {
    if inputDescriptor >= 0 { close(inputDescriptor) }
    inputDescriptor = -1
  }

  /// Waits for its end.
  func wait() -> ChildEnd { Children.wait(process) }
}

/// All children of this process that were not waited for yet.
enum Children {
  private struct State {
    var alive: Set<pid_t> = []
    /// The signal that ends this process; 0 for none so far.
    var interruption: Int32 = 0
  }

  private static let state = Mutex(State())

  /// The signal that somebody wants us to end with; 0 for none.
  static var interruption: Int32 { state.withLock { $0.interruption } }

  // MARK: Signals

  /// Those that whoever started us does not want ignored, as `nohup` does.
  private static let watchedSignals = [SIGINT, SIGTERM, SIGHUP].filter { signal in
    var action = sigaction()
    guard unsafe sigaction(signal, nil, &action) == 0 else { return true }
    // SIG_IGN is the number 1 in a function pointer's place.
    return unsafe unsafeBitCast(action.__sigaction_handler.sa_handler, to: Int.self) != 1
  }

  private static func watchedSet() -> sigset_t {
    var set = sigset_t()
    unsafe sigemptyset(&set)
    for signal in watchedSignals { unsafe sigaddset(&set, signal) }
    return set
  }

  /// From here on the watched signals end the children; whoever talks to one finds its pipe closed, and ends in good order.
  static func watchSignals() throws(ToolFailure) {
    // A child that is gone shows as an error of `write`.
    signal(SIGPIPE, SIG_IGN)
    var set = watchedSet()
    unsafe pthread_sigmask(SIG_BLOCK, &set, nil)
    var attributes = pthread_attr_t()
    unsafe pthread_attr_init(&attributes)
    defer { unsafe pthread_attr_destroy(&attributes) }
    unsafe pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
    var thread = pthread_t()
    let error = unsafe pthread_create(
      &thread, &attributes,
      { _ in
        var set = Children.watchedSet()
        var signal: Int32 = 0
        while true {
          guard unsafe sigwait(&set, &signal) == 0 else { continue }
          Children.state.withLock { state in
            state.interruption = signal
            for child in state.alive { kill(child, SIGKILL) }
          }
        }
      }, nil)
    guard error == 0 else { throw ToolFailure("no thread for signals: \(SystemError.text(error))") }
  }

  /// Ends and awaits all that are still there.
  static func endAll() {
    let alive = state.withLock { state in
      for child in state.alive { kill(child, SIGKILL) }
      return state.alive
    }
    for child in alive { _ = wait(child) }
  }

  // MARK: Starting and waiting

  /// Starts this program again with other words. `isQuiet`: what it says on standard error is nobody's business.
  static func start(_ words: [String], isQuiet: Bool = false) throws(ToolFailure) -> Child {
    let input = try pipe()
    let output: (read: Int32, write: Int32)
    do {
      output = try pipe()
    } catch {
      close(input.read)
      close(input.write)
      throw error
    }
    var process: pid_t = 0
    let error = state.withLock { state -> Int32 in
      // Else a child could come to life after the signal thread ended all others.
      guard state.interruption == 0 else { return EINTR }
      let error = spawn(words, input: input.read, output: output.write, isQuiet: isQuiet, &process)
      if error == 0 { state.alive.insert(process) }
      return error
    }
    close(input.read)
    close(output.write)
    guard error == 0 else {
      close(input.write)
      close(output.read)
      throw ToolFailure("no child process: \(SystemError.text(error))")
    }
    return Child(process: process, input: input.write, output: output.read)
  }

  fileprivate static func wait(_ process: pid_t) -> ChildEnd {
    var information = unsafe siginfo_t()
    // Left unreaped, so that its number stays its own until it is off the list.
    while unsafe waitid(P_PID, id_t(process), &information, WEXITED | WNOWAIT) != 0, errno == EINTR {}
    return state.withLock { state in
      var end: Int32 = 0
      while unsafe waitpid(process, &end, 0) < 0, errno == EINTR {}
      state.alive.remove(process)
      // As <sys/wait.h> takes it apart: the signal in the low seven bits, the exit status above them.
      return end & 0x7F == 0 ? .exited((end >> 8) & 0xFF) : .killed(end & 0x7F)
    }
  }

  private static func pipe() throws(ToolFailure) -> (read: Int32, write: Int32) {
    var ends: [Int32] = [0, 0]
    // Not for children but by `dup2`: only the thread that makes pipes starts any.
    guard unsafe Glibc.pipe(&ends) == 0 else { throw ToolFailure("no pipe: \(SystemError.text(errno))") }
    for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
    return (ends[0], ends[1])
  }

  private static func spawn(
    _ words: [String], input: Int32, output: Int32, isQuiet: Bool, _ process: inout pid_t
  ) -> Int32 {
    var actions = unsafe posix_spawn_file_actions_t()
    var attributes = posix_spawnattr_t()
    unsafe posix_spawn_file_actions_init(&actions)
    unsafe posix_spawnattr_init(&attributes)
    defer {
      unsafe posix_spawn_file_actions_destroy(&actions)
      unsafe posix_spawnattr_destroy(&attributes)
    }
    unsafe posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO)
    unsafe posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO)
    if isQuiet { unsafe posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0) }
    var none = sigset_t()
    unsafe sigemptyset(&none)
    var usual = watchedSet()
    unsafe posix_spawnattr_setsigmask(&attributes, &none)
    unsafe posix_spawnattr_setsigdefault(&attributes, &usual)
    unsafe posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF))
    // As this process got it; the global `environ` is not for concurrent programs.
    var environment = (SmallFile.text("/proc/self/environ", limit: 4 << 20) ?? "").split(separator: "\0").map(String.init)
    if isQuiet { environment.append("SWIFT_BACKTRACE=enable=no") }
    let program = programPath()
    return unsafe withStrings([Tool.name] + words) { arguments in
      unsafe withStrings(environment) { environment in
        unsafe posix_spawn(&process, program, &actions, &attributes, arguments, environment)
      }
    }
  }

  /// By its own name, which is what `ps` shows; by the kernel's where it was replaced since it was started.
  private static func programPath() -> String {
    let own = "/proc/self/exe"
    let bytes = unsafe [UInt8](unsafeUninitializedCapacity: Int(PATH_MAX)) { buffer, count in
      // Not more than fits; a path that is cut off is found not to be a program.
      count = unsafe buffer.withMemoryRebound(to: CChar.self) { max(0, unsafe readlink(own, $0.baseAddress!, $0.count)) }
    }
    let path = String(decoding: bytes, as: UTF8.self)
    return unsafe access(path, X_OK) == 0 ? path : own
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
