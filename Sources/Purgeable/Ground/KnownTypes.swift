// SPDX-License-Identifier: MIT
// Swift's runtime makes a generic type when code asks for it first, in memory that it cannot do without: where it gets none, it
// ends the program. So what look-ups, stores, removals and whatever gives memory back ask for is made with the first object that
// may need it, when there is memory for it.

import Synchronization

enum KnownTypes {
  private static let last = Atomic<UInt>(0)

  /// Has the runtime make these types. Each is stored, since the compiler does without what is not used.
  @inline(never)
  static func make(_ types: [Any.Type]) {
    for type in types { last.store(UInt(bitPattern: ObjectIdentifier(type)), ordering: .relaxed) }
  }
}
