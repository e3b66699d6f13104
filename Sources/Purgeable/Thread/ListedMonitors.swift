// SPDX-License-Identifier: MIT
// The monitors that the library's thread works for.

/// A monitor as the list knows it. `@safe`: the monitor leaves the list before it ends, under the mutex under which this is read.
@safe struct UnownedMonitor: Sendable {
  unowned(unsafe) let monitor: MonitorCore
}

/// All monitors, one after the other, as `ListedClients` are caches: under the maintainer's mutex, for a moment each.
struct ListedMonitors: Sequence, IteratorProtocol {
  private var present: MonitorCore?
  private var number: UInt64 = 0

  mutating func next() -> MonitorCore? {
    let (link, last) = (present?.link, number)
    let found = Maintainer.shared.state.withLock { state -> (client: MonitorCore, number: UInt64)? in
      guard let found = state.monitors.client(after: link, number: last) else { return nil }
      return unsafe (found.client.monitor, found.number)
    }
    present = found?.client
    number = found?.number ?? number
    return present
  }
}
