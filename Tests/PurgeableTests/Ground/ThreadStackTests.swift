// SPDX-License-Identifier: MIT
// The stacks of the library's threads.

import Glibc
import PurgeableTestSupport
import Synchronization
import Testing

@testable import Purgeable

@Suite("threads of the library: the stack")
struct ThreadStackTests {
  /// What the thread has left, in bytes; 0: not known yet.
  private static let left = Atomic<Int>(0)

  @Test("is as large as was asked for, beside what the C library takes out of it")
  func size() async {
    let error = unsafe startDetachedThread(stackByteCount: 512 << 10) { _ in
      var attributes = pthread_attr_t()
      var start: UnsafeMutableRawPointer?
      var byteCount = 0
      // Swift does not import the function. Safe: the C library's has exactly this type.
      typealias Attributes = @convention(c) (pthread_t, UnsafeMutablePointer<pthread_attr_t>) -> Int32
      _ = unsafe unsafeBitCast(dlsym(nil, "pthread_getattr_np"), to: Attributes.self)(pthread_self(), &attributes)
      unsafe pthread_attr_getstack(&attributes, &start, &byteCount)
      // Only the address is used.
      let here = unsafe withUnsafePointer(to: &attributes) { Int(bitPattern: $0) }
      ThreadStackTests.left.store(here - Int(bitPattern: start), ordering: .relaxed)
      unsafe pthread_attr_destroy(&attributes)
      return nil
    }
    #expect(error == 0)
    #expect(await TestRun.comes { Self.left.load(ordering: .relaxed) != 0 })
    let left = Self.left.load(ordering: .relaxed)
    #expect(left >= 512 << 10 && left < 1024 << 10)
  }
}
