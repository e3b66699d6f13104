// SPDX-License-Identifier: MIT
// Findings about memory limits, and about settings that get in the way.

import Purgeable
import ToolSupport

extension Doctor {
  static func group(_ facts: MachineFacts) -> Finding {
    guard let group = facts.group else {
      return Finding(
        "memory-group", .limited, "none to be seen",
        meaning: "No memory group (cgroup) is visible, so a limit on this process would not be noticed. The machine's memory "
          + "stands in for it.",
        remedy: showGroup(facts))
    }
    let value = "version \(group.version.rawValue), \(group.path)"
    guard group.isOwnDirectory else {
      return Finding(
        "memory-group", .limited, value,
        meaning: "Only groups around this process's own are visible (\(group.directories[0])). Their limits are honoured; one "
          + "on the own group would not be noticed.",
        remedy: showGroup(facts))
    }
    let around = group.directories.count - 1
    let nested = around == 0 ? "" : " It lies in \(around) other\(around == 1 ? "" : "s"), whose limits hold as well."
    return Finding("memory-group", .good, value, meaning: "This process's own group is visible.\(nested)")
  }

  static func groupLimit(_ facts: MachineFacts) -> Finding {
    guard let level = facts.tightest, let limit = level.limitBytes, let room = level.roomBytes else {
      return Finding(
        "group-limit", .good, "none",
        meaning: "No group limits this process. The kernel takes memory on offer when the whole machine runs short.")
    }
    let usage = level.usageBytes.map { ", \(ByteSize($0)) used" } ?? ""
    let value = "\(ByteSize(limit))\(usage), \(ByteSize(room)) left"
    let slows = level.highLimitBytes == limit && level.hardLimitBytes != limit
    let what = slows ? "Above it the kernel reclaims and slows the group down (memory.high)." : "Above it the kernel reclaims."
    if room < limit / 16 {
      return Finding(
        "group-limit", .limited, value,
        meaning: "\(level.directory) is nearly full. \(what) Memory on offer goes first, and soon.",
        remedy: "Raise the limit (\(raiseLimit(facts))), or give caches a byte limit: PurgeableCache(byteLimit: \(limit / 2)).")
    }
    return Finding(
      "group-limit", .good, value,
      meaning: "Set on \(level.directory). \(what) Memory on offer goes first, before anything is killed.")
  }

  /// Whether a cache should keep a core off offer.
  static func pageCache(_ facts: MachineFacts) -> Finding {
    let price =
      "CacheOptions.core keeps a part of a cache off offer while a quarter of the memory is free or page cache. The kernel can "
      + "have that part only through the library: a process that is stopped, or too slow, keeps it. .usedWithin costs 5 bytes "
      + "an entry and a look at the clock with each hit. What EntryPriority.pinned keeps, nobody can have."
    let rule = "By default everything idle is on offer, and the kernel weighs it like files that were read once."
    guard let level = facts.tightest, let limit = level.limitBytes, let files = level.pageCacheBytes else {
      return Finding("page-cache", .good, "no group to share", meaning: "\(rule) \(price)")
    }
    let value = "\(ByteSize(files)) of the limit of \(ByteSize(limit))"
    if files > limit / 2 {
      return Finding(
        "page-cache", .limited, value,
        meaning: "Files take most of this group. Read once, they take the place of what caches have on offer. \(price)",
        remedy: "Where the program reads them: posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED) after reading. Else: "
          + "options.core = .share(0.5).")
    }
    return Finding("page-cache", .good, value, meaning: "\(rule) Here there are few. \(price)")
  }

  static func ownGroups(_ facts: MachineFacts) -> Finding {
    if facts.mayMakeGroups {
      return Finding(
        "own-groups", .good, "allowed",
        meaning: "This process may make memory groups: tests and the demonstration can make real pressure under a limit.")
    }
    return Finding(
      "own-groups", .limited, "not allowed",
      meaning: "Tests and the demonstration cannot set a limit of their own; they have the kernel page out what is on offer. "
        + "Programs that use the library are not concerned.",
      remedy: "Run as root, or in a delegated group: systemd-run --user --scope -p Delegate=yes purgeablectl demo.")
  }

  static func pressure(_ facts: MachineFacts) -> Finding {
    let hears: String? =
      facts.groupPressure == .triggers
      ? "stall triggers of the group"
      : facts.hasPressureLevel
        ? "events of the group (version 1)" : facts.machinePressure == .triggers ? "stall triggers of the machine" : nil
    if let hears {
      return Finding(
        "pressure", .good, hears, meaning: "The kernel can wake a program when memory runs short, before it has to choose itself."
      )
    }
    if facts.groupPressure == .readable || facts.machinePressure == .readable {
      return Finding(
        "pressure", .limited, "readable, no triggers",
        meaning: facts.hasGroupEvents
          ? "Stall information can be read, but the kernel wakes this process only when its group's limit has been met: for all "
            + "else it has to look from time to time."
          : "Stall information can be read, but the kernel will not wake this process: it has to look from time to time.",
        remedy: "Install and boot Linux 6.5 or later, which grants triggers with a window of 2 seconds to everybody, or allow "
          + "CAP_SYS_RESOURCE (docker run --cap-add SYS_RESOURCE).")
    }
    let meaning =
      facts.hasGroupEvents
      ? "There is no pressure stall information. The kernel tells when the group's limit has been met; the machine's shortage is "
        + "noticed by looking from time to time."
      : "There is no pressure stall information: shortage is noticed by looking at usage and limit from time to time."
    if facts.machinePressure == .notBuilt {
      return Finding(
        "pressure", .limited, "not compiled in", meaning: meaning, remedy: "Use a kernel built with CONFIG_PSI=y.")
    }
    if facts.machinePressure == .off {
      return Finding(
        "pressure", .limited, "switched off", meaning: meaning,
        remedy: "Add psi=1 to the kernel's command line (GRUB_CMDLINE_LINUX in /etc/default/grub, then update-grub), and boot.")
    }
    if facts.groupPressure == .off {
      let own = facts.group?.directories[0] ?? "/sys/fs/cgroup"
      return Finding(
        "pressure", .limited, "switched off for this group", meaning: meaning,
        remedy: "echo 1 > \(own)/cgroup.pressure; where that is refused, boot with psi=1.")
    }
    return Finding(
      "pressure", .limited, "none", meaning: meaning,
      remedy: "Boot with psi=1 a kernel built with CONFIG_PSI=y, and mount /proc and /sys/fs/cgroup.")
  }

  static func memory(_ facts: MachineFacts) -> Finding {
    guard let memory = facts.memory else {
      return Finding(
        "memory", .limited, "unknown", meaning: "/proc/meminfo cannot be read: without a group limit the library has no measure.",
        remedy: "Mount /proc: mount -t proc proc /proc.")
    }
    let value = "\(ByteSize(memory.availableBytes)) of \(ByteSize(memory.totalBytes)) available"
    if memory.availableBytes < memory.totalBytes / 16 {
      return Finding(
        "memory", .limited, value, meaning: "The machine is short of memory: what is on offer goes soon.",
        remedy: "Find what takes it (ps aux --sort=-rss | head) and stop it, or expect many reloads.")
    }
    return Finding("memory", .good, value, meaning: "Memory on offer is counted as available, here and by container tools.")
  }

  static func swap(_ facts: MachineFacts) -> Finding {
    guard !facts.swaps.isEmpty else {
      return Finding("swap", .good, "none", meaning: "Lost pages are found by one cheap look at the page tables (mincore).")
    }
    let size = ByteSize(facts.swaps.reduce(0) { $0 + $1.sizeBytes })
    let used = ByteSize(facts.swaps.reduce(0) { $0 + $1.usedBytes })
    let swappiness = facts.swappiness.map { ", swappiness \($0)" } ?? ""
    let kinds = [MachineFacts.Swap.Kind.zram, .file, .partition].filter { kind in facts.swaps.contains { $0.kind == kind } }
    let names = kinds.map(\.rawValue).joined(separator: " and ") + (facts.usesZswap ? " behind zswap" : "")
    let value = "\(size) of \(names), \(used) used\(swappiness)"
    let sweeps =
      "Memory on offer is dropped and never written to swap; a missing page is no proof of a loss, so sweeps look at more."
    if facts.groupSwapLimitBytes == 0 {
      return Finding("swap", .good, "\(value), none for this group", meaning: "\(sweeps) This group is never swapped out.")
    }
    if let number = facts.swappiness, number > 100 {
      return Finding(
        "swap", .limited, value,
        meaning: "\(sweeps) Above 100 the kernel rather swaps programs out than takes file pages, and memory on offer is among "
          + "those: it goes late, and what is locked or in use goes to swap first.",
        remedy: "sysctl vm.swappiness=60")
    }
    let memory = kinds.contains(.zram) || facts.usesZswap ? " What is swapped out stays in memory, compressed." : ""
    return Finding(
      "swap", .limited, value,
      meaning: "\(sweeps) Memory that is locked or in use can be swapped out like any other, and comes back slowly.\(memory)",
      remedy: "For short pauses, keep the group out of swap: \(withoutSwap(facts)).")
  }

  static func mlock(_ facts: MachineFacts) -> Finding {
    let locked = facts.mlockedBytes ?? 0
    let limit = facts.mlockLimitBytes.map { $0 == .max ? "no limit" : "limit \(ByteSize($0))" }
    let value = (["\(ByteSize(locked)) mlocked"] + [limit].compactMap { $0 }).joined(separator: ", ")
    if locked > 0 {
      return Finding(
        "mlock", .limited, value,
        meaning: "Memory that is mlocked cannot be offered, and one mlocked page keeps the rest of its range from being offered.",
        remedy: "Take mlockall out of the program, or call munlockall(); mlock single ranges that have to be.")
    }
    return Finding("mlock", .good, value, meaning: "Nothing of this process is mlocked, so all of its purgeable memory can go.")
  }

  static func hugePages(_ facts: MachineFacts) -> Finding {
    let value = facts.hugePages ?? "not in this kernel"
    let isRefused = facts.refusals?.contains { $0.call == "MADV_NOHUGEPAGE" } == true
    if facts.usesHugePages || (facts.hugePages == "always" && isRefused) {
      return Finding(
        "huge-pages", .limited, value,
        meaning: "Purgeable memory gets transparent huge pages, because the request for small ones is refused: one dirty byte "
          + "keeps 2 MiB, and pages on offer are collapsed back into normal memory.",
        remedy: "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
    }
    return Finding(
      "huge-pages", .good, value,
      meaning: facts.hugePages == "always"
        ? "Purgeable memory is kept out of transparent huge pages (MADV_NOHUGEPAGE); the rest of the program may get them."
        : "Purgeable memory stays in small pages, which can go one by one.")
  }

  static func overcommit(_ facts: MachineFacts) -> Finding {
    switch facts.overcommit {
    case 0: return Finding("overcommit", .good, "heuristic", meaning: "Address space is reserved freely, and paid for when used.")
    case 1: return Finding("overcommit", .good, "always", meaning: "Address space is reserved freely, and paid for when used.")
    case 2:
      let memory = facts.memory
      let numbers = memory.map { ", \(ByteSize($0.committedBytes)) of \(ByteSize($0.commitLimitBytes)) promised" } ?? ""
      return Finding(
        "overcommit", .limited, "never\(numbers)",
        meaning: "Reserved address space counts in full, used or not: a heap's chunks of up to 64 MiB may be refused early.",
        remedy: "sysctl vm.overcommit_memory=0; where it has to stay, sysctl vm.overcommit_ratio=90.")
    default:
      return Finding(
        "overcommit", .limited, "unknown", meaning: "It is not known how address space is counted here.",
        remedy: "Mount /proc: mount -t proc proc /proc.")
    }
  }

  static func mapCount(_ facts: MachineFacts) -> Finding {
    guard let limit = facts.mapCountLimit else {
      return Finding(
        "map-count", .limited, "unknown", meaning: "It is not known how many mappings a process may have.",
        remedy: "Mount /proc: mount -t proc proc /proc.")
    }
    if limit < 16384 {
      return Finding(
        "map-count", .limited, "\(limit)",
        meaning: "Few mappings are allowed. The library shares large ones, but regions above 16 MiB have one each.",
        remedy: "sysctl vm.max_map_count=65530")
    }
    return Finding(
      "map-count", .good, "\(limit)", meaning: "Enough mappings: the library carves small things from large ones.")
  }
}
