// SPDX-License-Identifier: MIT
// PurgeableData beside Foundation: to and from Data, and through Foundation's encoders and decoders.

import Foundation
import PurgeableFoundation
import Testing

@Suite("PurgeableData with Foundation")
struct PurgeableDataBridgeTests {
  /// Bytes that differ from place to place.
  private func pattern(_ count: Int) -> [UInt8] { (0..<count).map { UInt8(truncatingIfNeeded: $0 &* 31 &+ 7) } }

  private func discarded(_ bytes: [UInt8], recreate: PurgeableData.Recreate? = nil) throws -> PurgeableData {
    let content = try PurgeableData(bytes, name: "page 7", recreate: recreate)
    content.endContentAccess()
    content.discardContentIfPossible()
    #expect(content.isContentDiscarded)
    return content
  }

  // MARK: Data

  @Test(
    "Data is a copy of the content, byte for byte, without an access of the caller's",
    arguments: [0, 1, 14, 15, 5000, 300_000])
  func toData(count: Int) throws {
    let content = try PurgeableData(pattern(count))
    content.endContentAccess()
    var data = try #require(Data(content))
    #expect(data == Data(pattern(count)))
    #expect(content.accessCount == 0)
    content.discardContentIfPossible()
    data.append(9)
    #expect(Array(data) == pattern(count) + [9])
  }

  @Test("Data of discarded content is nil, or of what was recreated")
  func toDataDiscarded() throws {
    let gone = try discarded(pattern(5000))
    #expect(Data(gone) == nil)
    #expect(gone.accessCount == 0 && gone.isContentDiscarded)
    let remade = try discarded([1]) { [4, 5, 6] }
    #expect(Data(remade) == Data([4, 5, 6]))
    #expect(remade.accessCount == 0)
  }

  @Test(
    "content is made of Data, and of its slices, and is appended and replaced by it",
    arguments: [0, 1, 14, 15, 5000, 300_000])
  func fromData(count: Int) throws {
    let data = Data(pattern(count))
    let content = try PurgeableData(data, name: "from Data")
    #expect(content.accessCount == 1)
    #expect(content.withBytes { [UInt8](copying: $0) } == pattern(count))
    try content.append(contentsOf: data.dropFirst(3))
    #expect(content.withBytes { [UInt8](copying: $0) } == pattern(count) + pattern(count).dropFirst(3))
    try content.replaceBytes(with: data.suffix(7))
    #expect(content.withBytes { [UInt8](copying: $0) } == pattern(count).suffix(7))
    #expect(Data(content) == Data(pattern(count).suffix(7)))
    try content.append(data.bytes)
    #expect(Data(content) == Data(pattern(count).suffix(7)) + data)
  }

  // MARK: Codable

  struct Page: Codable, Equatable {
    var title: String
    var content: PurgeableData
  }

  @Test("JSON and property lists give the bytes back, with an access count of 1", arguments: [0, 1, 5000])
  func coding(count: Int) throws {
    let content = try PurgeableData(pattern(count), name: "not written", offering: .immediate) { nil }
    content.endContentAccess()
    let page = Page(title: "seven", content: content)
    let decoded = [
      try JSONDecoder().decode(Page.self, from: JSONEncoder().encode(page)),
      try PropertyListDecoder().decode(Page.self, from: PropertyListEncoder().encode(page)),
    ]
    #expect(content.accessCount == 0)
    for copy in decoded {
      #expect(copy == page)
      #expect(copy.content.accessCount == 1 && copy.content.count == count)
      #expect(copy.content.name.isEmpty && copy.content.offering == .deferred)
    }
  }

  @Test("what is written is what [UInt8] is written as, both ways")
  func codedAsBytes() throws {
    let content = try PurgeableData([0, 7, 255])
    #expect(try JSONEncoder().encode(content) == Data("[0,7,255]".utf8))
    let decoded = try JSONDecoder().decode(PurgeableData.self, from: Data("[255,0,1]".utf8))
    #expect(Data(decoded) == Data([255, 0, 1]))
  }

  @Test("encoding discarded content is an EncodingError that names the object and the place; recreated content is written")
  func codingDiscarded() throws {
    let gone = try discarded(pattern(100))
    do {
      _ = try JSONEncoder().encode(Page(title: "gone", content: gone))
      Issue.record("discarded content was encoded")
    } catch EncodingError.invalidValue(let value, let context) {
      #expect(value as? PurgeableData === gone)
      #expect(context.codingPath.map(\.stringValue) == ["content"])
      #expect(context.debugDescription == "PurgeableData 'page 7': the content is discarded, or may not be locked now")
    }
    #expect(gone.accessCount == 0)
    let remade = try discarded([1]) { [4, 5] }
    #expect(try JSONEncoder().encode(remade) == Data("[4,5]".utf8))
  }

  @Test("what is not an array of bytes is a DecodingError", arguments: ["[1,256]", "[-1]", "\"AAE=\"", "{}", "[1,null]"])
  func decodingOther(text: String) throws {
    #expect(throws: DecodingError.self) { try JSONDecoder().decode(PurgeableData.self, from: Data(text.utf8)) }
  }
}
