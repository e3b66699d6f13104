// SPDX-License-Identifier: MIT
// A source of pressure: it can be waited for, or asked at intervals, or both.
//
//        waiting (poll)                    asking (level)                  smoothing              hearing of it
//   descriptors, interval  -> ready ->  the level right now, raw  ->  PressureHysteresis  ->  caches, monitors

/// A descriptor to wait on, and the events to wait for.
public struct PressureDescriptor: Sendable, Hashable {
  /// An open file descriptor. It stays the source's: the waiting thread neither reads from it nor closes it.
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
/// is awake for other reasons, at most once a second, and once a second while the level is above normal.
///
/// Memory: a source is asked when there is none. The library takes none itself, but an array that `descriptors` makes anew, and
/// the one of ready descriptors that `level` is given, are the runtime's, which ends the program where it cannot have them:
/// answer a stored array, or poll. The library's own sources are asked without arrays.
///
/// Threads: the library's thread calls `level`, `descriptors` and `pollingInterval`, outside of every mutex of the library; they
/// should answer within milliseconds. While that thread watches for nobody, `level` is also called by whoever asks for the level:
/// with `PurgeableMemory.pressureLevel` or `purgeable_pressure_level`, or by making a monitor. So it may be called by several
/// threads at a time. A source used in two places is asked by both.
public protocol PressureSource: AnyObject, Sendable {
  /// The source in a few words: for logs and statistics.
  var name: String { get }

  /// The descriptors to wait on; empty for a source that only polls. Read anew before each wait, so they may change.
  var descriptors: [PressureDescriptor] { get }

  /// How often to ask without an event; nil where the descriptors tell everything.
  var pollingInterval: Duration? { get }

  /// The level right now, without any smoothing: the library lets the level fall a step at a time, each
  /// after the source has said less for two seconds.
  ///
  /// - Parameter ready: the descriptors that became ready, with the events that occurred; empty when it is asked without an
  ///   event. The source has to take the event off a descriptor (read an eventfd), or it will be ready for ever.
  func level(ready: [PressureDescriptor]) -> PressureLevel

  /// Called in a forked child before its first use there, and when a descriptor turned out not to be open (POLLNVAL):
  /// registrations that a child shares with its parent would take the parent's events. Does nothing by default.
  func reopen()

  /// Releases the source's resources. It is not asked again. Does nothing by default.
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
