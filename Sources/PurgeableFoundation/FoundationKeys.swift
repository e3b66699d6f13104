// SPDX-License-Identifier: MIT
// Foundation's types as keys with bytes of their own: UUID, Data and URL lie in purgeable memory beside their values.

public import Foundation
public import Purgeable

extension UUID: PurgeableKey {}

extension Data: PurgeableKey {}

/// By the text that URLs are equal by: `URL(string: "b", relativeTo: a)` and its `absoluteURL` are two keys, as they are two URLs
/// to `==`.
extension URL: PurgeableKey {}
