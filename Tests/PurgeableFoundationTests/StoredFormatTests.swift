// SPDX-License-Identifier: MIT
// JSON in files of caches.

import Foundation
import Purgeable
import PurgeableFoundation
import Testing

private struct Page: Codable, Sendable, Equatable {
  var title: String
  var score: Double
}

@Suite("JSON in files")
struct StoredFormatTests {
  private func folder() throws -> URL {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("purgeable-json-\(UUID())")
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    return folder
  }

  @Test("Codable values are there again; one that has no JSON is skipped and named; later versions and other bytes are refused")
  func json() throws {
    let folder = try folder()
    defer { try? FileManager.default.removeItem(at: folder) }
    let path = folder.appendingPathComponent("pages").path
    let saved = try ObjectCache<String, Page>()
    for number in 0..<100 { saved["page \(number)"] = Page(title: "Seite „\(number)“", score: Double(number) / 3) }
    saved["odd"] = Page(title: "odd", score: .nan)
    let report = try saved.save(to: path, format: .json())
    #expect(report.entryCount == 100 && report.skippedCount == 1 && report.skipped[0].hasPrefix("odd: "))
    let restored = try ObjectCache<String, Page>()
    #expect(try restored.restore(from: path, format: .json(version: 3)).entryCount == 100)
    for number in 0..<100 { #expect(restored["page \(number)"] == saved["page \(number)"]) }

    try saved.save(to: path, format: .json(version: 4))
    let older = try ObjectCache<String, Page>().restore(from: path, format: .json(version: 3))
    #expect(older.entryCount == 0 && older.skippedCount == 100)
    // Of another shape, and not JSON at all.
    let ids = try ObjectCache<String, UUID>()
    #expect(try ids.restore(from: path, format: .json(version: 4)).skippedCount == 100)
    let texts = try ObjectCache<String, String>()
    texts["plain"] = "\"plain\""
    try texts.save(to: path, format: .purgeableBytes)
    #expect(try texts.restore(from: path, format: .json()).skippedCount == 1)
  }

  @Test("caches of bytes use it as well, and a program may change from one kind of cache to the other")
  func bothKinds() throws {
    let folder = try folder()
    defer { try? FileManager.default.removeItem(at: folder) }
    let path = folder.appendingPathComponent("names").path
    let bytes = try PurgeableCache<Int, String>()
    for number in 0..<50 { bytes.setValue("name \(number)", forKey: number, cost: number) }
    #expect(try bytes.save(to: path, format: .json()).entryCount == 50)
    let objects = try ObjectCache<Int, String>()
    #expect(try objects.restore(from: path, format: .json()).entryCount == 50)
    #expect(objects.totalCost == bytes.totalCost && objects[7] == "name 7")
    try objects.save(to: path, format: .json())
    let again = try PurgeableCache<Int, String>()
    #expect(try again.restore(from: path, format: .json()).entryCount == 50)
    #expect(again.totalCost == bytes.totalCost && again[49] == "name 49")
  }
}
