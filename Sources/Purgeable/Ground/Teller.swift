// SPDX-License-Identifier: MIT
// Threads that tell the program what the library did by itself, and the role of each thread.

import Glibc

/// An object that tells news on a thread of its own. A thread is made when there is news, and ends when there is none: a
/// subclass keeps count of both, under a mutex of its own.
@usableFromInline
class Teller: @unchecked Sendable {
  /// Tells all waiting news. On the thread.
  func run() {}

  /// Has a thread call `run`. The thread has the stack of the program's other threads (`ulimit -s`, pthread_attr_setstacksize's
  /// default). All signals are blocked in it, so that the program's signal handlers run on the threads where they ran before.
  /// False: no thread could be made.
  final func startTelling() -> Bool {
    // Given back by the thread, or below.
    let teller = unsafe Unmanaged.passRetained(self)
    let error = unsafe startDetachedThread(context: teller.toOpaque()) { context in
      // Safe: the thread was given this reference.
      let teller = unsafe Unmanaged<Teller>.fromOpaque(context!).takeRetainedValue()
      nameThread("purgeable-tell")
      teller.run()
      return nil
    }
    if error != 0 { unsafe teller.release() }
    return error == 0
  }
}

/// What the C library takes out of a thread's stack: the thread-local storage of the program and of all its libraries, and what a
/// thread needs to begin with. glibc tells by a function that has no header (the runtimes of Rust and Java ask it too);
/// `sysconf(_SC_THREAD_STACK_MIN)` leaves the storage out. To be asked for before a thread is needed: dlsym may take memory.
let leastStackByteCount: Int = {
  typealias LeastStack = @convention(c) (UnsafePointer<pthread_attr_t>) -> Int
  guard let function = unsafe dlsym(nil, "__pthread_get_minstack") else {
    return max(sysconf(Int32(_SC_THREAD_STACK_MIN)), 0)
  }
  var attributes = pthread_attr_t()
  guard unsafe pthread_attr_init(&attributes) == 0 else { return 0 }
  defer { unsafe pthread_attr_destroy(&attributes) }
  // Safe: glibc's function has exactly this type.
  return unsafe unsafeBitCast(function, to: LeastStack.self)(&attributes)
}()

/// Starts a thread that nobody joins, with all signals blocked, so that the program's signal handlers run on the threads where
/// they ran before. With a stack of `stackByteCount` beside what the C library takes out of it, and where that is refused with
/// the default size. 0, or pthread_create's error.
func startDetachedThread(
  stackByteCount: Int? = nil, context: UnsafeMutableRawPointer? = nil,
  _ body: @convention(c) (UnsafeMutableRawPointer?) -> UnsafeMutableRawPointer?
) -> Int32 {
  var attributes = pthread_attr_t()
  let error = unsafe pthread_attr_init(&attributes)
  guard error == 0 else { return error }
  defer { unsafe pthread_attr_destroy(&attributes) }
  unsafe pthread_attr_setdetachstate(&attributes, Int32(PTHREAD_CREATE_DETACHED))
  if let stackByteCount { unsafe pthread_attr_setstacksize(&attributes, stackByteCount + leastStackByteCount) }
  var all = sigset_t()
  var before = sigset_t()
  unsafe sigfillset(&all)
  unsafe pthread_sigmask(SIG_SETMASK, &all, &before)
  defer { unsafe pthread_sigmask(SIG_SETMASK, &before, nil) }
  var thread = pthread_t()
  let refusal = unsafe pthread_create(&thread, &attributes, body, context)
  guard refusal == EINVAL, stackByteCount != nil else { return refusal }
  return unsafe startDetachedThread(context: context, body)
}

/// Names the calling thread for tools. Without /proc the thread stays unnamed. Takes no memory, which the path as a String
/// would: a thread may begin where there is none.
func nameThread(_ name: StaticString) {
  let path: StaticString = "/proc/thread-self/comm"
  // Safe: the bytes of a literal end with 0.
  let file = unsafe path.utf8Start.withMemoryRebound(to: CChar.self, capacity: path.utf8CodeUnitCount + 1) {
    unsafe open($0, O_WRONLY | O_CLOEXEC)
  }
  guard file >= 0 else { return }
  _ = unsafe write(file, name.utf8Start, name.utf8CodeUnitCount)
  close(file)
}

/// The calling thread's role in the library. Where no thread-specific key can be made, every thread is the program's.
package enum ThreadRole {
  private static let key: pthread_key_t? = {
    var key = pthread_key_t()
    return unsafe pthread_key_create(&key, nil) == 0 ? key : nil
  }()
  private static let libraryFlag = 1

  /// A call of a program's handler, or one that counts as such. On the stack of its thread.
  @safe private struct Telling {
    let owner: ObjectIdentifier?
    let notes: UnsafeMutableRawPointer?
    /// The word as it was before.
    let outer: Int
  }

  /// The address of the innermost `Telling`, and the flag in its lowest bit.
  /// Without generic code, for which the runtime of debug builds takes memory.
  private static var word: Int {
    guard let key else { return 0 }
    return unsafe Int(bitPattern: pthread_getspecific(key))
  }

  private static func set(_ word: Int) {
    if let key { unsafe pthread_setspecific(key, UnsafeRawPointer(bitPattern: word)) }
  }

  /// The thread of Maintainer, or of a second tier: the program did not ask for what this thread does.
  static var isLibrary: Bool { word & libraryFlag != 0 }

  package static func enterLibrary() { set(word | libraryFlag) }

  private static func telling(_ word: Int) -> UnsafePointer<Telling>? {
    unsafe UnsafePointer(bitPattern: word & ~libraryFlag)
  }

  /// Whether the thread is inside of a handler.
  static var isTelling: Bool { word & ~libraryFlag != 0 }

  /// Runs `body`, which calls a handler, of `owner`.
  static func whileTelling<R>(of owner: ObjectIdentifier? = nil, _ body: () -> R) -> R {
    unsafe whileTelling(of: owner, nil, body)
  }

  /// Runs `body`, which calls a handler of `owner`. Inside of it, on its thread, `notes(of:)` returns `notes`.
  static func whileTelling<R>(of owner: ObjectIdentifier?, _ notes: UnsafeMutableRawPointer?, _ body: () -> R) -> R {
    let outer = word
    var telling = unsafe Telling(owner: owner, notes: notes, outer: outer)
    // Safe: the address is used until `body` has returned.
    return unsafe withUnsafePointer(to: &telling) { telling in
      set(Int(bitPattern: telling) | outer & libraryFlag)
      defer { set(outer) }
      return body()
    }
  }

  /// Runs `body`, which ends loads of `owner`, and then what was put off meanwhile, in order.
  static func puttingOff(for owner: ObjectIdentifier, _ body: () -> Void) {
    var calls: [() -> Void] = []
    // Safe: the address is used within `body` only, by this thread.
    unsafe withUnsafeMutablePointer(to: &calls) { unsafe whileTelling(of: owner, $0, body) }
    for call in calls { call() }
  }

  /// Where calls of the program's closures go while this thread ends loads of `owner`; nil while it does not.
  static func putOff(for owner: ObjectIdentifier) -> UnsafeMutablePointer<[() -> Void]>? {
    unsafe notes(of: owner)?.assumingMemoryBound(to: [() -> Void].self)
  }

  /// The innermost call for `owner` that is under way on this thread.
  private static func telling(of owner: ObjectIdentifier) -> UnsafePointer<Telling>? {
    var next = unsafe telling(word)
    while let telling = unsafe next {
      // Safe: the calls on this thread have not returned.
      if unsafe telling.pointee.owner == owner { return unsafe telling }
      unsafe next = Self.telling(telling.pointee.outer)
    }
    return nil
  }

  /// Whether the thread is inside of a handler of `owner`.
  static func isTelling(of owner: ObjectIdentifier) -> Bool { unsafe telling(of: owner) != nil }

  /// The notes of that call.
  static func notes(of owner: ObjectIdentifier) -> UnsafeMutableRawPointer? { unsafe telling(of: owner)?.pointee.notes }
}
