// SPDX-License-Identifier: MIT
// The shape of NSCache while memory is refused.

import Foundation
import PurgeableFoundation

private final class Picture {
  let number: Int
  init(_ number: Int) { self.number = number }
}

/// Notes nothing, so that it takes no memory itself.
private final class Listener: PurgeableNSCacheDelegate {
  var toldCount = 0
  func cache(_ cache: PurgeableNSCache<AnyObject, AnyObject>, willEvictObject obj: Any) { toldCount += 1 }
}

/// Key objects, of which `stored` are in the cache.
private struct Scene {
  let cache = PurgeableNSCache<NSString, Picture>()
  let keys = (0..<many(4000)).map { NSString(string: "an ordinary key of some length, number \($0)") }
  let pictures = (0..<many(4000)).map(Picture.init)

  init(stored: Int) {
    for at in 0..<many(stored) { cache.setObject(pictures[at], forKey: keys[at], cost: 1) }
  }
}

let nsCacheOperations: [Operation] = [
  Operation("nscache: look-ups") {
    let scene = Scene(stored: 1000)
    return {
      scene.cache.object(forKey: scene.keys[5]) === scene.pictures[5]
        && scene.cache.object(forKey: scene.keys[scene.keys.count - 1]) == nil
    }
  },
  Operation("nscache: stores in place of old objects") {
    let scene = Scene(stored: 1000)
    let next = Counter(0)
    return {
      let at = next.next() % many(1000)
      scene.cache.setObject(scene.pictures[at + 1], forKey: scene.keys[at], cost: 2)
      return scene.cache.object(forKey: scene.keys[at]) === scene.pictures[at + 1]
    }
  },
  Operation("nscache: stores at a count limit") {
    let scene = Scene(stored: 4000)
    scene.cache.countLimit = many(1000)
    let next = Counter(0)
    return {
      for _ in 0..<many(500) {
        let at = next.next() % scene.keys.count
        scene.cache.setObject(scene.pictures[at], forKey: scene.keys[at], cost: 1)
      }
      return scene.cache.count == many(1000)
    }
  },
  Operation("nscache: new objects, of which some are refused", takes: .result) {
    let scene = Scene(stored: 100)
    let next = Counter(many(100))
    return {
      for _ in 0..<many(1000) {
        let at = next.next()
        if at >= scene.keys.count { break }
        scene.cache.setObject(scene.pictures[at], forKey: scene.keys[at], cost: 1)
      }
      // What was stored before any of it is there.
      return scene.cache.object(forKey: scene.keys[0]) === scene.pictures[0] && scene.cache.totalCost == scene.cache.count
    }
  },
  Operation("nscache: removals") {
    let scene = Scene(stored: 4000)
    let next = Counter(0)
    return {
      for _ in 0..<many(500) {
        let at = next.next() % scene.keys.count
        scene.cache.removeObject(forKey: scene.keys[at])
        if scene.cache.object(forKey: scene.keys[at]) != nil { return false }
      }
      return true
    }
  },
  Operation("nscache: limits and removal of all") {
    let scene = Scene(stored: 4000)
    return {
      scene.cache.totalCostLimit = many(2000)
      scene.cache.totalCostLimit = 0
      scene.cache.removeAllObjects()
      return scene.cache.count == 0
    }
  },
  Operation("nscache: a delegate is told, and asked") {
    let scene = Scene(stored: 4000)
    let listener = Listener()
    scene.cache.delegate = listener
    scene.cache.countLimit = many(3000)
    let next = Counter(0)
    return {
      for _ in 0..<many(100) {
        let at = next.next() % scene.keys.count
        scene.cache.removeObject(forKey: scene.keys[at])
        scene.cache.setObject(scene.pictures[at], forKey: scene.keys[at], cost: 1)
      }
      return listener.toldCount > 0
    }
  },
]
