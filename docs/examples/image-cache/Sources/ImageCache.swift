// SPDX-License-Identifier: MIT
// Thumbnails of a folder's PPM files: in memory while there is room, and in a database for 30 days after their last use.
//
//   swift run -c release image-cache FOLDER DATABASE [SECONDS]     lists them, once in SECONDS

import Foundation
import PurgeableSQLite

struct Image {
  let (width, height, bytes): (Int, Int, [UInt8])  // of red, green and blue, one each

  init(ppm: [UInt8]) throws {
    let head = ppm.split(maxSplits: 4, omittingEmptySubsequences: true) { $0 == 32 || $0 == 10 }
    let numbers = head.dropFirst().prefix(3).compactMap { Int(String(decoding: $0, as: UTF8.self)) }
    guard head.count == 5, head[0].elementsEqual("P6".utf8), numbers.count == 3, numbers[2] == 255,
      numbers.allSatisfy({ (1...1 << 20).contains($0) }), head[4].count == numbers[0] * numbers[1] * 3
    else { throw CocoaError(.fileReadCorruptFile) }
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

func fail(_ message: String) -> Never {
  FileHandle.standardError.write(Data("image-cache: \(message)\n".utf8))
  exit(2)
}

@main
enum ImageCache {
  static func main() { do { try run(CommandLine.arguments) } catch { fail("\(error)") } }

  static func run(_ words: [String]) throws {
    guard words.count > 2 else { fail("give it FOLDER DATABASE [SECONDS]") }
    let options = PurgeableStoreOptions(byteLimit: 1 << 30, expiry: .sinceLastUse(.seconds(30 * 86_400)))
    let memory = try PurgeableCache<String, [UInt8]>(name: "thumbnails")
    let store = try PurgeableStore("thumbnails", directory: words[2], cache: memory, options: options)
    repeat {
      var (count, read, kept, status) = (0, store.statistics.hitCount, memory.statistics.hitCount, stat())
      for path in try FileManager.default.contentsOfDirectory(atPath: words[1]).sorted().map({ "\(words[1])/\($0)" })
      where path.hasSuffix(".ppm") && stat(path, &status) == 0 {
        let state = "\(status.st_ino) \(status.st_size) \(status.st_mtim.tv_sec).\(status.st_mtim.tv_nsec)"
        let found = try? store.value(forKey: path, version: state) { () throws -> [UInt8] in
          try Image(ppm: [UInt8](Data(contentsOf: URL(fileURLWithPath: path)))).thumbnail
        }
        count += found == nil ? 0 : 1  // what cannot be read, or is no image, is left out
      }
      (read, kept) = (store.statistics.hitCount - read, memory.statistics.hitCount - kept)
      print("\(count) thumbnails: made \(count - read - kept), from the database \(read), from memory \(kept)")
      fflush(nil)
    } while words.count > 3 && sleep(UInt32(words[3]) ?? 1) == 0
    try store.close()  // as a service has to, when it is told to end
  }
}
