// SPDX-License-Identifier: MIT
// The sanitizer of this build, and so of the tool beside it.

import Foundation

enum Sanitizer {
  static let isAddress = isThere("__asan_init")
  static let isThread = isThere("__tsan_init")

  private static func isThere(_ name: String) -> Bool {
    let program = unsafe dlopen(nil, RTLD_NOW)
    defer { if let program = unsafe program { unsafe dlclose(program) } }
    return unsafe dlsym(program, name) != nil
  }
}
