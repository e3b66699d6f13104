// SPDX-License-Identifier: MIT
// Collects the facts that the doctor judges: files under /proc and /sys, a few system calls, and the core's own probe.

import CPurgeable
import Glibc
import Purgeable

/// Facts about this machine, as they were found. nil: could not be found out.
package struct MachineFacts: Equatable, Sendable {
  /// Where pressure stall information can be had.
  package enum PressureSource: Equatable, Sendable {
    case missing
    /// Not compiled into this kernel.
    case notBuilt
    /// Compiled in, switched off at boot, or for this group.
    case off
    /// Can be read, but a trigger was refused.
    case readable
    /// A trigger was accepted: the kernel wakes us up.
    case triggers
  }

  /// A call that the library makes and that was refused.
  package struct Refusal: Equatable, Sendable {
    package var call: String
    /// An errno.
    package var number: Int32

    package init(_ call: String, _ number: Int32) {
      self.call = call
      self.number = number
    }
  }

  package struct Swap: Equatable, Sendable {
    package enum Kind: String, Sendable {
      case partition, file
      /// Compressed, in memory.
      case zram
    }

    package var name: String
    package var kind: Kind
    package var sizeBytes: UInt64
    package var usedBytes: UInt64
  }

  package var kernelRelease = "unknown"
  package var architecture = "unknown"
  package var environment = RunEnvironment()

  // From the core's probe.
  package var kernelClass = "unknown"
  package var pageSizeBytes: UInt64 = 0
  package var isConfirmedByPageout = false
  package var wipesOnFork = false
  package var isWipeConfirmed = false
  package var usesHugePages = false
  package var hasRestartableSequences = false

  /// Calls that the kernel, or a layer in front of it, refused; nil where none was tried.
  package var refusals: [Refusal]?
  /// 0: no filter of system calls on this process, 1: strict, 2: a filter (seccomp).
  package var seccompMode: UInt64?

  package var group: MemoryGroup?
  package var levels: [MemoryGroup.Level] = []
  package var tightest: MemoryGroup.Level?
  /// Whether this process may make groups inside of its own: what tests and the demonstration need for real pressure.
  package var mayMakeGroups = false
  /// Whether the kernel tells of a version 1 group: where `memory.pressure_level` is, and one may register.
  package var hasPressureLevel = false
  /// Whether it tells of a version 2 group that its limit has been met.
  package var hasGroupEvents = false
  package var machinePressure = PressureSource.missing
  package var groupPressure = PressureSource.missing
  package var memory: MachineMemory?
  package var swaps: [Swap] = []
  package var swappiness: UInt64?
  /// How much the group may swap out; nil for no bound.
  package var groupSwapLimitBytes: UInt64?
  /// Whether pages on their way to swap are first kept compressed in memory.
  package var usesZswap = false
  package var mlockedBytes: UInt64?
  /// The most this process may mlock; `.max` for no limit.
  package var mlockLimitBytes: UInt64?
  /// Soft limits of this process; `.max` for none.
  package var addressSpaceLimitBytes: UInt64?
  package var dataLimitBytes: UInt64?
  package var openFileLimit: UInt64?
  /// "always", "madvise" or "never".
  package var hugePages: String?
  package var overcommit: UInt64?
  package var mapCountLimit: UInt64?
  /// Whether the multi-generation LRU is in use; nil where the kernel has none.
  package var usesMultiGenerations: Bool?
  /// Pages used within this time are kept even if that means killing a process (`lru_gen/min_ttl_ms`).
  package var keptMilliseconds: UInt64?

  package init() {}

  /// Looks at the files below `root` and, for the machine's real root, asks the kernel.
  package static func current(root: String = "/") -> MachineFacts {
    var facts = MachineFacts()
    facts.readFiles(root: root)
    if root == "/" { facts.askKernel() }
    return facts
  }

  private mutating func readFiles(root: String) {
    func path(_ name: String) -> String { MemoryGroup.join(root, name) }
    environment = RunEnvironment.current(root: root)
    kernelRelease = Self.firstLine(SmallFile.text(path("proc/sys/kernel/osrelease"))) ?? kernelRelease
    group = MemoryGroup.current(root: root)
    levels = group?.levels() ?? []
    tightest = group?.tightest()
    if let own = group?.directories[0] {
      func allows(_ file: String, _ mode: Int32) -> Bool { unsafe access("\(own)/\(file)", mode) == 0 }
      hasPressureLevel = allows("memory.pressure_level", R_OK) && allows("cgroup.event_control", W_OK)
      hasGroupEvents = group?.version == .v2 && (allows("memory.events.local", R_OK) || allows("memory.events", R_OK))
      groupPressure = Self.pressure(own + "/memory.pressure", triesTrigger: root == "/")
      // From Linux 6.1 a group can do without, and then has no such file.
      if groupPressure == .missing, SmallFile.number(own + "/cgroup.pressure") == 0 { groupPressure = .off }
      mayMakeGroups = unsafe group?.isOwnDirectory == true && access(own, W_OK | X_OK) == 0
    }
    machinePressure = Self.pressure(path("proc/pressure/memory"), triesTrigger: root == "/")
    if machinePressure == .missing { machinePressure = Self.missingPressure(root: root, release: kernelRelease) }
    memory = MachineMemory.current(root: root)
    swaps = Self.swaps(SmallFile.text(path("proc/swaps")) ?? "")
    swappiness = SmallFile.number(path("proc/sys/vm/swappiness"))
    groupSwapLimitBytes = group.flatMap(Self.swapLimitBytes)
    usesZswap = SmallFile.text(path("sys/module/zswap/parameters/enabled")).map(Self.isOn) ?? false
    let status = SmallFile.text(path("proc/self/status")) ?? ""
    mlockedBytes = SmallFile.number(after: "VmLck", in: status)
    seccompMode = SmallFile.number(after: "Seccomp", in: status)
    let limits = SmallFile.text(path("proc/self/limits")) ?? ""
    addressSpaceLimitBytes = Self.softLimit("Max address space", in: limits)
    dataLimitBytes = Self.softLimit("Max data size", in: limits)
    openFileLimit = Self.softLimit("Max open files", in: limits)
    hugePages = SmallFile.text(path("sys/kernel/mm/transparent_hugepage/enabled")).flatMap(Self.chosen)
    overcommit = SmallFile.number(path("proc/sys/vm/overcommit_memory"))
    mapCountLimit = SmallFile.number(path("proc/sys/vm/max_map_count"))
    // A bit mask in hexadecimal; bit 0 is the main switch (Documentation/admin-guide/mm/multigen_lru.rst).
    usesMultiGenerations = SmallFile.text(path("sys/kernel/mm/lru_gen/enabled")).flatMap { text in
      let digits = text.drop { $0 == "0" || $0 == "x" }.prefix(while: \.isHexDigit)
      return (UInt64(digits, radix: 16) ?? 0) & 1 == 1
    }
    keptMilliseconds = SmallFile.number(path("sys/kernel/mm/lru_gen/min_ttl_ms"))
  }

  private mutating func askKernel() {
    var probe = purgeable_probe_t()
    // Fills in the struct on success and leaves it alone otherwise.
    if unsafe purgeable_probe(&probe) == 0 {
      // A string constant of the core's.
      kernelClass = unsafe String(cString: purgeable_kernel_class_name(probe.kernel_class))
      isConfirmedByPageout = probe.confirmed_by_pageout
      wipesOnFork = probe.wipe_on_fork
      isWipeConfirmed = probe.wipe_is_confirmed
      usesHugePages = probe.huge_pages
      hasRestartableSequences = probe.rseq
    }
    // The offer has no effect, and no other layer found explains it: an emulator translates system calls and leaves this one
    // out.
    if kernelClass == "no-op", !environment.standsInForKernel { environment.add(.emulated, by: "offers without effect") }
    askForCalls()
    pageSizeBytes = UInt64(purgeable_page_size_bytes())
    var limit = rlimit()
    if unsafe getrlimit(__rlimit_resource_t(__RLIMIT_MEMLOCK.rawValue), &limit) == 0 {
      mlockLimitBytes = UInt64(limit.rlim_cur)
    }
    var name = utsname()
    if unsafe uname(&name) == 0 {
      // `uname` ends each field with a zero.
      architecture = unsafe withUnsafeBytes(of: &name.machine) { bytes in
        unsafe String(decoding: bytes.prefix { $0 != 0 }, as: UTF8.self)
      }
    }
  }

  private mutating func askForCalls() {
    var answers = purgeable_call_answers_t()
    // As above.
    guard unsafe purgeable_probe_calls(&answers) == 0 else { return }
    var asked = [
      Refusal("MADV_FREE", answers.offer), Refusal("MADV_DONTNEED", answers.give_back), Refusal("MADV_PAGEOUT", answers.page_out),
      Refusal("MADV_WIPEONFORK", answers.wipe_on_fork), Refusal("MADV_DONTDUMP", answers.dont_dump),
      Refusal("mincore", answers.mincore), Refusal("getrandom", answers.random),
      Refusal("process_madvise", answers.offer_by_descriptor),
    ]
    // Kernels without huge pages do not know the word.
    if hugePages != nil || answers.no_huge_page != EINVAL { asked.append(Refusal("MADV_NOHUGEPAGE", answers.no_huge_page)) }
    refusals = asked.filter { $0.number != 0 }
  }
}
