// SPDX-License-Identifier: MIT
// Handlers that come and go.

extension PurgeableCache {
  /// Sets what is told of each departure, in place of an earlier handler, that of the initializer included: everything as
  /// `onDeparture` there. Departures that wait already go to the new handler. A handler may set and remove handlers. Any thread.
  ///
  /// - Throws: `PurgeableError` of kind `notSupported` where keys are not tracked: a page that the kernel takes takes the keys
  ///   along that lie in it.
  public func setDepartureHandler(_ handler: @escaping @Sendable (Departure<Key, Value>) -> Void) throws(PurgeableError) {
    guard let teller, case .tracked = form else {
      throw PurgeableError(
        .notSupported, in: "PurgeableCache '\(name)'.setDepartureHandler",
        explanation: "the keys of this cache lie in purgeable memory and may be lost; make it with tracksKeys: true")
    }
    teller.setHandler(.init(tell: handler, decode: { Value(purgeableBytes: $0) }))
  }

  /// Takes the handler away. Of what leaves after this returns nobody is told; a call that is under way goes on. Any thread.
  public func removeDepartureHandler() { teller?.setHandler(nil) }
}
