// SPDX-License-Identifier: MIT
// What the library's thread sleeps on: descriptors, a time, and being woken.

import Glibc

/// Wakes one sleeper. A wake that comes before the sleep is not lost.
///
/// Sleeps in poll(2) over an eventfd of its own and whatever else it is given. When there is no descriptor to be had, in
/// pthread_cond_timedwait(3): then it can still be woken, but the descriptors are only looked at when it wakes.
///
/// A program that closes every descriptor closes the eventfd too, and poll does not notice. Then nothing that is left here can wake
/// the sleeper: `wake` says so, and another sleeper takes its place. The first, should it ever wake, finds that it was replaced.
///
/// `@unchecked Sendable`: the fields are a pthread mutex, its condition, and what the mutex guards.
@safe final class WakeSignal: @unchecked Sendable {
  private let mutex = UnsafeMutablePointer<pthread_mutex_t>.allocate(capacity: 1)
  private let condition = UnsafeMutablePointer<pthread_cond_t>.allocate(capacity: 1)
  private var isSet = false
  private var event: OwnedDescriptor?
  /// Whether the sleeper is in poll, on the eventfd that `event` is.
  private var isPolling = false
  private var currentSleeper: UInt64 = 0

  init() {
    unsafe pthread_mutex_init(mutex, nil)
    var attributes = pthread_condattr_t()
    unsafe pthread_condattr_init(&attributes)
    unsafe pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC)
    unsafe pthread_cond_init(condition, &attributes)
    unsafe pthread_condattr_destroy(&attributes)
  }

  // Lives as long as the process, as the thread may.

  private func withMutex<Result>(_ body: () -> Result) -> Result {
    unsafe pthread_mutex_lock(mutex)
    defer { unsafe pthread_mutex_unlock(mutex) }
    return body()
  }

  /// Around a fork (ForkGuard.swift).
  func lockForFork() { unsafe pthread_mutex_lock(mutex) }
  func unlockAfterFork() { unsafe pthread_mutex_unlock(mutex) }

  /// Before a thread is started: opens the eventfd. One that was inherited by a fork is closed: it would wake the parent.
  func prepare() {
    withMutex {
      event?.close()
      event = OwnedDescriptor.event()
      isSet = false
      isPolling = false
      currentSleeper += 1
    }
  }

  /// The number of whoever sleeps from here on: the thread that was started after `prepare`, or after a wake that nobody could hear.
  var sleeper: UInt64 { withMutex { currentSleeper } }

  /// When the thread ends: nothing stays open.
  func release() {
    withMutex {
      event?.close()
      event = nil
    }
  }

  /// The eventfd, while there is one.
  var descriptor: Int32? { withMutex { event?.number } }

  /// Whether descriptors end the sleep.
  var hearsDescriptors: Bool { withMutex { event != nil } }

  /// False where the sleeper cannot hear it: another one has to be started, and finds itself woken.
  func wake() -> Bool {
    withMutex {
      isSet = true
      unsafe pthread_cond_signal(condition)
      guard let event, !event.signal() else { return true }
      self.event = OwnedDescriptor.event()
      self.event?.signal()
      guard isPolling else { return true }
      isPolling = false
      currentSleeper += 1
      return false
    }
  }

  /// Sleeps until woken, until a descriptor is ready, or until the time (nil: for ever); answers the descriptors that are ready, with
  /// what occurred; nil when this sleeper was replaced.
  func wait(_ sleeper: UInt64, until deadline: UInt64?, _ descriptors: [PressureDescriptor]) -> [PressureDescriptor]? {
    let own = withMutex { () -> OwnedDescriptor? in
      // Closed by somebody while we were awake, or there was none to be had. What was set before is not lost.
      if event?.isOurs != true {
        event = OwnedDescriptor.event()
        if isSet { event?.signal() }
      }
      isPolling = event != nil
      return event
    }
    guard let own else {
      sleep(until: deadline)
      return Self.poll(descriptors, milliseconds: 0)
    }
    let items = [PressureDescriptor(descriptor: own.number, events: Int16(POLLIN))] + descriptors
    let ready = Self.poll(items, milliseconds: Self.milliseconds(until: deadline))
    return withMutex {
      guard currentSleeper == sleeper else { return nil }
      isSet = false
      isPolling = false
      if ready.first?.descriptor == own.number { own.drain() }
      return ready.filter { $0.descriptor != own.number }
    }
  }

  private func sleep(until deadline: UInt64?) {
    unsafe pthread_mutex_lock(mutex)
    while !isSet {
      guard let deadline else {
        unsafe pthread_cond_wait(condition, mutex)
        continue
      }
      var time = timespec(tv_sec: Int(deadline / 1_000_000_000), tv_nsec: Int(deadline % 1_000_000_000))
      if unsafe pthread_cond_timedwait(condition, mutex, &time) == ETIMEDOUT { break }
    }
    isSet = false
    unsafe pthread_mutex_unlock(mutex)
  }

  /// Those of the descriptors that are ready. An interruption by a signal is an early end with none.
  private static func poll(_ items: [PressureDescriptor], milliseconds: Int32) -> [PressureDescriptor] {
    guard !items.isEmpty else { return [] }
    var records = items.map { pollfd(fd: $0.descriptor, events: $0.events, revents: 0) }
    // The array is not touched by anybody else while its buffer is lent.
    let count = unsafe records.withUnsafeMutableBufferPointer { records in
      unsafe Glibc.poll(records.baseAddress, nfds_t(records.count), milliseconds)
    }
    guard count > 0 else { return [] }
    return records.filter { $0.revents != 0 }.map { PressureDescriptor(descriptor: $0.fd, events: $0.revents) }
  }

  /// Rounded up: to wake a moment too early would be to wake twice.
  private static func milliseconds(until deadline: UInt64?) -> Int32 {
    guard let deadline else { return -1 }
    let now = MonotonicTime.now
    guard deadline > now else { return 0 }
    return Int32(min((deadline - now + 999_999) / 1_000_000, 3_600_000))
  }
}

/// Nanoseconds since some moment before the process began.
enum MonotonicTime {
  static var now: UInt64 {
    var time = timespec()
    unsafe clock_gettime(CLOCK_MONOTONIC, &time)
    return UInt64(time.tv_sec) * 1_000_000_000 + UInt64(time.tv_nsec)
  }
}
