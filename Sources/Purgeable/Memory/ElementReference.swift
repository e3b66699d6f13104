// SPDX-License-Identifier: MIT
// The names of what lives in a heap: elements, streams, slabs. Plain values, never pointers.

import CPurgeable

/// Names an element of a `PurgeableHeap`: its place and the generation of its slab.
///
/// A plain value: copy, compare and store it freely; it keeps nothing alive. A reference to what was freed, of another heap, or
/// from before a fork is found out and answered with an error, never with wrong bytes.
public struct ElementReference: Sendable, Hashable {
  let place: UInt64
  let generation: UInt64

  init(_ reference: purgeable_reference_t) {
    place = reference.place
    generation = reference.generation
  }

  var code: purgeable_reference_t { purgeable_reference_t(place: place, generation: generation) }
}

extension ElementReference: CustomStringConvertible {
  /// Place and generation, for messages.
  public var description: String { "element \(place) of generation \(generation)" }
}

/// Names a stream of a `PurgeableHeap`: a sequence of slabs in order of birth. What is stored in one stream lies together.
/// It is a number: another heap with as many streams takes it for a stream of its own.
public struct HeapStream: Sendable, Hashable {
  let number: UInt32

  /// The stream that every heap has from the beginning.
  public static let first = HeapStream(number: 0)
}

/// Names a slab of a `PurgeableHeap` during one of its lives: a run of pages that small elements share.
public struct HeapSlab: Sendable, Hashable {
  let index: UInt32
  let generation: UInt32

  init(_ slab: purgeable_slab_t) {
    index = slab.index
    generation = slab.generation
  }

  var code: purgeable_slab_t { purgeable_slab_t(index: index, generation: generation) }
}
