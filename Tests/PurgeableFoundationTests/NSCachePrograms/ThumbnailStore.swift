// SPDX-License-Identifier: MIT
// A program written for NSCache: images that cost what they take.

import Foundation

final class Thumbnail {
  let name: String
  let pixels: [UInt8]

  init(name: String, side: Int) {
    self.name = name
    pixels = Array(repeating: UInt8(truncatingIfNeeded: name.utf8.count), count: side * side * 4)
  }
}

final class ThumbnailStore {
  private let cache = NSCache<NSString, Thumbnail>()
  /// How many were drawn because they were not there.
  private(set) var drawnCount = 0

  init(byteLimit: Int) {
    cache.name = "thumbnails"
    cache.totalCostLimit = byteLimit
    cache.countLimit = 1000
  }

  var title: String { "\(cache.name), \(cache.totalCostLimit) bytes, \(cache.countLimit) images" }

  func thumbnail(named name: String, side: Int) -> Thumbnail {
    let key = NSString(string: "\(name)@\(side)")
    if let found = cache.object(forKey: key) { return found }
    drawnCount += 1
    let drawn = Thumbnail(name: name, side: side)
    cache.setObject(drawn, forKey: key, cost: drawn.pixels.count)
    return drawn
  }

  func has(_ name: String, side: Int) -> Bool { cache.object(forKey: NSString(string: "\(name)@\(side)")) != nil }

  func forget(_ name: String, side: Int) { cache.removeObject(forKey: NSString(string: "\(name)@\(side)")) }

  func empty() { cache.removeAllObjects() }
}
