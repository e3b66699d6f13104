// SPDX-License-Identifier: MIT
// Working memory for giving back many slabs together: one mapping for the whole process, made with the first cache, before it is
// needed. A reaction to pressure therefore makes no allocation.

import CPurgeable
import Synchronization

/// Serializes the use of the memory. Its mutex is taken while a shard's mutex is held. A fork takes the mutexes of all listed
/// shards, then this one: a cache that its program has let go of is listed no more, and the library's thread may still be giving
/// its memory back.
final class GivingBackTurn: ForkProtected {
  static let shared = GivingBackTurn()
  private let turn = Guarded<Void>(())
  private let address = Atomic<UInt>(0)

  private init() {
    ForkGuard.shared.announce(.turn) { $0.append(GivingBackTurn.shared) }
    rehearseFork()
  }

  /// Called for each cache that is made; the first call maps the memory. False when there is no memory.
  func prepare() -> Bool {
    if address.load(ordering: .acquiring) != 0 { return true }
    guard let raw = unsafe purgeable_bookkeeping_map(EvictionNotes.byteCount) else { return false }
    let (exchanged, _) = address.compareExchange(
      expected: 0, desired: UInt(bitPattern: raw), ordering: .acquiringAndReleasing)
    // Another thread was first.
    if !exchanged { unsafe purgeable_bookkeeping_unmap(raw, EvictionNotes.byteCount) }
    return true
  }

  func lockForFork() { turn.lock() }
  func unlockAfterFork() { turn.unlock() }

  /// Runs `body` under the mutex, with no notes; nil when the memory was never mapped.
  func use<R>(_ body: (inout EvictionNotes) -> R) -> R? {
    turn.lock()
    defer { turn.unlock() }
    // Acquire: pairs with the exchange in `prepare`. The memory is never unmapped.
    guard let start = unsafe UnsafeMutableRawPointer(bitPattern: address.load(ordering: .acquiring)) else { return nil }
    var notes = unsafe EvictionNotes(start)
    return body(&notes)
  }
}
