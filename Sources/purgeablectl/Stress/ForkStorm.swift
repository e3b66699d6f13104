// SPDX-License-Identifier: MIT
// A storm of forks: each child reads the cache, where everything is a miss or right, and ends.

import Glibc
import Purgeable

struct ForkStorm {
  let cache: PurgeableCache<UInt64, [UInt8]>
  let load: StressContent
  let content: Content
  let spoils: Bool
  private(set) var result = Tally()
  /// A child needs microseconds for each read; it is ended when it takes so long.
  static let childSeconds: UInt32 = 20

  init(_ cache: PurgeableCache<UInt64, [UInt8]>, _ load: StressContent, _ content: Content, spoils: Bool) {
    self.cache = cache
    self.load = load
    self.content = content
    self.spoils = spoils
  }

  /// Forks, and waits for the child: it ends with 0 when all was a miss, 1 when there were hits, all of them right, 2 when not.
  mutating func forkOnce() throws {
    result["forks"] += 1
    let seed = load.seed &+ result["forks"]
    let start = Clock.now
    let child = LibraryCalls.fork()
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
    var end: Int32 = 0
    while unsafe waitpid(child, &end, 0) < 0, errno == EINTR {}
    // As <sys/wait.h> takes it apart: the signal in the low seven bits, the exit status above them.
    switch (end & 0x7F, (end >> 8) & 0xFF) {
    case (0, 0): result["childrenOfMisses"] += 1
    case (0, 1): result["childrenWithHits"] += 1
    case (0, _): result["wrongBytes"] += 1
    case (SIGALRM, _): result["hungChildren"] += 1
    default: result["killedChildren"] += 1
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
