// SPDX-License-Identifier: MIT
// The one error type of this library. *Discarded* is an outcome, never an error.

/// Why a call did nothing.
///
/// Every throwing function of this library throws this type and nothing else, and changes nothing when it throws, unless its own
/// documentation says otherwise. That content was discarded is not an error: functions answer it with `nil`, `false` or a
/// `ReadOutcome`.
public struct PurgeableError: Error, Sendable, Hashable {
  /// What kind of thing went wrong: what a program decides by.
  public enum Kind: Sendable, Hashable {
    /// An argument no such call can take; `argument` is its name.
    case invalidArgument(_ argument: String)
    /// No memory, no address space, no mapping left, or a limit set by the program is reached.
    case outOfMemory
    /// Somebody holds a lock, or is at work on it, or as much is locked as may be: try again when they are done.
    case busy
    /// A counter is at its maximum.
    case countOverflow
    /// The reference names nothing that lives: freed, of another heap, forged, or from before a fork.
    case staleReference
    /// More bytes than one object can hold.
    case tooLarge
    /// This machine, this kernel or these options do not offer it.
    case notSupported
    /// The file is none of this library's, is cut or damaged, or was written by a newer version.
    case invalidFile
    /// The program wanted no more of it.
    case cancelled
    /// A system call failed in a way that none of the above describes.
    case systemCallFailed(call: String)
  }

  /// What kind of thing went wrong.
  public let kind: Kind

  /// The call that went wrong, as the reader of this library's documentation knows it, with the name of its object if it has one.
  public let operation: String

  /// The number the system or the core gave (`errno`), 0 where there was none.
  public let errorNumber: Int32

  /// What was wrong and what to do about it, in a sentence.
  public let explanation: String

  /// Makes an error; for this library and for those that extend it.
  public init(_ kind: Kind, in operation: String, errorNumber: Int32 = 0, explanation: String) {
    self.kind = kind
    self.operation = operation
    self.errorNumber = errorNumber
    self.explanation = explanation
  }
}

extension PurgeableError.Kind: CustomStringConvertible {
  /// The kind in words.
  public var description: String {
    switch self {
    case .invalidArgument(let argument): "invalid argument '\(argument)'"
    case .outOfMemory: "out of memory"
    case .busy: "busy"
    case .countOverflow: "count overflow"
    case .staleReference: "stale reference"
    case .tooLarge: "too large"
    case .notSupported: "not supported"
    case .invalidFile: "invalid file"
    case .cancelled: "cancelled"
    case .systemCallFailed(let call): "system call failed: \(call)"
    }
  }
}

extension PurgeableError: CustomStringConvertible {
  /// Operation, kind, number and explanation in one line.
  public var description: String {
    let number = errorNumber == 0 ? "" : " (errno \(errorNumber))"
    return "\(operation): \(kind)\(number): \(explanation)"
  }
}
