// SPDX-License-Identifier: MIT
// Errors as Foundation shows them.

public import Foundation
public import Purgeable

extension PurgeableError: LocalizedError {
  /// What `description` says, so that `localizedDescription` says it, too. English.
  public var errorDescription: String? { description }
}
