// SPDX-License-Identifier: MIT
// Loads that begin while something else is on its way.

import Glibc
import Synchronization
import Testing
import ToolSupport

@testable import Purgeable

@Suite("loading: overtakings")
struct LoadingOvertakingTests {
  /// A value of which tests say what its encoding does once in addition.
  private struct BusyValue: PurgeableValue, Equatable {
    static let manners = Mutex<(@Sendable () -> Void)?>(nil)
    let number: Int
    init(_ number: Int) { self.number = number }
    init?(purgeableBytes: RawSpan) {
      guard let number = Int(purgeableBytes: purgeableBytes) else { return nil }
      self.number = number
    }
    func withPurgeableBytes<R, E: Error>(_ body: (RawSpan) throws(E) -> R) throws(E) -> R {
      let acts = Self.manners.withLock { manners -> (@Sendable () -> Void)? in
        defer { manners = nil }
        return manners
      }
      acts?()
      return try number.withPurgeableBytes(body)
    }
  }

  /// A load on a thread of its own, which begins in the middle of something else and ends after it.
  private final class LateLoad: @unchecked Sendable {
    private let (began, goes) = (Event(), Event())
    private var thread: TestThread?

    func begin(_ load: @escaping (() -> Void) -> Void) {
      thread = TestThread { [self] in
        load {
          began.happens()
          goes.blocks()
        }
      }
      began.blocks()
    }

    func end() {
      goes.happens()
      thread?.join()
    }
  }

  @Test("a load that begins while a store is on its way, and finds no value yet, does not replace what was stored")
  func begunDuringStore() async {
    await #expect(processExitsWith: .success) {
      alarm(600)
      let bytes = try PurgeableCache<Int, BusyValue>()
      let first = LateLoad()
      bytes.modifyValue(forKey: 1) {
        BusyValue.manners.withLock {
          $0 = {
            first.begin { runs in
              _ = bytes.value(forKey: 1) {
                runs()
                return BusyValue(0)
              }
            }
          }
        }
        $0 = BusyValue(1)
      }
      first.end()
      require(bytes.peekValue(forKey: 1) == BusyValue(1), "what was stored")
      let objects = try ObjectCache<BusyHashKey, Int>()
      let (second, key) = (LateLoad(), BusyHashKey(number: 1))
      BusyHashKey.act(afterHashes: 0) {
        second.begin { runs in
          _ = objects.value(forKey: key) {
            runs()
            return 0
          }
        }
      }
      objects[key] = 1
      second.end()
      require(objects.peekValue(forKey: key) == 1, "what was stored in a cache of objects")
    }
  }
}
