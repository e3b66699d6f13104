// SPDX-License-Identifier: MIT
// The table of commands, in the order in which the help lists them.

extension Command {
  package static let all: [Command] = [
    .doctor,
    .demo,
    .stress,
    .replay,
    .advise,
    .report,
    .store,
  ]

  /// Commands that the tool gives to itself: they talk over pipes, and are no use by hand.
  package static let inner = demoChildren + stressChildren + replayChildren
}
