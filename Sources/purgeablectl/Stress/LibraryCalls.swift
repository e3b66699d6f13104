// SPDX-License-Identifier: MIT
// Calls of the C library that Swift does not import: swapon has a header of its own, fork is withheld.

import Glibc

enum LibraryCalls {
  /// swapon(2). 0 or an errno.
  static func swapOn(_ path: String) -> Int32 {
    typealias Call = @convention(c) (UnsafePointer<CChar>, Int32) -> Int32
    guard let call = unsafe find("swapon", as: Call.self) else { return ENOSYS }
    return unsafe call(path, 0) == 0 ? 0 : errno
  }

  /// swapoff(2). 0 or an errno.
  static func swapOff(_ path: String) -> Int32 {
    typealias Call = @convention(c) (UnsafePointer<CChar>) -> Int32
    guard let call = unsafe find("swapoff", as: Call.self) else { return ENOSYS }
    return unsafe call(path) == 0 ? 0 : errno
  }

  /// fork(2): in the child, which has this thread alone, no more than reading, system calls, and `_exit`. -1 with errno.
  static func fork() -> pid_t {
    typealias Call = @convention(c) () -> pid_t
    guard let call = find("fork", as: Call.self) else {
      errno = ENOSYS
      return -1
    }
    return call()
  }

  /// The functions have these types in the C library's own headers.
  private static func find<Call>(_ name: String, as: Call.Type) -> Call? {
    unsafe dlsym(nil, name).map { unsafe unsafeBitCast($0, to: Call.self) }
  }
}
