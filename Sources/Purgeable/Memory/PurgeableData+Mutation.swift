// SPDX-License-Identifier: MIT
// Changing the bytes while an access is held.

extension PurgeableData {
  /// Appends a copy of the bytes. Stops the program when nobody holds an access.
  ///
  /// - Throws: `PurgeableError`: too large, out of memory. Nothing has changed then.
  /// - Complexity: amortised, one copy of `bytes`.
  public func append(_ bytes: RawSpan) throws(PurgeableError) {
    try unsafe change("append", .longer(by: bytes.byteCount)) { all, oldCount in
      unsafe all.storeBytes(bytes, at: oldCount)
    }
  }

  /// Appends a copy of a collection's bytes; see `append(_:)`.
  public func append(contentsOf bytes: some Collection<UInt8>) throws(PurgeableError) {
    try withRawSpan(of: bytes) { span throws(PurgeableError) in try append(span) }
  }

  /// Puts other bytes in the place of all there are. Stops the program when nobody holds an access.
  ///
  /// - Throws: `PurgeableError`: out of memory. Nothing has changed then.
  public func replaceBytes(with bytes: RawSpan) throws(PurgeableError) {
    try unsafe change("replaceBytes", .exactly(bytes.byteCount), keepsOld: false) { all, _ in
      unsafe all.storeBytes(bytes, at: 0)
    }
  }

  /// Puts other bytes in the place of all there are; see `replaceBytes(with:)`.
  public func replaceBytes(with bytes: some Collection<UInt8>) throws(PurgeableError) {
    try withRawSpan(of: bytes) { span throws(PurgeableError) in try replaceBytes(with: span) }
  }

  /// Puts as many other bytes in the place of some. Stops the program when nobody holds an access.
  ///
  /// - Throws: `PurgeableError`: invalid argument when they would not lie within the bytes there are; out of memory when somebody
  ///   reads meanwhile, so that a copy was needed. Nothing has changed then.
  public func replaceBytes(at offset: Int, with bytes: RawSpan) throws(PurgeableError) {
    try unsafe change("replaceBytes", .same) { all, count throws(PurgeableError) in
      guard offset >= 0, offset <= count, bytes.byteCount <= count - offset else {
        throw PurgeableError(
          .invalidArgument("offset"), in: "\(title).replaceBytes",
          explanation: "\(bytes.byteCount) bytes at \(offset) do not lie within \(count)")
      }
      unsafe all.storeBytes(bytes, at: offset)
    }
  }

  /// Puts a collection's bytes in the place of as many; see `replaceBytes(at:with:)`.
  public func replaceBytes(at offset: Int, with bytes: some Collection<UInt8>) throws(PurgeableError) {
    try withRawSpan(of: bytes) { span throws(PurgeableError) in try replaceBytes(at: offset, with: span) }
  }

  /// Puts other bytes, more or fewer or none, in the place of a range; what is behind the range moves. An empty range inserts.
  /// Stops the program when nobody holds an access.
  ///
  /// - Throws: `PurgeableError`: invalid argument when the range does not lie within the bytes there are; too large, out of
  ///   memory. Nothing has changed then.
  /// - Complexity: one copy of `bytes`, and one of what is behind the range if that moves; one of all where another region is
  ///   taken.
  public func replaceBytes(in range: Range<Int>, with bytes: RawSpan) throws(PurgeableError) {
    try unsafe change("replaceBytes", .replacing(range, by: bytes.byteCount)) { all, _ in
      unsafe all.storeBytes(bytes, at: range.lowerBound)
    }
  }

  /// Puts a collection's bytes in the place of a range; see `replaceBytes(in:with:)`.
  public func replaceBytes(in range: Range<Int>, with bytes: some Collection<UInt8>) throws(PurgeableError) {
    try withRawSpan(of: bytes) { span throws(PurgeableError) in try replaceBytes(in: range, with: span) }
  }

  /// Cuts off at `byteCount`, or adds zeros up to it. Stops the program when nobody holds an access.
  ///
  /// - Throws: `PurgeableError`: invalid argument (negative), too large, out of memory. Nothing has changed then.
  public func resize(to byteCount: Int) throws(PurgeableError) {
    guard byteCount >= 0 else {
      throw PurgeableError(.invalidArgument("byteCount"), in: "\(title).resize", explanation: "\(byteCount) is below 0")
    }
    try unsafe change("resize", .exactly(byteCount)) { _, _ in }
  }

  /// Lends the bytes to be changed in place. Stops the program when nobody holds an access.
  ///
  /// Other changes, and closures that begin to read, wait until `body` returns; reading or changing the same object within it
  /// stops the program. What `body` wrote stands, also when it throws. A closure with errors of its own type returns a `Result`.
  ///
  /// - Throws: `PurgeableError`: out of memory when somebody reads meanwhile, so that a copy was needed; or what `body` throws.
  @discardableResult
  public func withMutableBytes<Result: ~Copyable>(
    _ body: (inout MutableRawSpan) throws(PurgeableError) -> Result
  ) throws(PurgeableError) -> Result {
    var result: Result?
    try unsafe change("withMutableBytes", .same) { all, count throws(PurgeableError) in
      // Safe: nobody else reads or writes these bytes before `change` is through, and the span cannot leave `body`.
      var span = unsafe UnsafeMutableRawBufferPointer(rebasing: all.prefix(count)).mutableBytes
      result = try body(&span)
    }
    guard let result else { stop("\(title): withMutableBytes has neither a result nor an error") }
    return result
  }
}
