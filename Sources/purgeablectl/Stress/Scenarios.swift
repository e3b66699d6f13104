// SPDX-License-Identifier: MIT
// The table of scenarios, in the order in which `--all` runs them.

enum Scenarios {
  static let all: [Scenario] = [.overcommit, .compare, .neighbour, .stopped, .streaming, .core, .forks, .locked, .hot]
}
