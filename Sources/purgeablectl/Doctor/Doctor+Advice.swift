// SPDX-License-Identifier: MIT
// Remedies whose words depend on what runs this process: the same change is typed differently in each place.

import Purgeable

extension Doctor {
  /// How the memory limit is raised here: to twice what it is, and 2 GiB at least.
  static func raiseLimit(_ facts: MachineFacts) -> String {
    let mebibytes = max(2 << 30, (facts.tightest?.limitBytes ?? 0).multipliedReportingOverflow(by: 2).partialValue) >> 20
    let size = mebibytes % 1024 == 0 ? "\(mebibytes / 1024)G" : "\(mebibytes)M"
    let small = size.lowercased()
    switch facts.environment.layers.first {
    case .kubernetes: return "kubectl set resources deployment/NAME --limits=memory=\(size)i"
    case .docker: return "docker update --memory \(small) --memory-swap \(small) CONTAINER"
    case .podman: return "podman update --memory \(small) --memory-swap \(small) CONTAINER"
    default:
      guard let level = facts.tightest else { return "systemctl set-property UNIT MemoryMax=\(size)" }
      let isHigh = level.highLimitBytes == level.limitBytes && level.hardLimitBytes != level.limitBytes
      let file = facts.group?.version == .v1 ? "memory.limit_in_bytes" : isHigh ? "memory.high" : "memory.max"
      return "echo \(size) > \(level.directory)/\(file)"
    }
  }

  /// How the group is kept out of swap here.
  static func withoutSwap(_ facts: MachineFacts) -> String {
    switch facts.environment.layers.first {
    case .kubernetes: return "set memorySwap.swapBehavior to NoSwap in the kubelet's configuration"
    case .docker: return "docker run with --memory-swap equal to --memory"
    case .podman: return "podman run with --memory-swap equal to --memory"
    default:
      guard let group = facts.group else { return "swapoff -a" }
      return group.version == .v2
        ? "echo 0 > \(group.directories[0])/memory.swap.max, or MemorySwapMax=0 in the unit"
        : "echo the number of memory.limit_in_bytes > \(group.directories[0])/memory.memsw.limit_in_bytes"
    }
  }

  /// How a call is let through the filter of system calls here.
  static func allow(_ calls: [String], _ facts: MachineFacts) -> String {
    let names = calls.joined(separator: " ")
    switch facts.environment.layers.first {
    case .valgrind, .emulated, .gvisor, .wsl1: return "Run outside of \(facts.environment.name)."
    case .docker, .podman:
      let tool = facts.environment.name
      return "Add \(names) to the allowed names of the profile given to \(tool) run --security-opt seccomp=FILE, or try with "
        + "seccomp=unconfined."
    case .kubernetes:
      return "Set securityContext.seccompProfile.type to RuntimeDefault, or add \(names) to the localhostProfile."
    default:
      return "Add SystemCallFilter=\(names) to the unit, or the same names to whatever filter (seccomp) the program was started "
        + "with."
    }
  }

  /// How this process gets to see its own group here.
  static func showGroup(_ facts: MachineFacts) -> String {
    switch facts.environment.layers.first {
    case .docker: "docker run --cgroupns=private, on a host with version 2, without a mount of your own over /sys/fs/cgroup."
    case .podman: "podman run --cgroupns=private, without a mount of your own over /sys/fs/cgroup."
    case .lxc: "Set lxc.mount.auto = cgroup:mixed in the container's configuration."
    case .none:
      "Mount the controllers (mount -t cgroup2 none /sys/fs/cgroup), and do not boot with cgroup_disable=memory."
    default: "Give the container a cgroup namespace of its own, with /proc and a fresh mount of /sys/fs/cgroup."
    }
  }

  static func name(ofError number: Int32) -> String {
    let names: [Int32: String] = [1: "EPERM", 12: "ENOMEM", 13: "EACCES", 22: "EINVAL", 38: "ENOSYS", 95: "EOPNOTSUPP"]
    return names[number] ?? "error \(number)"
  }
}
