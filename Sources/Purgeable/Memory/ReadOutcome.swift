// SPDX-License-Identifier: MIT
// What a read without lock found.

/// What a read without lock found. Only after `intact` does the buffer hold content.
public enum ReadOutcome: Sendable, Hashable, CaseIterable {
  /// Every byte is what was written, all of them at one moment.
  case intact
  /// Content was lost; the buffer's bytes are unspecified.
  case discarded
  /// Somebody is writing, or wrote meanwhile; the buffer's bytes are unspecified. Ask again, or lock.
  case busy
}
