// SPDX-License-Identifier: MIT
// The rivals that the cache is compared with.

enum RivalKind: String, CaseIterable, Sendable {
  case dictionary, lru, nscache

  var title: String {
    switch self {
    case .dictionary: "Dictionary"
    case .lru: "count-limited LRU"
    case .nscache: "NSCache"
    }
  }
}

/// The process with a rival.
enum RivalChild {
  static func run(_ kind: RivalKind, _ load: StressContent, countLimit: Int) throws {
    switch kind {
    case .dictionary: try serve(LoadChild(load, DictionaryStore()))
    case .lru: try serve(LoadChild(load, LRUStore(countLimit: countLimit)))
    case .nscache: try serve(LoadChild(load, NSCacheStore()))
    }
  }

  /// Runs until the input ends.
  private static func serve<Store>(_ child: LoadChild<Store>) throws {
    var child = child
    while let (order, numbers) = try child.port.next() {
      guard try child.follow(order, numbers) else { throw WireFailure() }
    }
  }
}
