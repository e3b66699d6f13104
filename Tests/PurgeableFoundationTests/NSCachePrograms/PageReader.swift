// SPDX-License-Identifier: MIT
// A program written for NSCache: pages whose text may be discarded while nobody reads it. On Linux the protocol comes from here.

import Foundation
import Purgeable

final class PageText: DiscardableContent, @unchecked Sendable {
  private let lock = NSLock()
  private var text: String?
  private var accesses = 1

  init(_ text: String) { self.text = text }

  var isContentDiscarded: Bool { lock.withLock { text == nil } }

  func beginContentAccess() -> Bool {
    lock.withLock {
      if text != nil { accesses += 1 }
      return text != nil
    }
  }

  func endContentAccess() { lock.withLock { accesses = max(0, accesses - 1) } }

  func discardContentIfPossible() { lock.withLock { if accesses == 0 { text = nil } } }

  /// Within an access.
  var content: String { lock.withLock { text ?? "" } }
}

final class PageReader {
  private let cache = NSCache<NSURL, PageText>()
  private(set) var fetchCount = 0

  init(keepsEmptyPages: Bool) { cache.evictsObjectsWithDiscardedContent = !keepsEmptyPages }

  func page(_ address: String) -> PageText? { NSURL(string: address).flatMap { cache.object(forKey: $0) } }

  func text(of address: String) -> String {
    guard let key = NSURL(string: address) else { return "" }
    if let page = cache.object(forKey: key), page.beginContentAccess() {
      defer { page.endContentAccess() }
      return page.content
    }
    fetchCount += 1
    let page = PageText("text of \(address)")
    defer { page.endContentAccess() }
    cache.setObject(page, forKey: key)
    return page.content
  }
}
