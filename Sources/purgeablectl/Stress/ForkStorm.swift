// SPDX-License-Identifier: MIT
// A storm of forks: each child reads the cache, where everything is a miss or right, and ends.

import Glibc
import Purgeable
import ToolSupport

struct ForkStorm {
  let cache: PurgeableCache<UInt64, [UInt8]>
  let load: StressContent
  let content: Content
  let spoils: Bool
  private(set) var result = Tally()
  /// A child needs microseconds for each read; one that takes this long is ended.
  static let childSeconds: UInt32 = 20

  init(_ cache: PurgeableCache<UInt64, [UInt8]>, _ load: StressContent, _ content: Content, spoils: Bool) {
    self.cache = cache
    self.load = load
    self.content = content
    self.spoils = spoils
  }

  /// Forks, and waits for the child. Its status: 0 if all reads missed, 1 if there were hits, all of them right, 2 if not.
  mutating func forkOnce() throws {
    result["forks"] += 1
    let seed = load.seed &+ result["forks"]
    let start = Clock.now
    let child = fork()
    if child == 0 {
      alarm(Self.childSeconds)
      _exit(readAll(seed))
    }
    guard child > 0 else {
      result["refusedForks"] += 1
      usleep(10_000)
      return
    }
    result["mostNanoseconds"] = max(result["mostNanoseconds"], Clock.now - start)
    switch ChildEnd.of(child) {
    case .exited(0): result["childrenOfMisses"] += 1
    case .exited(1): result["childrenWithHits"] += 1
    case .exited: result["wrongBytes"] += 1
    case .killed(SIGALRM): result["hungChildren"] += 1
    case .killed, nil: result["killedChildren"] += 1
    }
  }

  private func readAll(_ seed: UInt64) -> Int32 {
    var status: Int32 = 0
    var numbers = ZipfNumbers(count: load.keyCount, seed: seed)
    unsafe withUnsafeTemporaryAllocation(byteCount: content.sizes.upperBound, alignment: 16) { buffer in
      for _ in 0..<200 {
        let key = content.key(numbers.next() ?? 0)
        guard let found = unsafe cache.read(key, into: buffer) else { continue }
        status = max(status, 1)
        if unsafe content.wrongBytes(key, UnsafeRawBufferPointer(rebasing: buffer[..<found])) != 0 { status = 2 }
      }
    }
    return spoils ? 2 : status
  }
}
