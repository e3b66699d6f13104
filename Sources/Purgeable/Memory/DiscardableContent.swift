// SPDX-License-Identifier: MIT
// The protocol for objects whose content may go while nobody uses it, with the meaning of NSDiscardableContent.

/// An object that keeps content which may be discarded while nobody uses it, and knows whether it was.
///
/// An access counter decides: it is 1 when the object is born, `beginContentAccess()` counts up, `endContentAccess()` counts
/// down, and content is discarded only at 0. A cache of objects calls `discardContentIfPossible()` on what it drops, so that an
/// object in use keeps its content.
///
/// Discarded is a state, not an error: it lasts until the object is refilled, by itself in `beginContentAccess()` if it knows
/// how, or by a function of its own. Conforming types are safe to use from any thread.
public protocol DiscardableContent: AnyObject, Sendable {
  /// Counts an access, so that the content stays until the matching `endContentAccess()`.
  ///
  /// - Returns: `true`: counted, and the content is there; perhaps made anew just now, where the object was given a way to.
  ///   `false`: the content was discarded, or may not be kept now, and the counter is as before: nothing has to be ended.
  func beginContentAccess() -> Bool

  /// Ends an access. At 0 the content may be discarded from here on. One end too many leaves the counter at 0 and is no crash.
  func endContentAccess()

  /// Discards the content if the counter is 0; else, and where it is discarded already, does nothing.
  func discardContentIfPossible()

  /// Whether the content was discarded and not been made anew since.
  var isContentDiscarded: Bool { get }
}

extension DiscardableContent {
  /// Begins an access, calls `body` with the object, and ends the access, also when `body` throws.
  ///
  /// What an `autoContentAccessingProxy` does by its lifetime this does by a scope, so that no access can be forgotten.
  ///
  /// - Returns: what `body` returns; `nil`, without calling it, when the content was discarded.
  @discardableResult
  public func withContentAccess<Result: ~Copyable, Failure: Error>(
    _ body: (Self) throws(Failure) -> Result
  ) throws(Failure) -> Result? {
    guard beginContentAccess() else { return nil }
    defer { endContentAccess() }
    return try body(self)
  }

  /// Begins an access, awaits `body` with the object, and ends the access, also when `body` throws or its task is cancelled.
  ///
  /// `body` runs on the caller's actor, before and after each suspension, so it may use what belongs to that actor. The content
  /// stays for as long as `body` is suspended.
  ///
  /// - Returns: what `body` returns; `nil`, without calling it, when the content was discarded.
  @discardableResult
  public nonisolated(nonsending) func withContentAccess<Result: ~Copyable, Failure: Error>(
    _ body: nonisolated(nonsending) (Self) async throws(Failure) -> Result
  ) async throws(Failure) -> Result? {
    guard beginContentAccess() else { return nil }
    defer { endContentAccess() }
    return try await body(self)
  }
}
