// SPDX-License-Identifier: MIT
// Findings about layers between this process and the machine: containers, sandboxes, filters, the shell's limits.

import Purgeable
import ToolSupport

extension Doctor {
  static func environment(_ facts: MachineFacts) -> Finding {
    let environment = facts.environment
    let found = environment.layers.map { "\($0.rawValue) (by \(environment.marks[$0] ?? ""))" }
    let machine = environment.isVirtualMachine ? "virtual machine" : "machine"
    let value = found.isEmpty ? "bare \(machine)" : found.joined(separator: ", in ")
    guard let first = environment.layers.first else {
      return Finding("environment", .good, value, meaning: "No container, sandbox or emulator is between this process and Linux.")
    }
    switch first {
    case .gvisor, .wsl1, .emulated, .valgrind: return standIn(first, facts, value)
    case .kubernetes:
      return Finding(
        "environment", .good, value,
        meaning:
          "The kernel is the node's. kubectl top shows the working set, which leaves out memory on offer; the limit counts "
          + "it until the kernel takes it, and the kernel takes it before it kills (docs/accounting.md).")
    case .docker, .podman:
      return Finding(
        "environment", .good, value,
        meaning: "The kernel is the host's. \(first.rawValue) stats leaves out memory on offer; the limit counts it until the "
          + "kernel takes it, and the kernel takes it before it kills (docs/accounting.md).")
    case .nspawn, .lxc, .container:
      return Finding(
        "environment", .good, value, meaning: "The kernel is the host's: what is said about it here holds in the container too.")
    case .wsl2:
      return Finding(
        "environment", .good, value,
        meaning:
          "A real Linux kernel, which takes memory on offer when Linux runs short. Windows' own shortage does not reach it: "
          + "the virtual machine's size is what counts (memory= in .wslconfig).")
    }
  }

  /// A layer that answers system calls in the kernel's place.
  private static func standIn(_ layer: RunEnvironment.Layer, _ facts: MachineFacts, _ value: String) -> Finding {
    let works = facts.kernelClass == "works"
    let state: Finding.State = works ? .limited : .bad
    let outcome =
      works ? "Offers were seen to work all the same." : "Memory cannot be offered: caches evict by themselves and give it back."
    switch layer {
    case .gvisor:
      return Finding(
        "environment", state, value, meaning: "gVisor's kernel is in Linux's place. \(outcome)",
        remedy:
          "Run this container by runc: docker run --runtime=runc IMAGE; in Kubernetes, leave runtimeClassName out of the pod.")
    case .wsl1:
      return Finding(
        "environment", state, value, meaning: "WSL 1 translates system calls for Windows' kernel. \(outcome)",
        remedy: "In PowerShell: wsl --set-version DISTRIBUTION 2.")
    case .valgrind:
      return Finding(
        "environment", .limited, value,
        meaning: "Valgrind answers some calls itself and runs one thread at a time. \(outcome)", remedy: "Run without valgrind.")
    default:
      return Finding(
        "environment", state, value,
        meaning: "System calls are translated by an emulator (such as qemu-user). \(outcome) What processors guarantee about the "
          + "order of memory accesses is the emulator's promise here.",
        remedy: "Use a build for this machine's own processor: docker run --platform linux/arm64 or linux/amd64.")
    }
  }

  static func calls(_ facts: MachineFacts) -> Finding {
    let filter = facts.seccompMode.map { $0 == 0 ? "" : ", a filter (seccomp) is in force" } ?? ""
    guard let refusals = facts.refusals else {
      return Finding(
        "system-calls", .limited, "not asked\(filter)", meaning: "No page could be mapped to try them on.",
        remedy: "Raise the limits on memory: ulimit -v unlimited.")
    }
    // The core does without process_madvise, and before Linux 6.13 that call is always refused.
    let needed = refusals.filter { $0.call != "process_madvise" }
    let list = refusals.map { "\($0.call) (\(name(ofError: $0.number)))" }.joined(separator: ", ")
    guard !needed.isEmpty else {
      let extra = refusals.isEmpty ? "" : " Only \(list) is refused, which the library does not need."
      return Finding(
        "system-calls", .good, "answered\(filter)", meaning: "All calls that the library makes are let through.\(extra)")
    }
    let consequences = needed.map { consequence(of: $0.call) }
    var seen: [String] = []
    for sentence in consequences where !seen.contains(sentence) { seen.append(sentence) }
    let isFilter = facts.seccompMode ?? 0 != 0 || needed.contains { $0.number == 1 || $0.number == 38 }
    var names: [String] = []
    for call in needed.map({ $0.call.hasPrefix("MADV_") ? "madvise" : $0.call }) where !names.contains(call) {
      names.append(call)
    }
    return Finding(
      "system-calls", needed.contains { $0.call == "MADV_DONTNEED" } ? .bad : .limited, "refused: \(list)\(filter)",
      meaning: seen.joined(separator: " "),
      remedy: isFilter
        ? allow(names, facts) : "Use a newer kernel: uname -r says \(facts.kernelRelease), Linux 5.4 knows all of them.")
  }

  private static func consequence(of call: String) -> String {
    switch call {
    case "MADV_FREE": "Memory cannot be offered."
    case "MADV_DONTNEED": "Memory cannot be given back: what is evicted goes on counting against the limit."
    case "mincore": "Lost pages are found only when they are touched, and statistics do not know what is resident."
    case "MADV_PAGEOUT": "Discards cannot be asked for, so nothing confirms that they happen."
    case "MADV_WIPEONFORK": "A forked child shares purgeable pages instead of finding them discarded."
    case "MADV_DONTDUMP": "Core dumps contain purgeable memory."
    case "MADV_NOHUGEPAGE": "Purgeable memory may get huge pages, of which one dirty byte keeps 2 MiB."
    case "getrandom": "Secrets that keep forged references out are made from the clock: weaker, never wrong."
    default: "\(call) is missing."
    }
  }

  static func addressSpace(_ facts: MachineFacts) -> Finding {
    guard let space = facts.addressSpaceLimitBytes, let data = facts.dataLimitBytes else {
      return Finding(
        "address-space", .limited, "unknown", meaning: "It is not known how much address space this process may reserve.",
        remedy: "Mount /proc: mount -t proc proc /proc.")
    }
    func text(_ limit: UInt64) -> String { limit == .max ? "no limit" : "\(ByteSize(limit))" }
    let value = space == .max && data == .max ? "no limit" : "in all \(text(space)), data \(text(data))"
    if min(space, data) <= facts.memory?.totalBytes ?? (4 << 30) {
      return Finding(
        "address-space", .limited, value,
        meaning:
          "Chunks of up to 64 MiB are reserved ahead and count in full, used or not: caches may be refused memory that the "
          + "machine has.",
        remedy: "ulimit -v unlimited -d unlimited; in a unit, LimitAS=infinity and LimitDATA=infinity.")
    }
    return Finding("address-space", .good, value, meaning: "Reserving chunks ahead meets no limit of this process.")
  }

  static func openFiles(_ facts: MachineFacts) -> Finding {
    guard let limit = facts.openFileLimit else {
      return Finding(
        "open-files", .limited, "unknown", meaning: "It is not known how many files this process may open.",
        remedy: "Mount /proc: mount -t proc proc /proc.")
    }
    if limit < 64 {
      return Finding(
        "open-files", .limited, "\(limit)",
        meaning: "Watching for pressure takes a few descriptors; when there are none left, the library looks from time to time.",
        remedy: "ulimit -n 1024; in a unit, LimitNOFILE=1024.")
    }
    return Finding(
      "open-files", .good, limit == .max ? "no limit" : "\(limit)",
      meaning: "Enough for the few descriptors that watching for pressure takes.")
  }
}
