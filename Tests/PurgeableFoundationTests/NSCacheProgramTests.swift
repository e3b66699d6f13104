// SPDX-License-Identifier: MIT
// Programs written for NSCache, of which the name of the type is all that changes (NSCacheName.swift). The same files are
// compiled against Foundation's NSCache too, and do there what that can.

import Foundation
import PurgeableFoundation
import Testing

@testable import FoundationCachePrograms

@Suite("Programs written for NSCache")
struct NSCacheProgramTests {
  @Test("images are drawn once while they fit, and the least recently used go")
  func thumbnails() {
    let store = ThumbnailStore(byteLimit: 10 * 400)
    #expect(store.title == "thumbnails, 4000 bytes, 1000 images")
    for _ in 0..<3 {
      for number in 0..<10 { #expect(store.thumbnail(named: "\(number)", side: 10).name == "\(number)") }
    }
    #expect(store.drawnCount == 10)
    _ = store.thumbnail(named: "0", side: 10)
    _ = store.thumbnail(named: "10", side: 10)
    #expect(store.has("0", side: 10) && store.has("10", side: 10) && !store.has("1", side: 10))
    #expect(store.thumbnail(named: "large", side: 40).pixels.count == 6400, "larger than the limit")
    #expect(!store.has("large", side: 40) && (2..<11).allSatisfy { store.has("\($0)", side: 10) })
    store.forget("5", side: 10)
    #expect(!store.has("5", side: 10))
    store.empty()
    #expect(!store.has("6", side: 10))
  }

  @Test("images, by Foundation's NSCache: drawn once while they fit")
  func thumbnailsOnFoundation() {
    let store = FoundationCachePrograms.ThumbnailStore(byteLimit: 10 * 400)
    #expect(store.title == "thumbnails, 4000 bytes, 1000 images")
    for _ in 0..<3 {
      for number in 0..<10 { #expect(store.thumbnail(named: "\(number)", side: 10).name == "\(number)") }
    }
    #expect(store.drawnCount == 10)
    store.forget("5", side: 10)
    #expect(!store.has("5", side: 10) && store.has("6", side: 10))
    store.empty()
    #expect(!store.has("6", side: 10))
  }

  @Test("documents are closed when they leave, for whatever reason")
  func documents() {
    let pool = DocumentPool(limit: 3)
    for number in 0..<10 { #expect(pool.document(number).isOpen) }
    #expect(pool.openCount == 3 && pool.opened.count == 10)
    #expect(pool.document(7).isOpen && pool.opened.count == 10)
    pool.closeAll()
    #expect(pool.openCount == 0)
  }

  @Test("documents, by Foundation's NSCache: closed when the limit evicts them")
  func documentsOnFoundation() {
    let pool = FoundationCachePrograms.DocumentPool(limit: 3)
    for number in 0..<10 { _ = pool.document(number) }
    #expect(pool.openCount == 3)
  }

  @Test("pages whose text was discarded are fetched again", arguments: [true, false])
  func pages(keepsEmptyPages: Bool) throws {
    let reader = PageReader(keepsEmptyPages: keepsEmptyPages)
    for _ in 0..<3 { #expect(reader.text(of: "https://example.org/a") == "text of https://example.org/a") }
    #expect(reader.fetchCount == 1)
    let page = try #require(reader.page("https://example.org/a"))
    #expect(page.beginContentAccess())
    page.discardContentIfPossible()
    #expect(!page.isContentDiscarded, "in use")
    page.endContentAccess()
    page.discardContentIfPossible()
    #expect((reader.page("https://example.org/a") === page) == keepsEmptyPages)
    #expect(reader.text(of: "https://example.org/a") == "text of https://example.org/a" && reader.fetchCount == 2)
  }
}
