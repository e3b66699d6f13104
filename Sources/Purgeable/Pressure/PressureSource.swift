// SPDX-License-Identifier: MIT
// What a source of pressure is: something that can be waited for, or asked now and then, or both.
//
//        waiting (poll)                    asking (level)                  smoothing              hearing of it
//   descriptors, interval  -> ready ->  the level right now, raw  ->  PressureHysteresis  ->  caches, monitors

/// A descriptor to wait on, and what for.
public struct PressureDescriptor: Sendable, Hashable {
  /// An open file descriptor. Stays the source's: whoever waits does not read from it and does not close it.
  public var descriptor: Int32

  /// Events as poll(2) knows them, such as POLLPRI. When a descriptor is handed back as ready: those that occurred, which may
  /// include POLLERR and POLLHUP.
  public var events: Int16

  /// Names a descriptor and events.
  public init(descriptor: Int32, events: Int16) {
    self.descriptor = descriptor
    self.events = events
  }
}

/// Tells how short memory is. For tests, and for programs with their own idea of pressure (an orchestrator's message, a budget of
/// their own, another system call): see `PurgeableMemory.pressureSource` and `PressureMonitor.init(source:)`.
///
/// A source with descriptors is asked when one of them is ready; a source with an interval is asked that often, at most once a
/// second, while anybody has something to give back. A source may have both. Every source is also asked when the library's thread
/// is awake for other reasons, at most once a second, and once a second while the level is above none.
///
/// Threads: `level`, `descriptors` and `pollingInterval` are called by one thread at a time, the library's own, outside of
/// every mutex of the library; they should answer within milliseconds. A source used in two places is asked by both.
public protocol PressureSource: AnyObject, Sendable {
  /// What it is, in a few words: for logs and statistics.
  var name: String { get }

  /// What to wait on; empty for a source that only polls. Asked anew before each wait, so that it may change.
  var descriptors: [PressureDescriptor] { get }

  /// How often to ask without an event; nil where the descriptors tell everything.
  var pollingInterval: Duration? { get }

  /// The level right now, without any smoothing: the library adds that (`PressureHysteresis` describes how).
  ///
  /// - Parameter ready: the descriptors that became ready, with the events that occurred; empty when it is asked without an event.
  ///   The source has to take the event off a descriptor (read an eventfd), or it will be ready for ever.
  func level(ready: [PressureDescriptor]) -> PressureLevel

  /// Called in a forked child before its first use there, and when a descriptor turned out not to be open (POLLNVAL): registrations
  /// that a child shares with its parent would take the parent's events. Does nothing by default.
  func reopen()

  /// Gives back what it holds. It is not asked again. Does nothing by default.
  func close()
}

extension PressureSource {
  /// No descriptors.
  public var descriptors: [PressureDescriptor] { [] }

  /// No polling.
  public var pollingInterval: Duration? { nil }

  /// Nothing to open again.
  public func reopen() {}

  /// Nothing to give back.
  public func close() {}
}
