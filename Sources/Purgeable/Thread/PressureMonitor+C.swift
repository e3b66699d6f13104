// SPDX-License-Identifier: MIT
// The C functions; purgeable_pressure.h has the documentation. Not `public`: C programs link these functions, Swift programs do
// not see them.

import CPurgeablePressure
import Glibc

/// What a `purgeable_pressure_watch_t` points to.
///
/// `@unchecked Sendable`: the flag is guarded by the mutex; the callback and its context are only handed on.
@safe private final class CallbackWatch: @unchecked Sendable {
  private let callback: purgeable_pressure_callback_t
  private let context: UnsafeMutableRawPointer?
  /// Held during a call, so that `stop` waits for it. Recursive: the callback may stop the watch.
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private var isStopped = false
  private let monitor = Guarded<PressureMonitor?>(nil)

  init(_ callback: purgeable_pressure_callback_t, _ context: UnsafeMutableRawPointer?) {
    unsafe self.callback = callback
    unsafe self.context = context
    var attributes = pthread_mutexattr_t()
    unsafe pthread_mutexattr_init(&attributes)
    unsafe pthread_mutexattr_settype(&attributes, Int32(PTHREAD_MUTEX_RECURSIVE))
    unsafe pthread_mutex_init(mutex, &attributes)
    unsafe pthread_mutexattr_destroy(&attributes)
  }

  deinit {
    unsafe pthread_mutex_destroy(mutex)
    unsafe mutex.deallocate()
  }

  func start() {
    let core = MonitorCore(source: nil, callback: { [weak self] level in self?.call(level) })
    let monitor = PressureMonitor(core)
    self.monitor.withLock { $0 = monitor }
  }

  private func call(_ level: PressureLevel) {
    unsafe pthread_mutex_lock(mutex)
    if !isStopped { unsafe callback(level.rawValue, context) }
    unsafe pthread_mutex_unlock(mutex)
  }

  func stop() {
    unsafe pthread_mutex_lock(mutex)
    isStopped = true
    unsafe pthread_mutex_unlock(mutex)
    let last = monitor.withLock { monitor -> PressureMonitor? in
      defer { monitor = nil }
      return monitor
    }
    _ = last
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
  return 0
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
