// SPDX-License-Identifier: MIT
// The tests' process hears nothing of the machine: neighbours that are short of memory would have its caches give entries back.

import CPressureCases
import Purgeable

/// A source that never says anything.
private final class QuietMachine: PressureSource {
  let name = "a quiet machine"

  func level(ready: [PressureDescriptor]) -> PressureLevel { .normal }
}

// Called once, before `main`, in the tests' process and in those of exit tests (quiet_machine.c).
// swift-format-ignore: AlwaysUseLowerCamelCase
@c @implementation
public func pressure_cases_begin() { PurgeableMemory.pressureSource = QuietMachine() }

/// For exit tests about the real sources: from here on this process hears of its machine, as every program does.
func hearThisMachine() { PurgeableMemory.pressureSource = nil }
