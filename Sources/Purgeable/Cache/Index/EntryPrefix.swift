// SPDX-License-Identifier: MIT
// How an element's payload begins: the key.
//
//   fixed      | key (n bytes) |
//   variable   | length, 1 byte below 128 | key |      | 1 + length, 4 bytes big-endian, top bit set | key |
//   tracked    | 255 | number, 4 bytes |
//
// then the entry's head if its slot says so (EntryHead.swift), then the value.

enum EntryPrefix {
  static let trackedByteCount = 5
  /// 0xFF as a first byte means "tracked", so lengths stay below 0x7F00_0000.
  static let keyByteLimit = 0x7EFF_FFFF

  static func lengthByteCount(ofKeyOf byteCount: Int) -> Int { byteCount < 128 ? 1 : 4 }

  /// Writes a length.
  @inline(__always)
  static func writeLength(_ byteCount: Int, to bytes: UnsafeMutableRawBufferPointer) {
    assert(byteCount >= 0 && byteCount <= keyByteLimit, "PurgeableCache: a key too long to encode")
    if byteCount < 128 {
      unsafe bytes[0] = UInt8(byteCount)
    } else {
      unsafe bytes.storeBytes(of: (UInt32(byteCount) | 0x8000_0000).bigEndian, as: UInt32.self)
    }
  }

  static func writeTracked(_ number: UInt32, to bytes: UnsafeMutableRawBufferPointer) {
    assert(bytes.count >= trackedByteCount, "PurgeableCache: a prefix without room")
    unsafe bytes[0] = 0xFF
    unsafe bytes.storeBytes(of: number, toByteOffset: 1, as: UInt32.self)
  }

  /// Fills a payload, which has room for all of it and is seen by no other thread before the commit.
  @inline(__always)
  static func write(
    _ prefix: RawSpan, _ head: EntryHead, _ value: RawSpan, to bytes: UnsafeMutableRawBufferPointer
  ) {
    assert(bytes.count >= prefix.byteCount + head.byteCount + value.byteCount, "PurgeableCache: a payload without room")
    unsafe prefix.copy(to: bytes, at: 0)
    if !head.isEmpty { unsafe head.write(to: bytes, at: prefix.byteCount) }
    unsafe value.copy(to: bytes, at: prefix.byteCount + head.byteCount)
  }

  /// The value in a payload that is locked.
  static func value(of payload: UnsafeRawBufferPointer, behind prefixByteCount: Int, hasHead: Bool) -> UnsafeRawBufferPointer {
    let head = unsafe head(of: payload.bytes, behind: prefixByteCount, hasHead: hasHead)
    return unsafe UnsafeRawBufferPointer(rebasing: payload[min(payload.count, prefixByteCount + head.byteCount)...])
  }

  /// The head in a payload whose pages stay; empty where the slot has none.
  static func head(of payload: RawSpan, behind prefixByteCount: Int, hasHead: Bool) -> EntryHead {
    guard hasHead else { return EntryHead() }
    return EntryHead(payload.extracting(min(payload.byteCount, prefixByteCount)..<payload.byteCount))
  }

  enum Parsed {
    /// The whole prefix is this long; the key's bytes begin at `keyAt`.
    case key(prefixByteCount: Int, keyAt: Int)
    case tracked(number: UInt32)
  }

  /// Reads the beginning of a payload; nil when it is not valid.
  static func parse(_ payload: RawSpan, layout: KeyLayout) -> Parsed? {
    switch layout {
    case .fixed(let count): return .key(prefixByteCount: count, keyAt: 0)
    case .variable:
      guard payload.byteCount > 0 else { return nil }
      let first: UInt8 = payload.integer(at: 0)
      if first < 128 { return .key(prefixByteCount: 1 + Int(first), keyAt: 1) }
      if first == 0xFF {
        guard payload.byteCount >= trackedByteCount else { return nil }
        return .tracked(number: payload.integer(at: 1))
      }
      guard payload.byteCount >= 4 else { return nil }
      let length = UInt32(bigEndian: payload.integer(at: 0)) & 0x7FFF_FFFF
      return .key(prefixByteCount: 4 + Int(length), keyAt: 4)
    }
  }
}

/// How an element's payload begins.
enum KeyLayout: Equatable {
  /// Keys of one size, as they are.
  case fixed(Int)
  /// A length, then the key; or a tracked key's number.
  case variable
}

/// How a cache computes a key's identity from its bytes, with seeds of its own.
struct KeyHashing: Sendable {
  let layout: KeyLayout
  let seed: UInt64
  let secondSeed: UInt64

  /// `seed`: nil for a random one. A test that gives one makes caches whose keys of 4 or 8 bytes have the same hashes each time.
  init(layout: KeyLayout, seed: UInt64? = nil) {
    self.layout = layout
    self.seed = seed ?? .random(in: .min ... .max)
    secondSeed = (seed.map { $0 &* 0x9E37_79B9_7F4A_7C15 } ?? .random(in: .min ... .max)) | 1
  }

  /// The key of a payload's prefix. Hasher is SipHash keyed by the process; the cache's seed is hashed too, so that keys that
  /// collide in one cache do not collide in another. Keys of 4 or 8 bytes are mixed by two multiplications with two secret
  /// words instead.
  @inline(__always)
  func key(prefix: RawSpan) -> EngineKey {
    switch prefix.byteCount {
    case 8: return key(word: prefix.integer(at: 0))
    case 4:
      let half: UInt32 = prefix.integer(at: 0)
      return key(word: UInt64(half))
    default:
      var hasher = Hasher()
      hasher.combine(seed)
      prefix.hash(into: &hasher)
      return EngineKey(hash: UInt64(bitPattern: Int64(hasher.finalize())))
    }
  }

  @inline(__always)
  private func key(word: UInt64) -> EngineKey {
    EngineKey(hash: Self.fold(Self.fold(word ^ seed, secondSeed) ^ secondSeed, seed | 1))
  }

  /// Both halves of the product, so that every bit of either factor reaches every bit of the result.
  @inline(__always)
  private static func fold(_ left: UInt64, _ right: UInt64) -> UInt64 {
    let product = left.multipliedFullWidth(by: right)
    return product.high ^ product.low
  }
}
