// SPDX-License-Identifier: MIT
// Operations of regions and of data.

import Glibc
import Purgeable

/// A region that closures can share.
private final class SharedRegion: Sendable {
  let region: PurgeableRegion
  init(discardedByteCount count: Int) throws(PurgeableError) { region = try PurgeableRegion(discardedByteCount: count) }
}

let regionOperations: [Operation] = [
  Operation("region: made, written, locked, read, offered, discarded, refilled, ended") {
    let buffer = Buffer()
    return {
      guard var region = try? PurgeableRegion(byteCount: 65_536) else { return false }
      region.withMutableBytes { bytes in _ = bytes.byteCount }
      _ = region.withBytes { $0.byteCount }
      var span = unsafe MutableSpan<UInt8>(
        _unsafeElements: UnsafeMutableRawBufferPointer(rebasing: buffer.bytes[0..<4096]).assumingMemoryBound(to: UInt8.self))
      _ = try? region.read(into: &span)
      try? region.offer()
      try? region.discard()
      let wasFilled = allowing { () throws(PurgeableError) in
        try region.refill { bytes throws(PurgeableError) in bytes.storeBytes(of: 7, as: UInt8.self) }
      }
      let first = region.withBytes { unsafe $0.unsafeLoad(as: UInt8.self) }
      if let first, wasFilled, first != 7 { fail("other bytes") }
      return wasFilled && region.byteCount == 65_536
    }
  },
  Operation("region: made discarded, filled by whoever wants it") {
    return {
      allowing { () throws(PurgeableError) in
        let region = try PurgeableRegion(discardedByteCount: 65_536)
        if region.state != .discarded || !region.isDiscarded { fail("it is not discarded") }
        let first = try region.withBytes(
          orRefilling: { bytes throws(PurgeableError) in bytes.storeBytes(of: 7, as: UInt8.self) },
          { bytes throws(PurgeableError) in unsafe bytes.unsafeLoad(as: UInt8.self) })
        if let first, first != 7 { fail("other bytes") }
      }
    }
  },
  Operation("region: filled again and again, and fills given up") {
    let shared = try SharedRegion(discardedByteCount: 100_000)
    let given = PurgeableError(.outOfMemory, in: "here", explanation: "given up")
    return {
      var isWhole = true
      for round in 0..<6 {
        isWhole =
          allowing { () throws(PurgeableError) in
            let first = try shared.region.withBytes(
              orRefilling: { bytes throws(PurgeableError) in
                bytes.storeBytes(of: 5, as: UInt8.self)
                if round % 2 == 0 { throw given }
              }, { bytes throws(PurgeableError) in unsafe bytes.unsafeLoad(as: UInt8.self) })
            if let first, first != 5 { fail("other bytes") }
            try shared.region.discard()
          } && isWhole
      }
      return isWhole
    }
  },
  Operation("region: made by a closure, and one that throws") {
    let given = PurgeableError(.busy, in: "here", explanation: "given up")
    return {
      do throws(PurgeableError) {
        _ = try PurgeableRegion(byteCount: 9000, initializingWith: { _ throws(PurgeableError) in throw given })
        fail("it was made")
      } catch { if error.kind == .outOfMemory { return false } }
      return allowing { () throws(PurgeableError) in
        let region = try PurgeableRegion(byteCount: 9000) { bytes throws(PurgeableError) in
          bytes.storeBytes(of: 3, as: UInt8.self)
        }
        if let first = region.withBytes({ unsafe $0.unsafeLoad(as: UInt8.self) }), first != 3 { fail("other bytes") }
      }
    }
  },
  Operation("region: with a mapping of its own") {
    return {
      allowing { () throws(PurgeableError) in
        var region = try PurgeableRegion(byteCount: 40 << 20, offering: .immediate)
        _ = region.withMutableBytes { bytes in bytes.storeBytes(of: 3, as: UInt8.self) }
        try region.discard()
      }
    }
  },
  Operation("region: offers of all, numbers, a locked limit") {
    let shared = try SharedRegion(discardedByteCount: 65_536)
    return {
      try! PurgeableRegion.setLockedByteLimit(1 << 30)
      try! PurgeableRegion.setLockedByteLimit(nil)
      let isWhole = allowing { () throws(PurgeableError) in _ = try PurgeableRegion.offerPending() }
      let counts = allowing { () throws(PurgeableError) in _ = try shared.region.residentBytes() }
      let memory = PurgeableRegion.statistics.memory + MemoryUse()
      return isWhole && counts && memory.heldBytes > 0 && shared.region.offeredBytes == 0 && shared.region.lockCount == 0
    }
  },
]

let dataOperations: [Operation] = [
  Operation("data: made, read and ended", takes: .result, floor: objectFloor) {
    let content = bytes(10_000)
    return {
      guard let data = try? PurgeableData(content) else { return false }
      let count = data.withBytes { $0.byteCount }
      data.endContentAccess()
      return count == 10_000
    }
  },
  Operation("data: accesses, reads, changes in place") {
    let data = try PurgeableData(bytes(10_000), name: "an object")
    let part = bytes(100, 9)
    data.endContentAccess()
    return {
      guard data.beginContentAccess() else { return false }
      if data.withBytes({ $0.byteCount }) != data.count || data.capacity < data.count { fail("another length") }
      let isChanged = allowing { () throws(PurgeableError) in
        try data.withMutableBytes { bytes in bytes.storeBytes(of: 1, as: UInt8.self) }
        try unsafe data.replaceBytes(at: 50, with: part.span.bytes)
        try unsafe data.append(part.span.bytes)
        try data.append(contentsOf: part)
        try unsafe data.replaceBytes(in: 30..<40, with: part.span.bytes)
        try data.resize(to: 10_000)
      }
      if data.accessCount != 1 || data.count != 10_000 && isChanged { fail("\(data.accessCount) accesses") }
      data.endContentAccess()
      data.endContentAccess()
      return isChanged && !data.isContentDiscarded && data.unbalancedEndCount > 0
        && data.withContentAccess { $0.count } == 10_000
    }
  },
  Operation("data: grows, shrinks, and is changed while it is read", takes: .result) {
    let data = try PurgeableData(bytes(100))
    let part = bytes(50_000)
    return {
      var isChanged = allowing { () throws(PurgeableError) in try data.resize(to: 0) }
      if isChanged, data.count != 0 { fail("it is not empty") }
      for _ in 0..<4 {
        let before = data.count
        let isLonger = allowing { () throws(PurgeableError) in try unsafe data.append(part.span.bytes) }
        if data.count != before + (isLonger ? part.count : 0) { fail("\(data.count) bytes after \(before)") }
        isChanged = isLonger && isChanged
      }
      let count = data.count
      data.withBytes { bytes in
        isChanged = allowing { () throws(PurgeableError) in try data.replaceBytes(with: part) } && isChanged
        if bytes.byteCount != count { fail("the reader's bytes changed") }
      }
      return isChanged
    }
  },
  Operation("data: copied, with an access count of 1", takes: .result, floor: objectFloor) {
    let data = try PurgeableData(bytes(10_000), name: "an object")
    data.endContentAccess()
    return {
      guard let copy = try? data.copy() else { return false }
      if copy.count != 10_000 || copy.accessCount != 1 || data.accessCount != 0 { fail("another copy") }
      return true
    }
  },
  Operation("data: compared") {
    let data = try [bytes(10_000), bytes(10_000), bytes(10_000, 9)].map { try PurgeableData($0) }
    for data in data { data.endContentAccess() }
    return { data[0] == data[0] && data[0] == data[1] && data[0] != data[2] }
  },
  Operation("data: a slice, small", takes: .result, floor: valueFloor) {
    let data = try PurgeableData(bytes(10_000))
    return { (try? data.bytes(in: 5000..<5100))?.count == 100 }
  },
  Operation("data: a slice, a mebibyte", takes: .result) {
    let data = try PurgeableData(bytes(2 << 20))
    return {
      let isWhole = allowing { () throws(PurgeableError) in
        if try data.bytes(in: 100..<(100 + (1 << 20)))?.count != 1 << 20 { fail("other bytes") }
      }
      if data.accessCount != 1 { fail("\(data.accessCount) accesses") }
      return isWhole
    }
  },
  Operation("data: refilled by its owner", takes: .result) {
    let data = try PurgeableData(bytes(100))
    data.endContentAccess()
    let part = bytes(50_000)
    return {
      data.discardContentIfPossible()
      let isFilled = allowing { () throws(PurgeableError) in try unsafe data.refill(with: part.span.bytes) }
      guard isFilled else { return false }
      if data.count != part.count { fail("another length") }
      data.endContentAccess()
      return true
    }
  },
  Operation("data: makes itself again", takes: .result) {
    let part = bytes(50_000)
    let data = try PurgeableData(part, recreate: { part })
    data.endContentAccess()
    return {
      data.discardContentIfPossible()
      if let count = data.withBytes({ $0.byteCount }), count != part.count { fail("another length") }
      guard data.beginContentAccess() else { return false }
      data.endContentAccess()
      return true
    }
  },
]
