// SPDX-License-Identifier: MIT
// The C functions; purgeable_pressure.h has the documentation. Not `public`: C programs link these functions, Swift programs do
// not see them.

import CPurgeablePressure
import Glibc
import Synchronization

/// What a `purgeable_pressure_watch_t` points to.
///
/// `@unchecked Sendable`: the callback and its context are only handed on.
@safe private final class CallbackWatch: @unchecked Sendable {
  private let callback: purgeable_pressure_callback_t
  private let context: UnsafeMutableRawPointer?
  private let isStopped = Atomic<Bool>(false)
  /// The thread that is in a call, 0 for none, and its process. No mutex: a child that is forked during a call does not have the
  /// thread that would give it back.
  private let thread = Atomic<UInt>(0)
  private let process = Atomic<pid_t>(0)
  /// Retained until the watch is stopped: in a child, this object may be kept by a call whose thread is not there.
  private let monitor = unsafe Atomic<UnsafeMutableRawPointer?>(nil)

  init(_ callback: purgeable_pressure_callback_t, _ context: UnsafeMutableRawPointer?) {
    unsafe self.callback = callback
    unsafe self.context = context
  }

  deinit { dropMonitor() }

  func start() {
    let core = MonitorCore(source: nil, callback: { [weak self] level in self?.call(level) })
    let made = unsafe Unmanaged.passRetained(PressureMonitor(core)).toOpaque()
    // The first call may have stopped it by now: then the monitor ends with this object.
    unsafe monitor.store(made, ordering: .sequentiallyConsistent)
  }

  private func dropMonitor() {
    guard let last = unsafe monitor.exchange(nil, ordering: .sequentiallyConsistent) else { return }
    unsafe Unmanaged<PressureMonitor>.fromOpaque(last).release()
  }

  /// Either this call sees that the watch is stopped, or `stop` sees this call.
  private func call(_ level: PressureLevel) {
    let caller = currentThread()
    process.store(getpid(), ordering: .sequentiallyConsistent)
    thread.store(caller, ordering: .sequentiallyConsistent)
    if !isStopped.load(ordering: .sequentiallyConsistent) { unsafe callback(level.rawValue, context) }
    // In a child that the callback forked, another call may have begun.
    _ = thread.compareExchange(expected: caller, desired: 0, ordering: .sequentiallyConsistent)
  }

  /// Waits for a call that is under way on another thread.
  func stop() {
    isStopped.store(true, ordering: .sequentiallyConsistent)
    while true {
      let caller = thread.load(ordering: .sequentiallyConsistent)
      if caller == 0 || caller == currentThread() || process.load(ordering: .sequentiallyConsistent) != getpid() { break }
      usleep(100)
    }
    dropMonitor()
  }
}

// swift-format-ignore: AlwaysUseLowerCamelCase
@c @implementation
func purgeable_pressure_watch(
  _ callback: purgeable_pressure_callback_t?, _ context: UnsafeMutableRawPointer?,
  _ watch: UnsafeMutablePointer<OpaquePointer?>?
) -> Int32 {
  guard let callback = unsafe callback, let watch = unsafe watch else { return EINVAL }
  // The objects are the runtime's, which ends the program where it gets no memory for them.
  guard MemoryReserve.isThere(MemoryReserve.ofObjects) else { return ENOMEM }
  let made = unsafe CallbackWatch(callback, context)
  // Released by purgeable_pressure_unwatch.
  unsafe watch.pointee = OpaquePointer(Unmanaged.passRetained(made).toOpaque())
  made.start()
  // Nobody would try again: the watch hears of nothing.
  let errorNumber = Maintainer.shared.statistics.threadErrorNumber
  if errorNumber != 0 { unsafe purgeable_pressure_unwatch(exchange(&watch.pointee, with: nil)) }
  return errorNumber
}

// swift-format-ignore: AlwaysUseLowerCamelCase
@c @implementation
func purgeable_pressure_unwatch(_ watch: OpaquePointer?) {
  guard let watch = unsafe watch else { return }
  // Safe: retained by purgeable_pressure_watch, and given back only once, as the header demands.
  unsafe Unmanaged<CallbackWatch>.fromOpaque(UnsafeRawPointer(watch)).takeRetainedValue().stop()
}

// swift-format-ignore: AlwaysUseLowerCamelCase
@c @implementation
func purgeable_pressure_level() -> Int32 { PurgeableMemory.pressureLevel.rawValue }
