// SPDX-License-Identifier: MIT
// The sleep of the library's thread: ended by a descriptor, a time or a wake-up call.

import Glibc

/// Wakes one sleeper. A wake that comes before the sleep is not lost.
///
/// Sleeps in poll(2) over an eventfd of its own and whatever else it is given. When there is no descriptor to be had, or poll
/// fails, in pthread_cond_timedwait(3), for a second at most: then it can still be woken, but the descriptors are only looked at
/// when it wakes.
///
/// A program that closes every descriptor closes the eventfd too, and poll does not notice. Then nothing that is left here can
/// wake the sleeper: `wake` says so, and another sleeper takes its place. The first, should it ever wake, finds that it was
/// replaced.
///
/// `@unchecked Sendable`: the fields are a mutex and what it guards.
final class WakeSignal: @unchecked Sendable {
  private let mutex = WaitableMutex()
  /// Cleared while the sleeper sleeps.
  let awake = AwakeMark()
  private var isSet = false
  private var event: OwnedDescriptor?
  /// Whether the sleeper is in poll, on the eventfd that `event` is.
  private var isPolling = false
  /// The last poll did.
  private var pollFails = false
  private var currentSleeper: UInt64 = 0

  /// Around a fork (ForkGuard.swift).
  func lockForFork() { mutex.lock() }
  func unlockAfterFork() { mutex.unlock() }
  /// The parent's sleeper is not here.
  func forgetInChild() { mutex.forgetWaiters() }

  /// Before a thread is started: opens the eventfd. One that was inherited by a fork is closed: it would wake the parent.
  func prepare() {
    mutex.withLock {
      event?.close()
      event = OwnedDescriptor.event()
      isSet = false
      (isPolling, pollFails) = (false, false)
      currentSleeper += 1
    }
  }

  /// The number of the current sleeper: the thread started after `prepare`, or after a wake that no thread could hear.
  var sleeper: UInt64 { mutex.withLock { currentSleeper } }

  /// When the thread ends: nothing stays open.
  func release() {
    mutex.withLock {
      event?.close()
      event = nil
    }
  }

  /// The eventfd, while there is one.
  var descriptor: Int32? { mutex.withLock { event?.number } }

  /// Whether descriptors end the sleep.
  var hearsDescriptors: Bool { mutex.withLock { event != nil && !pollFails } }

  /// False where the sleeper cannot hear the wake: another thread has to be started, and finds itself woken.
  func wake() -> Bool {
    mutex.withLock {
      isSet = true
      mutex.signal()
      guard let event, !event.signal() else { return true }
      self.event = OwnedDescriptor.event()
      self.event?.signal()
      guard isPolling else { return true }
      isPolling = false
      currentSleeper += 1
      return false
    }
  }

  /// Sleeps until woken, until a descriptor is ready, or for so many nanoseconds (nil: for ever); answers the descriptors that
  /// are ready, with what occurred; nil when this sleeper was replaced. With `awake` set.
  func wait(_ sleeper: UInt64, for nanoseconds: UInt64?, _ descriptors: DescriptorList) -> DescriptorList? {
    let own = mutex.withLock { () -> OwnedDescriptor? in
      // The eventfd was closed by the program while this thread was awake, or could not be made. A wake set before is not lost.
      if event?.isOurs != true {
        event = OwnedDescriptor.event()
        if isSet { event?.signal() }
      }
      isPolling = event != nil
      return event
    }
    var isWoken = false
    guard let own else {
      sleep(for: nanoseconds)
      return poll(descriptors, nil, &isWoken, milliseconds: 0) ?? DescriptorList()
    }
    let ready = poll(descriptors, own, &isWoken, milliseconds: Self.milliseconds(nanoseconds))
    if ready == nil { sleep(for: nanoseconds) }
    return mutex.withLock {
      pollFails = ready == nil
      guard currentSleeper == sleeper else { return nil }
      isSet = false
      isPolling = false
      if isWoken { own.drain() }
      return ready ?? DescriptorList()
    }
  }

  private func sleep(for nanoseconds: UInt64?) {
    let deadline = MonotonicTime.now + min(nanoseconds ?? .max, 1_000_000_000)
    awake.clear()
    defer { awake.set() }
    mutex.withLock {
      while !isSet, mutex.wait(until: deadline) {}
      isSet = false
    }
  }

  /// Those of the descriptors that are ready, and whether `own` is. An interruption by a signal is an early end with none; nil
  /// after another error, as where more descriptors are polled than the process may have now.
  private func poll(
    _ descriptors: DescriptorList, _ own: OwnedDescriptor?, _ isWoken: inout Bool, milliseconds: Int32
  ) -> DescriptorList? {
    var ready = DescriptorList()
    // One more than a list has room for.
    var records = InlineArray<129, pollfd>(repeating: pollfd(fd: -1, events: Int16(POLLIN), revents: 0))
    var count = 0
    for item in descriptors {
      records[count] = pollfd(fd: item.descriptor, events: item.events, revents: 0)
      count += 1
    }
    if let own {
      records[count].fd = own.number
      count += 1
    }
    guard count > 0 else { return ready }
    var span = records.mutableSpan
    // The records are lent for the length of the call, and as many were filled in.
    let found = unsafe span.withUnsafeMutableBufferPointer { records in
      awake.clear()
      defer { awake.set() }
      return unsafe Glibc.poll(records.baseAddress, nfds_t(count), milliseconds)
    }
    if found < 0, errno != EINTR { return nil }
    guard found > 0 else { return ready }
    for index in 0..<descriptors.count where records[index].revents != 0 {
      ready.append(PressureDescriptor(descriptor: records[index].fd, events: records[index].revents))
    }
    isWoken = own != nil && records[count - 1].revents != 0
    return ready
  }

  /// Rounded up: to wake a moment too early would be to wake twice.
  private static func milliseconds(_ nanoseconds: UInt64?) -> Int32 {
    guard let nanoseconds else { return -1 }
    return Int32((min(nanoseconds, 3_600_000_000_000) + 999_999) / 1_000_000)
  }
}
