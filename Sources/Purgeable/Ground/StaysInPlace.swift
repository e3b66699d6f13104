// SPDX-License-Identifier: MIT

import Synchronization

/// Part of a large type that is not copied, so that its methods work on it where it is.
///
/// A type without such a part is loaded whole where a method that borrows it is compiled into one that changes it. For a shard
/// that were a kilobyte, copied to the stack several times a store. An atomic has an address, and so has what it is a part of.
struct StaysInPlace: ~Copyable {
  private let address = Atomic<UInt8>(0)
}
