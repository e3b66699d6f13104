// SPDX-License-Identifier: MIT
// How much an entry is worth to its program beside the others.

/// How much an entry is worth beside the others of its cache, as the program sees it.
public enum EntryPriority: Sendable, Hashable, CaseIterable {
  /// Goes before all others, until its first hit makes it normal: for what may be wanted soon.
  case speculative
  /// The order of eviction decides.
  case normal
  /// Never on offer, so that the kernel cannot take it, and never evicted, until it is made normal, removed or expired. A state,
  /// not a count; a new value under the key is pinned too, but not one that is stored after its end. There is a limit of bytes
  /// (`PurgeableCache.pinnedByteLimit`). Limits of entries and costs may be exceeded by what is pinned, and a normal entry that
  /// is stored beside it leaves at once then; where pinned entries fill a byte limit, stores are refused (`outOfMemory`).
  case pinned
}
