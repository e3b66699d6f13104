// SPDX-License-Identifier: MIT
// Saving and restoring. Whatever fails leaves the old file whole.

import Glibc
import Purgeable

/// A directory of the process that runs the operations, and a file in it. The process that started them removes it.
let fileFolder = "/tmp/purgeable-memory-cases.\(getppid())"

func removeFileFolder() {
  let folder = "/tmp/purgeable-memory-cases.\(getpid())"
  guard let list = unsafe opendir(folder) else { return }
  while let entry = unsafe readdir(list) {
    let name = unsafe withUnsafePointer(to: &entry.pointee.d_name) { name in
      unsafe String(cString: UnsafeRawPointer(name).assumingMemoryBound(to: CChar.self))
    }
    _ = unsafe unlink("\(folder)/\(name)")
  }
  unsafe closedir(list)
  _ = unsafe rmdir(folder)
}

private func path(_ name: String) -> String {
  _ = unsafe mkdir(fileFolder, 0o700)
  return "\(fileFolder)/\(name)"
}

/// Saves, and says whether that went well. Where it did not, the old file is there, whole.
private func isSaved(_ path: String, _ count: Int, _ save: () throws(PurgeableError) -> FileReport) -> Bool {
  var before = stat()
  _ = unsafe stat(path, &before)
  do throws(PurgeableError) {
    // What is not skipped is there.
    let report = try save()
    if report.entryCount + report.skippedCount != count { fail("\(report.entryCount) of \(count) entries were saved") }
    return report.skippedCount == 0
  } catch {
    var after = stat()
    if unsafe stat(path, &after) != 0 || after.st_ino != before.st_ino { fail("the old file is gone") }
    return false
  }
}

private func filledPairs() throws -> StringCache {
  var options = CacheOptions()
  options.tracksKeys = true
  let cache = try StringCache(options)
  for (number, key) in stringKeys(800).enumerated() {
    cache.setValue(bytes(100, number), forKey: key, expiry: .sinceLastUse(.seconds(3600)), version: "\(number)")
  }
  return cache
}

private let fileFloor = Floor(
  bytes: 1024, reason: "the format, and the paths of this test, are made before the library is called")

let fileOperations: [Operation] = [
  Operation("files: save", takes: .result, floor: fileFloor) {
    let cache = filled(try IntCache())
    let path = path("save")
    return {
      isSaved(path, cache.count) { () throws(PurgeableError) in try cache.save(to: path, isSynchronized: false) { _ in true } }
    }
  },
  Operation("files: save of tracked keys with versions", takes: .result, floor: fileFloor) {
    let cache = try filledPairs()
    let path = path("tracked")
    return {
      isSaved(path, cache.count) { () throws(PurgeableError) in try cache.save(to: path, isSynchronized: false) { _ in true } }
    }
  },
  Operation("files: restore", takes: .result, floor: fileFloor) {
    let cache = filled(try IntCache())
    let path = path("restore")
    let count = try cache.save(to: path, isSynchronized: false) { _ in true }.entryCount
    let restored = try IntCache()
    return {
      restored.removeAll()
      let report = try? restored.restore(from: path) { _ in true }
      for key in 0..<100 {
        if let value = restored.peekValue(forKey: key), value.count != 100 { fail("a wrong value") }
      }
      return report?.entryCount == count
    }
  },
  Operation("files: restore of tracked keys with versions", takes: .result, floor: fileFloor) {
    let cache = try filledPairs()
    let path = path("restore-tracked")
    let count = try cache.save(to: path, isSynchronized: false) { _ in true }.entryCount
    let restored = try StringCache(tracksKeys: true)
    return {
      restored.removeAll()
      return (try? restored.restore(from: path) { _ in true })?.entryCount == count
    }
  },
  Operation("files: save and restore of objects", takes: .result, floor: fileFloor) {
    let cache = try ObjectCache<Int, Int>()
    for key in 0..<1000 { cache.setValue(key, forKey: key, expiry: .sinceCreation(.seconds(3600))) }
    let restored = try ObjectCache<Int, Int>()
    let path = path("objects")
    return {
      let isWhole = isSaved(path, cache.count) { () throws(PurgeableError) in
        try cache.save(to: path, format: .purgeableBytes, isSynchronized: false) { _ in true }
      }
      restored.removeAll()
      let report = try? restored.restore(from: path, format: .purgeableBytes) { _ in true }
      for entry in restored.entries where entry.key != entry.value { fail("a wrong value") }
      return isWhole && report?.entryCount == 1000
    }
  },
  Operation("files: an autosave is set and taken away", takes: .result, floor: fileFloor) {
    let cache = filled(try IntCache())
    let path = path("autosave")
    return {
      let isSet: ()? = try? cache.setAutosave(to: path, every: .seconds(3600))
      cache.removeAutosave()
      return isSet != nil
    }
  },
]
