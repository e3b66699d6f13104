// SPDX-License-Identifier: MIT
// Child processes: started, waited for, and ended with this one, also when a signal ends it.

import Glibc
import Synchronization
import ToolSupport

/// A child and the two pipes to it. Its starter waits for it.
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

  /// The signal by which this process was asked to end; 0 for none.
  static var interruption: Int32 { state.withLock { $0.interruption } }

  /// Throws where there was such a signal: for work of this process that no child's end would break off.
  static func checkInterruption() throws(ToolFailure) { if interruption != 0 { throw ToolFailure("interrupted") } }

  /// The exit status of a command that an error has ended: that of the signal behind it, told on standard error; without a
  /// signal, throws the error.
  static func exitStatus(of command: String, after error: any Error) throws -> Int32 {
    let signal = interruption
    guard signal != 0 else { throw error }
    complain("\(Tool.name) \(command): ended by signal \(signal)")
    return 128 + signal
  }

  // MARK: Signals

  /// The signals to watch: those that were not ignored when this process was started (`nohup` has SIGHUP ignored).
  private static let watchedSignals = [SIGINT, SIGTERM, SIGHUP, SIGQUIT].filter { signal in
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

  /// From here on the watched signals end the children. Code that talks to a child finds its pipe closed, and ends in good
  /// order.
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

  /// Starts this program again with other words. `isQuiet`: its standard error is discarded.
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
      // Otherwise a child could be started after the signal thread ended all others.
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
    // Left unreaped, so that its process number stays its own until the child is off the list.
    while unsafe waitid(P_PID, id_t(process), &information, WEXITED | WNOWAIT) != 0, errno == EINTR {}
    return state.withLock { state in
      let end = ChildEnd.of(process)
      state.alive.remove(process)
      return end ?? .exited(0)
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
    var launch = Launch(OwnProgram.path, [Tool.name] + words)
    launch.input = .descriptor(input)
    launch.output = .descriptor(output)
    if isQuiet { launch.errors = .nothing }
    // The runtime's backtracer leaves a thread of a crashed child behind, which holds its end of the pipe: we would wait for it.
    launch.environment.append("SWIFT_BACKTRACE=enable=no")
    launch.usualSignals = watchedSet()
    return launch.start(&process)
  }
}
