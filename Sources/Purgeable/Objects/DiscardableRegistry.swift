// SPDX-License-Identifier: MIT
// Objects with discardable content that are asked when memory is short without being in any cache.

import Synchronization

/// Holds the objects weakly.
final class DiscardableRegistry: ProgramClient, @unchecked Sendable {
  static let shared = DiscardableRegistry()
  /// Set by who makes it a client: not where `shared` is made, for which other threads would wait through a fork.
  private let isClient = Atomic<Bool>(false)

  private struct Place {
    weak var object: (any DiscardableContent)?
    let number: Int
  }

  private struct State {
    /// By the objects' identities; one that has ended may have given its identity to another.
    var places: [ObjectIdentifier: Place] = [:]
    var lastNumber = 0
    /// From so many places on, those of objects that have ended are forgotten.
    var limit = 64
  }

  private typealias Living = (objects: [any DiscardableContent], lastNumber: Int)

  private let state = Guarded(State())

  /// The objects that are alive, the longest registered first, and the last number so far. They are held until the caller lets
  /// them go, under no mutex.
  private func living() -> Living {
    let (living, lastNumber) = state.withLock { state -> ([(number: Int, object: any DiscardableContent)], Int) in
      (state.places.values.compactMap { place in place.object.map { (place.number, $0) } }, state.lastNumber)
    }
    return (living.sorted { $0.number < $1.number }.map(\.object), lastNumber)
  }

  func add(_ object: any DiscardableContent) {
    let needsForgetting = state.withLock { state -> Bool in
      let identity = ObjectIdentifier(object)
      // The object is alive: one with its identity is it.
      if state.places[identity]?.object != nil { return false }
      state.lastNumber += 1
      state.places[identity] = Place(object: object, number: state.lastNumber)
      return state.places.count >= state.limit
    }
    if !isClient.exchange(true, ordering: .relaxed) { ClientRoster.shared.add(self) }
    if needsForgetting { forgetEnded(except: living()) }
    WorkBell.ring()
  }

  func remove(_ object: any DiscardableContent) {
    state.withLock { _ = $0.places.removeValue(forKey: ObjectIdentifier(object)) }
  }

  /// `living`: held meanwhile, so that none ends under the mutex.
  private func forgetEnded(except living: Living) {
    let identities = Set(living.objects.map { ObjectIdentifier($0) })
    state.withLock { state in
      // Those that were registered since are not among the objects.
      state.places = state.places.filter { $0.value.number > living.lastNumber || identities.contains($0.key) }
      state.limit = max(64, 2 * state.places.count)
    }
  }

  /// Asks the objects whose content is there, until so many have discarded it; and forgets those that have ended. Returns how
  /// many have discarded it.
  func discard(atMost limit: Int = .max) -> Int {
    let living = living()
    forgetEnded(except: living)
    var discarded = 0
    for object in living.objects where discarded < limit && !object.isContentDiscarded {
      object.discardContentIfPossible()
      if object.isContentDiscarded { discarded += 1 }
    }
    return discarded
  }

  // MARK: When memory is short

  override var holdsAnything: Bool { size > 0 }
  override var size: Int { state.withLock { $0.places.count } }

  override func giveSlice() -> Bool {
    let size = size
    // The objects are asked outside of the mutex, from lists.
    guard MemoryReserve.isThere(max(MemoryReserve.ofNews, 128 * size)) else { return false }
    return discard(atMost: max(1, size / PressureReaction.sliceShare)) > 0
  }

  override func lockForFork() {
    state.lock()
    super.lockForFork()
  }

  override func unlockAfterFork() {
    super.unlockAfterFork()
    state.unlock()
  }
}
