// SPDX-License-Identifier: MIT
// What this machine's kernel really does with memory on offer, found out by trying.

import CPurgeable

/// What this machine can do for purgeable memory.
///
/// Kernels and sandboxes differ: some discard on demand, some at once, some never. The library tries it out once, with 64 pages,
/// and goes by the answer; a program can ask for the answer to log it.
public struct KernelSupport: Sendable, Hashable {
  /// What the kernel was seen to do with memory on offer.
  public enum Behavior: Sendable, Hashable, CaseIterable {
    /// Content stays after the offer and goes when the memory is needed.
    case works
    /// Content goes at the moment of the offer (swapless Linux 4.5 to 4.11).
    case immediate
    /// The offer is accepted and nothing is ever taken (some emulators).
    case noEffect
    /// The offer is refused (before Linux 4.5, gVisor).
    case unsupported
    /// All memory of this process is mlocked, so that the offer is refused.
    case mlocked
    /// Part of what is offered is taken, and part never, time after time (some emulators).
    case partial
  }

  /// What becomes of memory on offer.
  public let behavior: Behavior

  /// The page size in bytes: a run-time fact (4, 16 or 64 KiB).
  public let pageByteCount: Int

  /// Whether `behavior` was confirmed by a real discard (MADV_PAGEOUT), and not only by what the offer answered.
  public let isConfirmed: Bool

  /// Whether a forked child finds everything discarded because the kernel wipes it (MADV_WIPEONFORK).
  public let wipesOnFork: Bool

  /// Whether `wipesOnFork` was found by a child that looked, and not only by what the kernel answered: some emulators accept the
  /// call and ignore it. A process with more than 128 MiB resident is not forked for that.
  public let isWipeConfirmed: Bool

  /// Whether one byte in use keeps up to 2 MiB: small pages are refused (MADV_NOHUGEPAGE) where huge ones are the rule.
  public let usesHugePages: Bool

  /// Whether reads without lock are proven (restartable sequences), and not only very probably right.
  public let provesLockFreeReads: Bool

  /// Finds out, the first time by about 20 system calls, later without any. Any thread.
  ///
  /// - Throws: `PurgeableError` when the 64 pages could not be mapped; a later call tries again.
  public static func probe() throws(PurgeableError) -> KernelSupport {
    var probe = purgeable_probe_t()
    try PurgeableError.check(unsafe purgeable_probe(&probe), in: "KernelSupport.probe", call: "mmap")
    return KernelSupport(probe)
  }

  init(_ probe: purgeable_probe_t) {
    behavior = Behavior(probe.kernel_class)
    pageByteCount = Int(probe.page_size_bytes)
    isConfirmed = probe.confirmed_by_pageout
    wipesOnFork = probe.wipe_on_fork
    isWipeConfirmed = probe.wipe_is_confirmed
    usesHugePages = probe.huge_pages
    provesLockFreeReads = probe.rseq
  }
}

extension KernelSupport.Behavior: CustomStringConvertible {
  init(_ kernelClass: purgeable_kernel_class_t) {
    switch kernelClass {
    case .works: self = .works
    case .immediate: self = .immediate
    case .no_op: self = .noEffect
    case .unsupported: self = .unsupported
    case .mlocked: self = .mlocked
    case .partial: self = .partial
    }
  }

  /// The name that the C core and the command-line tool use too: "works", "immediate", "no-op", "unsupported", "mlocked",
  /// "partial".
  public var description: String {
    switch self {
    case .works: "works"
    case .immediate: "immediate"
    case .noEffect: "no-op"
    case .unsupported: "unsupported"
    case .mlocked: "mlocked"
    case .partial: "partial"
    }
  }
}
