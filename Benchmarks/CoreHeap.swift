// SPDX-License-Identifier: MIT
// A slab heap of the C core, and references to its elements, for figures. Both live until the process ends.

import CPurgeable
import Foundation
import ToolSupport

/// `@safe`: the heap is never destroyed. `@unchecked`: the core's calls may come from any thread.
@safe struct CoreHeap: @unchecked Sendable {
  let raw: OpaquePointer

  init() throws { try unsafe self.init(purgeable_heap_options_t()) }

  init(_ options: purgeable_heap_options_t) throws {
    var options = unsafe options
    var made: OpaquePointer?
    guard unsafe purgeable_heap_create(&options, &made) == 0, let heap = unsafe made else { throw ToolFailure("no heap") }
    unsafe raw = heap
  }

  func makeStream() throws -> purgeable_stream_t {
    var stream: purgeable_stream_t = 0
    guard unsafe purgeable_stream_create(raw, &stream) == 0 else { throw ToolFailure("no stream") }
    return stream
  }

  /// Allocates, writes and commits an element. 0 or an errno.
  @inline(__always)
  @unsafe func store(
    _ stream: purgeable_stream_t, _ byteCount: Int, tag: UInt64, _ reference: UnsafeMutablePointer<purgeable_reference_t>
  ) -> Int32 {
    var bytes: UnsafeMutableRawPointer?
    let error = unsafe purgeable_heap_allocate_in(raw, stream, byteCount, tag, reference, &bytes)
    guard error == 0, let start = unsafe bytes else { return error }
    // As many bytes as were asked for.
    unsafe memset(start, 7, byteCount)
    return unsafe purgeable_heap_commit(raw, reference.pointee)
  }

  /// Allocates an element that is never written or committed.
  @unsafe func begin(_ byteCount: Int, _ reference: UnsafeMutablePointer<purgeable_reference_t>) throws {
    var bytes: UnsafeMutableRawPointer?
    let error = unsafe purgeable_heap_allocate(raw, byteCount, reference, &bytes)
    guard error == 0 else { throw ToolFailure("an allocation failed: \(error)") }
  }

  func end(_ reference: purgeable_reference_t) throws {
    guard unsafe purgeable_heap_free(raw, reference) == 0 else { throw ToolFailure("an element is gone") }
  }

  func statistics() throws -> purgeable_heap_statistics_t {
    var statistics = purgeable_heap_statistics_t()
    guard unsafe purgeable_heap_statistics(raw, &statistics) == 0 else { throw ToolFailure("no statistics") }
    return statistics
  }

  func expect(elements count: Int) throws {
    let found = try statistics().element_count
    guard found == count else { throw ToolFailure("\(found) elements, not \(count)") }
  }
}

/// Room for references, touched, so that no figure counts its page faults. `@unchecked`: threads use parts of their own.
@safe struct References: @unchecked Sendable {
  let start: UnsafeMutablePointer<purgeable_reference_t>

  init(count: Int) {
    unsafe start = .allocate(capacity: count)
    unsafe start.initialize(repeating: purgeable_reference_t(), count: count)
  }
}
