// SPDX-License-Identifier: MIT
// Swift's runtime makes a generic type when code first asks for it, and ends the program where it gets no memory for that. So the
// types that look-ups, stores, removals and evictions ask for are made with the cache, at whose creation there is memory.

import Synchronization

enum KnownTypes {
  private static let last = Atomic<UInt>(0)

  /// Has the runtime make these types. Each is stored, since the compiler does without what is not used.
  @inline(never)
  static func make(_ types: [Any.Type]) {
    for type in types { last.store(UInt(bitPattern: ObjectIdentifier(type)), ordering: .relaxed) }
  }
}
