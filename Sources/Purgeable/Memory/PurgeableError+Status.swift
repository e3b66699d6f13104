// SPDX-License-Identifier: MIT
// How the numbers of the C core become errors, and how programming errors stop the program.

import Glibc

extension PurgeableError {
  /// Translates a positive errno of the core.
  ///
  /// - Parameters:
  ///   - argument: what EINVAL and ERANGE mean in this call.
  ///   - call: the kernel call behind it, for numbers that say nothing about the arguments.
  ///   - explanation: a sentence that replaces the general one.
  init(
    status: Int32, in operation: String, argument: String? = nil, call: String = "madvise", explanation: String? = nil
  ) {
    let kind: Kind
    let general: String
    switch status {
    case EINVAL where argument != nil, ERANGE where argument != nil, ENOBUFS where argument != nil:
      (kind, general) = (.invalidArgument(argument ?? ""), "the value is out of range")
    case ENOMEM:
      (kind, general) = (.outOfMemory, "no memory or address space is left, or a limit is reached: free something first")
    case EBUSY, EAGAIN:
      (kind, general) = (
        .busy, "somebody holds a lock or is at work on it, or as much is locked as may be: try again when they are done"
      )
    case EOVERFLOW:
      (kind, general) = (.countOverflow, "too many locks are held at once: look for accesses that are never ended")
    case ESTALE:
      (kind, general) = (.staleReference, "it was freed, belongs to another heap or to the process before a fork: drop it")
    case EFBIG:
      (kind, general) = (.tooLarge, "divide the content into smaller parts")
    case ENOTSUP, ENOSYS:
      (kind, general) = (.notSupported, "this kernel or these options do not offer it")
    default:
      (kind, general) = (.systemCallFailed(call: call), "the kernel refused: see the manual page of \(call) for this number")
    }
    self.init(kind, in: operation, errorNumber: status, explanation: explanation ?? general)
  }

  /// As `init(status:in:...)`, with a name of the operation that is put together here; only as far as there is memory for it.
  static func of(
    _ status: Int32, in operation: @autoclosure () -> String, argument: String? = nil, call: String = "madvise",
    explanation: @autoclosure () -> String? = nil
  ) -> PurgeableError {
    let hasRoom = MemoryReserve.isThere(MemoryReserve.ofNews)
    return PurgeableError(
      status: status, in: hasRoom ? operation() : "Purgeable", argument: argument, call: call,
      explanation: hasRoom ? explanation() : nil)
  }

  /// The error for memory that Swift's runtime would have needed: the library looked for it first and found none. `operation`:
  /// a literal, which takes none.
  static func withoutMemory(in operation: String) -> PurgeableError { PurgeableError(status: ENOMEM, in: operation) }

  /// Throws unless `status` is 0. The name of the operation is put together only then. `explanations`: for numbers that mean
  /// something of their own in this call.
  static func check(
    _ status: Int32, in operation: @autoclosure () -> String, argument: String? = nil, call: String = "madvise",
    explanations: @autoclosure () -> [Int32: String] = [:]
  ) throws(PurgeableError) {
    guard status != 0 else { return }
    throw of(status, in: operation(), argument: argument, call: call, explanation: explanations()[status])
  }
}

/// Numbers of the core that are answers, or that mean something of their own in some call.
enum Status {
  static let invalid = EINVAL
  static let noMemory = ENOMEM
  static let unsupported = ENOTSUP
  static let noEntry = ENOENT
  static let busy = EBUSY
  static let again = EAGAIN
}

/// The number that the last failed call of this thread left. To be read before anything else is called.
func lastErrorNumber() -> Int32 { errno }

/// Stops the program over an error in it, in every build. `precondition` would lose the message in optimised builds.
func stop(_ message: @autoclosure () -> String, file: StaticString = #fileID, line: UInt = #line) -> Never {
  fatalError(message(), file: file, line: line)
}
