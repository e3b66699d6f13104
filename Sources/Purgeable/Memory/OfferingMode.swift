// SPDX-License-Identifier: MIT
// When idle memory is put on offer.

import CPurgeable

/// When unlocked memory is put on offer to the kernel (MADV_FREE).
public enum OfferingMode: Sendable, Hashable, CaseIterable {
  /// Queued at the last unlock and offered in bulk soon after, neighbours merged. The cheapest, and the default.
  case deferred
  /// Offered inside the last unlock: one system call each time.
  case immediate
  /// Never offered: only the program itself discards.
  case never

  var code: purgeable_offering_t {
    switch self {
    case .deferred: .deferred
    case .immediate: .immediate
    case .never: .never
    }
  }
}
