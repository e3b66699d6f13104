// SPDX-License-Identifier: MIT
// Descriptions of a PurgeableData, and reports of errors in its use.

import Glibc
import Synchronization

extension PurgeableData: CustomStringConvertible {
  private static let unbalancedEnds = Atomic<Int>(0)

  /// How often `endContentAccess()` was called at a counter of 0, on all objects since the process began.
  public static var unbalancedEndCount: Int { unbalancedEnds.load(ordering: .relaxed) }

  /// How often `endContentAccess()` was called on this object at a counter of 0.
  public var unbalancedEndCount: Int { content.withLock { $0.unbalancedEnds } }

  /// The object's name in messages: its name or, without one, its address.
  var title: String {
    name.isEmpty
      ? "PurgeableData at 0x\(String(UInt(bitPattern: ObjectIdentifier(self)), radix: 16))" : "PurgeableData '\(name)'"
  }

  /// Name, counter and state; nothing of the content.
  public var description: String {
    "\(title): access count \(accessCount)\(isContentDiscarded ? ", discarded" : "")"
  }

  func stopForLackOfAccess(_ operation: String) -> Never {
    stop("\(title): \(operation) needs an access that is begun: call beginContentAccess() first, and heed its answer")
  }

  func noteUnbalancedEnd(isFirst: Bool) {
    // A counter for statistics: nothing is ordered by it.
    Self.unbalancedEnds.add(1, ordering: .relaxed)
    #if DEBUG
      if isFirst { report("\(title): endContentAccess without a beginContentAccess; the counter stays at 0") }
    #endif
  }
}

#if DEBUG
  /// Writes a line to standard error, in one piece.
  private func report(_ message: String) {
    var line = "purgeable: \(message)\n"
    // Safe: the bytes are valid for the length of the closure. If the write fails, only the report is lost.
    line.withUTF8 { bytes in _ = unsafe write(STDERR_FILENO, bytes.baseAddress, bytes.count) }
  }
#endif

/// A number that names the calling thread among those that live; never 0.
func currentThread() -> UInt { UInt(pthread_self()) }
