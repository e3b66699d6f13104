// SPDX-License-Identifier: MIT
// A program written for NSCache: open documents, which the delegate closes when they leave.

import Foundation

final class OpenDocument {
  let number: Int
  private(set) var isOpen = true

  init(number: Int) { self.number = number }

  func close() { isOpen = false }
}

final class DocumentPool: NSObject, NSCacheDelegate {
  private let cache = NSCache<NSNumber, OpenDocument>()
  /// All that were ever opened.
  private(set) var opened: [OpenDocument] = []

  init(limit: Int) {
    super.init()
    cache.countLimit = limit
    cache.delegate = self
  }

  var openCount: Int { opened.count { $0.isOpen } }

  func document(_ number: Int) -> OpenDocument {
    if let found = cache.object(forKey: NSNumber(value: number)) { return found }
    let document = OpenDocument(number: number)
    opened.append(document)
    cache.setObject(document, forKey: NSNumber(value: number))
    return document
  }

  func closeAll() { cache.removeAllObjects() }

  func cache(_ cache: NSCache<AnyObject, AnyObject>, willEvictObject obj: Any) {
    guard let document = obj as? OpenDocument else { return }
    document.close()
  }
}
