// SPDX-License-Identifier: MIT
// Findings about the kernel: what it does with memory on offer, and what else the library asks of it.

import Purgeable
import ToolSupport

/// The two leading numbers of a kernel release, as in "6.18.44-generic".
struct KernelVersion: Comparable {
  var major: Int
  var minor: Int

  init(_ major: Int, _ minor: Int) {
    self.major = major
    self.minor = minor
  }

  init?(release: String) {
    let numbers = release.split(separator: ".").prefix(2).map { $0.prefix(while: \.isNumber) }
    guard numbers.count == 2, let major = Int(numbers[0]), let minor = Int(numbers[1]) else { return nil }
    self.init(major, minor)
  }

  static func < (left: KernelVersion, right: KernelVersion) -> Bool {
    (left.major, left.minor) < (right.major, right.minor)
  }
}

extension Doctor {
  /// All findings, in the order in which they are shown.
  package static func findings(_ facts: MachineFacts) -> [Finding] {
    [environment(facts), kernel(facts), offering(facts), pageout(facts), calls(facts), sequences(facts), fork(facts)]
      + [pageSize(facts), reclaim(facts)]
      + [group(facts), groupLimit(facts), pageCache(facts), ownGroups(facts), pressure(facts), memory(facts), swap(facts)]
      + [mlock(facts), hugePages(facts), overcommit(facts), mapCount(facts), addressSpace(facts), openFiles(facts)]
  }

  static func kernel(_ facts: MachineFacts) -> Finding {
    let value = facts.kernelRelease
    guard let version = KernelVersion(release: value) else {
      return Finding(
        "kernel", .limited, value, meaning: "The version cannot be told, so known faults of old kernels cannot be ruled out.",
        remedy: "Mount /proc (mount -t proc proc /proc), and compare uname -r with 5.18.")
    }
    if version < KernelVersion(4, 5) {
      return Finding(
        "kernel", .bad, value, meaning: "There is no MADV_FREE: memory cannot be offered.",
        remedy: "Install and boot Linux 5.18 or later; uname -r says what runs.")
    }
    if facts.architecture.hasPrefix("aarch64"), version < KernelVersion(5, 11) {
      return Finding(
        "kernel", .limited, value,
        meaning: "On this processor, kernels before 5.11 can lose content that was locked again shortly before a fork.",
        remedy: "Install and boot Linux 5.18 or later; until then use posix_spawn in the place of fork.")
    }
    if version < KernelVersion(5, 18) {
      return Finding(
        "kernel", .limited, value,
        meaning: "Before 5.18, direct input (O_DIRECT) into memory that is on offer can be lost. Locked content is safe.",
        remedy:
          "Install and boot Linux 5.18 or later, or a distribution's kernel that has the correction; until then lock content "
          + "before a read with O_DIRECT into it.")
    }
    return Finding("kernel", .good, value, meaning: "None of the known faults with memory on offer.")
  }

  static func offering(_ facts: MachineFacts) -> Finding {
    let without = "Caches evict by themselves and give memory back at once; without limits they take a quarter of the memory."
    switch facts.kernelClass {
    case "works":
      return Finding(
        "offering", .good, "works",
        meaning: "Content stays after it was offered (MADV_FREE), and goes page by page when the memory is needed.")
    case "immediate":
      return Finding(
        "offering", .limited, "immediate",
        meaning: "The kernel takes memory at the moment it is offered: correct, but every offer is a loss.",
        remedy: "Install and boot Linux 4.12 or later; until then some swap: fallocate -l 1G /swap, mkswap /swap, swapon /swap.")
    case "no-op":
      return Finding(
        "offering", .bad, "no-op", meaning: "The kernel accepts offers and never takes anything. \(without)",
        remedy: "Run a build for this machine's own processor, on its own kernel; emulators of system calls (qemu-user) do this.")
    case "unsupported":
      return Finding(
        "offering", .bad, "unsupported", meaning: "The kernel refuses offers (MADV_FREE). \(without)",
        remedy: refusedOffers(facts))
    case "mlocked":
      return Finding(
        "offering", .bad, "mlocked", meaning: "All memory of this process is mlocked, so offers are refused. \(without)",
        remedy: "Take MCL_FUTURE out of the program's mlockall, or call munlockall() before the first cache is made.")
    case "partial":
      return Finding(
        "offering", .bad, "partial",
        meaning: "Of what is offered the kernel takes a part, and a part never, each time it was tried. \(without)",
        remedy: "Run on the kernel itself: something before it shortens the call (an emulator, a preloaded library).")
    default:
      return Finding(
        "offering", .bad, facts.kernelClass, meaning: "It could not be tried: not even a small mapping was granted.",
        remedy: "Raise the limits on memory and mappings: ulimit -v unlimited; sysctl vm.max_map_count=65530.")
    }
  }

  private static func refusedOffers(_ facts: MachineFacts) -> String {
    if facts.environment.standsInForKernel { return "See environment: offers need Linux's own kernel." }
    if let refusal = facts.refusals?.first(where: { $0.call == "MADV_FREE" }), refusal.number != 22 {
      return allow(["madvise"], facts)
    }
    return "Install and boot Linux 5.18 or later, and run outside of sandboxes that stand in for the kernel, such as gVisor."
  }

  static func pageout(_ facts: MachineFacts) -> Finding {
    if facts.isConfirmedByPageout {
      return Finding(
        "page-out", .good, "works",
        meaning: "The kernel discards on request (MADV_PAGEOUT): the answer above was seen, and tests need no rights.")
    }
    return Finding(
      "page-out", .limited, "not seen",
      meaning: "The kernel did not discard on request (MADV_PAGEOUT), so the answer above was not confirmed by a real discard.",
      remedy: "Install and boot Linux 5.4 or later. \(allow(["madvise"], facts))")
  }

  static func sequences(_ facts: MachineFacts) -> Finding {
    if facts.hasRestartableSequences {
      return Finding(
        "rseq", .good, "registered", meaning: "Reads without lock are proven: they notice when the thread was moved meanwhile.")
    }
    return Finding(
      "rseq", .limited, "not registered",
      meaning: "Without restartable sequences a read without lock cannot tell that the thread was moved to another processor "
        + "meanwhile. Its check is then right nearly always, not always. Locked reads are not concerned.",
      remedy: [.valgrind, .emulated].contains(facts.environment.layers.first)
        ? "Run outside of \(facts.environment.name)."
        : "Use glibc 2.35 or later (ldd --version), and take glibc.pthread.rseq=0 out of GLIBC_TUNABLES.")
  }

  static func fork(_ facts: MachineFacts) -> Finding {
    if facts.wipesOnFork {
      let how = facts.isWipeConfirmed ? "This was tried with a child." : "The kernel says so; it could not be tried with a child."
      return Finding("fork", .good, "wiped in the child", meaning: "A forked child finds purgeable content discarded. \(how)")
    }
    if facts.isWipeConfirmed {
      return Finding(
        "fork", .bad, "promised and not done",
        meaning: "MADV_WIPEONFORK is accepted and ignored: a forked child finds content and mutexes as they stood, and may wait "
          + "for ever for a thread that it does not have.",
        remedy: "Run outside of the emulator; until then use posix_spawn, or fork only to exec at once.")
    }
    return Finding(
      "fork", .limited, "shared with the child",
      meaning: "The kernel has no MADV_WIPEONFORK: after a fork, parent and child share pages, which holds up their discard.",
      remedy: "Install and boot Linux 4.14 or later; until then use posix_spawn, or fork only to exec at once.")
  }

  static func pageSize(_ facts: MachineFacts) -> Finding {
    let value = facts.pageSizeBytes == 0 ? "unknown" : "\(ByteSize(facts.pageSizeBytes))"
    if facts.pageSizeBytes > 4096 {
      return Finding(
        "page-size", .limited, value,
        meaning:
          "Memory goes in units of this size: one lost page takes more small elements with it, and regions are rounded up.",
        remedy: "Boot a kernel built with pages of 4 KiB (Red Hat on arm64: kernel in the place of kernel-64k); or leave it: all "
          + "works, with more lost at a time.")
    }
    return Finding("page-size", .good, value, meaning: "Memory goes in units of this size.")
  }

  static func reclaim(_ facts: MachineFacts) -> Finding {
    if let kept = facts.keptMilliseconds, kept > 0, facts.usesMultiGenerations == true {
      return Finding(
        "reclaim", .limited, "multi-generation LRU, min_ttl_ms \(kept)",
        meaning: "What was used within \(kept) ms is kept at any price: short of memory, the kernel rather kills a process than "
          + "takes such pages, and memory on offer that was just read is among them.",
        remedy: "echo 0 > /sys/kernel/mm/lru_gen/min_ttl_ms")
    }
    if facts.usesMultiGenerations == true {
      return Finding(
        "reclaim", .good, "multi-generation LRU",
        meaning: "The kernel picks pages by generations. What it takes first can differ from the documentation, which was "
          + "measured on the classic lists; what is promised does not.")
    }
    return Finding(
      "reclaim", .good, "classic LRU",
      meaning: "The kernel takes first what was offered first; what was read since gets a second chance.")
  }
}
