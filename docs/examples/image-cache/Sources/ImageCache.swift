// SPDX-License-Identifier: MIT
// Thumbnails of a folder's images (PPM, as `djpeg` and `pdftoppm` write them): in memory while there is room for them, and in
// a database for thirty days after somebody wanted them last.
//
//   swift run -c release image-cache FOLDER DATABASE [SECONDS]     lists them, once in SECONDS

import Foundation
import PurgeableSQLite

/// Red, green and blue, one byte each.
struct Image {
  var (width, height) = (0, 0)
  var bytes: [UInt8] = []

  init?(ppm: [UInt8]) {
    let head = ppm.split(maxSplits: 4, omittingEmptySubsequences: true) { $0 == 32 || $0 == 10 }
    let numbers = head.dropFirst().prefix(3).compactMap { Int(String(decoding: $0, as: UTF8.self)) }
    guard head.count == 5, head[0].elementsEqual("P6".utf8), numbers.count == 3, numbers[2] == 255, numbers.min()! > 0,
      head[4].count == numbers[0].multipliedReportingOverflow(by: numbers[1] &* 3).partialValue
    else { return nil }
    (width, height, bytes) = (numbers[0], numbers[1], Array(head[4]))
  }

  /// A PPM of every so-many-eth point, 128 by 128 at most.
  var thumbnail: [UInt8] {
    let step = (max(width, height) + 127) / 128
    let (columns, rows) = (stride(from: 0, to: width, by: step), stride(from: 0, to: height, by: step))
    let points = rows.flatMap { row in columns.flatMap { bytes[(row * width + $0) * 3..<(row * width + $0 + 1) * 3] } }
    return Array("P6 \((width + step - 1) / step) \((height + step - 1) / step) 255\n".utf8) + points
  }
}

@main
enum ImageCache {
  static func main() throws {
    let words = CommandLine.arguments
    guard words.count > 2 else { fatalError("usage: image-cache FOLDER DATABASE [SECONDS]") }
    let memory = try PurgeableCache<String, [UInt8]>(name: "thumbnails")
    let options = PurgeableStoreOptions(byteLimit: 1 << 30, expiry: .sinceLastUse(.seconds(30 * 86_400)))
    let store = try PurgeableStore("thumbnails", directory: words[2], cache: memory, options: options)
    repeat {
      let before = (memory.statistics, store.statistics)
      var (count, made) = (0, 0)
      for name in try FileManager.default.contentsOfDirectory(atPath: words[1]).sorted() where name.hasSuffix(".ppm") {
        let path = "\(words[1])/\(name)"
        let changed = try FileManager.default.attributesOfItem(atPath: path)[.modificationDate] as? Date ?? .distantPast
        let thumbnail = try store.value(forKey: path, version: "\(changed.timeIntervalSince1970)") { () throws -> [UInt8] in
          made += 1
          return Image(ppm: [UInt8](try Data(contentsOf: URL(fileURLWithPath: path))))?.thumbnail ?? []
        }
        count += thumbnail.isEmpty ? 0 : 1
      }
      let (read, kept) = (store.statistics.hitCount - before.1.hitCount, memory.statistics.hitCount - before.0.hitCount)
      print("\(count) thumbnails: made \(made), from the database \(read), from memory \(kept)")
      fflush(nil)
      if words.count > 3 { sleep(UInt32(words[3]) ?? 1) }
    } while words.count > 3
    try store.close()
  }
}
