// SPDX-License-Identifier: MIT
// Whether bytes are the right ones: by a digest in ordinary memory at each hit, and against the files themselves at the end.

import ToolSupport

/// 128 bits that stand for some bytes: two 64-bit multiply-and-fold hashes (as in wyhash), differently seeded, in one pass.
///
/// Not cryptographic: it finds accidents, not attacks. Two different contents agree with a chance of 2^-64 at most for each half.
package struct Digest: Equatable, Sendable {
  package static let name = "two 64-bit multiply-and-fold hashes, differently seeded"

  private let first: UInt64
  private let second: UInt64

  package init(_ bytes: [UInt8]) {
    // In bounds: whole 16-byte steps while that many are left, the rest through a block of zeros.
    (first, second) = unsafe bytes.withUnsafeBytes { buffer in
      var first: UInt64 = 0xA076_1D64_78BD_642F ^ UInt64(buffer.count)
      var second: UInt64 = 0xE703_7ED1_A0B4_28DB &+ UInt64(buffer.count)
      func take(_ low: UInt64, _ high: UInt64) {
        first = Self.fold(first ^ low, high ^ 0x8EBC_6AF0_9C88_C6E3)
        second = Self.fold(second ^ high, low ^ 0x5899_65CC_7537_4CC3)
        // A factor of zero would forget all that came before.
        first &+= 0x1D8E_4E27_C47D_124F
        second &+= 0xEB44_ACCA_B455_D165
      }
      var offset = 0
      while buffer.count - offset >= 16 {
        unsafe take(
          buffer.loadUnaligned(fromByteOffset: offset, as: UInt64.self),
          buffer.loadUnaligned(fromByteOffset: offset + 8, as: UInt64.self))
        offset += 16
      }
      var rest: (UInt64, UInt64) = (0, 0)
      unsafe withUnsafeMutableBytes(of: &rest) { block in
        unsafe block.copyBytes(from: buffer[offset...])
      }
      take(rest.0, rest.1)
      return (Self.fold(first, 0x9E37_79B9_7F4A_7C15), Self.fold(second, 0xD6E8_FEB8_6659_FD93))
    }
  }

  @inline(__always)
  private static func fold(_ left: UInt64, _ right: UInt64) -> UInt64 {
    let product = left.multipliedFullWidth(by: right)
    return product.high ^ product.low
  }
}

/// How many bytes differ: place by place, and one for each that only one of the two has.
package enum Difference {
  package static func count(_ left: [UInt8], _ right: [UInt8]) -> UInt64 {
    var different = max(left.count, right.count) - min(left.count, right.count)
    for (one, other) in zip(left, right) where one != other { different += 1 }
    return UInt64(different)
  }
}

/// Judges hits by the digest that was taken when the file was read.
package enum HitCheck {
  /// The number of wrong bytes. `reload` reads the file again; it is called only for a hit whose digest is wrong.
  package static func wrongBytes(_ bytes: [UInt8], digest: Digest, reload: () -> [UInt8]?) -> UInt64 {
    if Digest(bytes) == digest { return 0 }
    // What it should have been tells how much of it is wrong; without that, all of it is.
    guard let right = reload(), Digest(right) == digest else { return UInt64(max(1, bytes.count)) }
    return Difference.count(bytes, right)
  }
}

/// Compares what is left in the cache with the files, byte for byte. For a process that has nothing to do with the cache.
package struct FinalCheck: Equatable, Sendable {
  package var entries: UInt64 = 0
  package var bytes: UInt64 = 0
  package var wrongBytes: UInt64 = 0
  /// Files that somebody changed or removed meanwhile, so that there is nothing to compare with.
  package var changedFiles: UInt64 = 0

  package init() {}

  package mutating func check(_ held: [UInt8], against file: CorpusFile) {
    let onDisk = DiskFile.read(file.path)
    if let onDisk, onDisk == held {
      entries += 1
      bytes += UInt64(held.count)
    } else if onDisk == nil || DiskFile.status(file.path) != file.status {
      changedFiles += 1
    } else {
      entries += 1
      bytes += UInt64(held.count)
      wrongBytes += Difference.count(held, onDisk ?? [])
    }
  }
}
