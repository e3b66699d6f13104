// SPDX-License-Identifier: MIT
// Calls of the C library that Swift does not import: swapon has a header of its own.

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

  /// The functions have these types in the C library's own headers.
  private static func find<Call>(_ name: String, as: Call.Type) -> Call? {
    unsafe dlsym(nil, name).map { unsafe unsafeBitCast($0, to: Call.self) }
  }
}
