// SPDX-License-Identifier: MIT
// The monitors that the library's thread works for.

/// All monitors, one after the other, as `ListedEngines` are caches: under the maintainer's mutex, for a moment each.
struct ListedMonitors: Sequence, IteratorProtocol {
  private var present: MonitorCore?
  private var number: UInt64 = 0

  mutating func next() -> MonitorCore? {
    let (link, last) = (present?.link, number)
    let found = Maintainer.shared.state.withLock { $0.monitors.client(after: link, number: last) }
    present = found?.client
    number = found?.number ?? number
    return present
  }
}
