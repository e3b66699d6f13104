// SPDX-License-Identifier: MIT
// A server of previews of the files in a folder: pictures of their bytes, 256 by 256. It keeps all that memory has room for.
//
//   swift run -c release preview-server FOLDER SOCKET SAVED &
//   curl --unix-socket SOCKET http://localhost/some/file >file.pgm
//   curl --unix-socket SOCKET http://localhost/stats

import Foundation
import Purgeable

struct Previews: Sendable {  // without a limit: in what nobody else needs
  let folder: String
  let cache: PurgeableCache<String, [UInt8]>

  init(of folder: String) throws {
    (self.folder, cache) = (folder, try PurgeableCache(name: "previews", expiry: .sinceLastUse(.seconds(86_400))))
  }

  /// Made once for all who ask at the same time, and again when the file has changed. nil: there is no such file.
  func preview(of name: String) throws -> [UInt8]? {
    var status = stat()
    let isInside = name.utf8.first == 0x2F && !name.utf8.split(separator: 0x2F).contains { $0.elementsEqual("..".utf8) }
    guard isInside, stat(folder + name, &status) == 0, status.st_mode & S_IFMT == S_IFREG else { return nil }
    let state = "\(status.st_ino) \(status.st_size) \(status.st_mtim.tv_sec).\(status.st_mtim.tv_nsec)"
    return try cache.value(forKey: name, version: state) { try Self.render(folder + name) }
  }

  /// Each point is the mean of its share of the bytes.
  static func render(_ path: String) throws -> [UInt8] {
    let file = try FileHandle(forReadingFrom: URL(fileURLWithPath: path))
    let bytes = [UInt8](try file.readToEnd() ?? Data())
    // Read once: its pages are worth less than the previews that the kernel would take for them.
    posix_fadvise(file.fileDescriptor, 0, 0, POSIX_FADV_DONTNEED)
    let side = 256
    return Array("P5 \(side) \(side) 255\n".utf8)
      + (0..<side * side).map { point in
        let share = bytes.count * point / (side * side)..<bytes.count * (point + 1) / (side * side)
        return UInt8(share.reduce(0) { $0 + Int(bytes[$1]) } / max(1, share.count))
      }
  }

  var statistics: String {
    let now = cache.statistics
    return """
      previews \(now.count) bytes \(now.memory.heldBytes) resident \(now.memory.residentBytes ?? 0)
      hits \(now.hitCount) misses \(now.missCount) made \(now.loadCount) waited \(now.sharedLoadCount)\n
      """
  }

  // MARK: HTTP

  func answer(_ request: String) -> (status: String, body: [UInt8]) {
    let words = request.split(separator: " ")
    guard words.count > 1, words[0] == "GET", let name = words[1].removingPercentEncoding else { return ("400 Bad Request", []) }
    if name == "/stats" { return ("200 OK", Array(statistics.utf8)) }
    do { return try preview(of: name).map { ("200 OK", $0) } ?? ("404 Not Found", []) } catch {
      return ("500 Internal Server Error", Array("\(error)\n".utf8))
    }
  }

  func serve(_ client: Int32) {
    let file = FileHandle(fileDescriptor: client, closeOnDealloc: true)
    var limit = timeval(tv_sec: 10, tv_usec: 0)
    for way in [SO_RCVTIMEO, SO_SNDTIMEO] { setsockopt(client, SOL_SOCKET, way, &limit, socklen_t(MemoryLayout<timeval>.size)) }
    var buffer = [UInt8](repeating: 0, count: 8192)
    let count = max(0, read(client, &buffer, buffer.count))
    let (status, body) = answer(String(decoding: buffer[..<count], as: UTF8.self))
    let head = "HTTP/1.1 \(status)\r\nContent-Length: \(body.count)\r\nConnection: close\r\n\r\n"
    try? file.write(contentsOf: Data(head.utf8) + body)
  }
}

func fail(_ message: String) -> Never {
  FileHandle.standardError.write(Data("preview-server: \(message)\n".utf8))
  exit(2)
}

/// A socket that listens at a path, in place of one to which nobody answers.
func listen(at path: String) -> Int32 {
  var (address, status) = (sockaddr_un(), stat())
  address.sun_family = sa_family_t(AF_UNIX)
  guard path.utf8.count < MemoryLayout.size(ofValue: address.sun_path) else { fail("\(path) is too long for a socket") }
  withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: path.utf8) }
  let (listener, size) = (socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0), socklen_t(MemoryLayout<sockaddr_un>.size))
  let isBound = withUnsafeBytes(of: &address) { bytes in
    let address = bytes.assumingMemoryBound(to: sockaddr.self).baseAddress
    if lstat(path, &status) == 0, status.st_mode & S_IFMT == S_IFSOCK, connect(listener, address, size) != 0 { unlink(path) }
    return bind(listener, address, size) == 0
  }
  guard isBound, listen(listener, 128) == 0 else { fail("\(path): \(String(cString: strerror(errno)))") }
  return listener
}

@main
enum PreviewServer {
  static func main() { do { try run(CommandLine.arguments) } catch { fail("\(error)") } }

  static func run(_ words: [String]) throws {
    guard words.count == 4 else { fail("give it FOLDER SOCKET SAVED") }
    var ends = sigset_t()
    for signal in [SIGTERM, SIGINT] { sigaddset(&ends, signal) }
    pthread_sigmask(SIG_BLOCK, &ends, nil)
    signal(SIGPIPE, SIG_IGN)

    let (previews, listener, saved) = (try Previews(of: words[1]), listen(at: words[2]), words[3])
    Thread.detachNewThread {
      while true {
        let client = accept(listener, nil, nil)
        if client >= 0 { Thread.detachNewThread { previews.serve(client) } } else { usleep(10_000) }
      }
    }
    // Warm after a restart: hits come while it runs. Before anything that saves, which would write what is there so far.
    do { print(try previews.cache.restore(from: saved)) } catch { print(error) }
    try previews.cache.setAutosave(to: saved, every: .seconds(600)) { if case .failed(let error) = $0 { print(error) } }

    sigwaitinfo(&ends, nil)
    previews.cache.removeAutosave()
    print(try previews.cache.save(to: saved))
  }
}
