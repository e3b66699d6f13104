// SPDX-License-Identifier: MIT
// The parts of the demonstration, as they are told over pipes and shown.

/// The parts of the demonstration, in order.
enum DemoPhase: UInt64, Sendable {
  case loading = 1
  case reading
  case measuring
  case comparing
  case dictionary
  case replaying

  var title: String {
    switch self {
    case .loading: "filling the cache"
    case .reading: "reading under pressure"
    case .measuring: "measuring hits and reloads"
    case .comparing: "comparing what is left with the files"
    case .dictionary: "the same with a dictionary"
    case .replaying: "the same reads in the room that was left"
    }
  }
}

extension Progress {
  mutating func show(_ phase: DemoPhase, share: Double?, _ details: String) {
    show(phase.title, share: share, details)
  }
}
