// SPDX-License-Identifier: MIT
// One or two threads that begin together, and what they take by the clock on the wall.

import Foundation
import Synchronization

enum ThreadPair {
  static var isPossible: Bool { sysconf(Int32(_SC_NPROCESSORS_ONLN)) >= 2 }

  /// In nanoseconds.
  static func clock() -> Double { Double(DispatchTime.now().uptimeNanoseconds) }

  /// From when all threads are ready until the last is done.
  static func wallNanoseconds(threads: Int, _ body: @escaping @Sendable (Int) -> Void) -> Double {
    let start = Mutex(0.0)
    run(threads: threads, { start.withLock { $0 = clock() } }, body)
    return clock() - start.withLock { $0 }
  }

  /// `begin` is called once, by the thread that is ready last. Thread 0 is the calling one.
  static func run(
    threads: Int, _ begin: @escaping @Sendable () -> Void = {}, _ body: @escaping @Sendable (Int) -> Void
  ) {
    let waiting = Atomic<Int>(threads)
    let ended = DispatchSemaphore(value: 0)
    let work: @Sendable (Int) -> Void = { thread in
      if waiting.subtract(1, ordering: .acquiringAndReleasing).newValue == 0 { begin() }
      while waiting.load(ordering: .acquiring) > 0 {}
      body(thread)
      ended.signal()
    }
    for thread in stride(from: 1, to: threads, by: 1) { Thread { work(thread) }.start() }
    work(0)
    for _ in 0..<threads { ended.wait() }
  }
}
