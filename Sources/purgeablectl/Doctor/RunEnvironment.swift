// SPDX-License-Identifier: MIT
// The layers between this process and the machine: containers, sandboxes, emulators, Windows. Each is known by marks that it
// leaves in files; its effect on memory on offer is found by trying, not by these marks.
//
//   inside   gvisor  wsl1  emulated  valgrind      answer system calls themselves: they decide what an offer is worth
//     |      kubernetes  podman  docker  ...       share the kernel: they decide about limits and about what can be seen
//   outside  wsl2                                  a kernel in a virtual machine of Windows

import Glibc
import Purgeable

/// Where this process runs, as found from files.
package struct RunEnvironment: Equatable, Sendable {
  /// In order of importance: the first layer found names the environment.
  package enum Layer: String, Sendable, CaseIterable {
    case gvisor, wsl1, emulated, valgrind
    case kubernetes, podman, docker
    case nspawn = "systemd-nspawn"
    case lxc
    /// Some other container, or one that does not say which.
    case container
    case wsl2
  }

  /// The layers found, each with the mark that it was known by.
  package private(set) var marks: [Layer: String] = [:]
  /// A processor's flag says that a hypervisor runs the kernel. It does not change what the kernel does.
  package var isVirtualMachine = false

  package init() {}

  /// By importance.
  package var layers: [Layer] { Layer.allCases.filter { marks[$0] != nil } }
  /// "bare", or the layer that matters most.
  package var name: String { layers.first?.rawValue ?? "bare" }
  /// Whether the kernel's answers are not a Linux kernel's.
  package var standsInForKernel: Bool { layers.contains { $0 == .gvisor || $0 == .wsl1 || $0 == .emulated } }

  package mutating func add(_ layer: Layer, by mark: String) {
    if marks[layer] == nil { marks[layer] = mark }
  }

  /// Looks at the files below `root`. `builtFor` is the processor that this program was compiled for.
  package static func current(root: String = "/", builtFor: String = Self.processor) -> RunEnvironment {
    var found = RunEnvironment()
    found.findSandbox(root)
    found.findProcessor(SmallFile.text(MemoryGroup.join(root, "proc/cpuinfo"), limit: 16 << 10) ?? "", builtFor: builtFor)
    found.findContainer(root)
    return found
  }

  package static var processor: String {
    #if arch(x86_64)
      "x86_64"
    #elseif arch(arm64)
      "aarch64"
    #else
      "other"
    #endif
  }
}

extension RunEnvironment {
  private mutating func findSandbox(_ root: String) {
    func text(_ name: String) -> String { SmallFile.text(MemoryGroup.join(root, name)) ?? "" }
    let release = text("proc/sys/kernel/osrelease")
    let version = text("proc/version")
    // gVisor calls itself 4.4.0 with a build date of its own invention, since 2024 4.19.0-gvisor.
    if release.contains("gvisor") || version.contains("gvisor") {
      add(.gvisor, by: "the kernel's release")
    } else if version.contains("Sun Jan 10 15:06:54 PST 2016") {
      add(.gvisor, by: "/proc/version")
    }
    // WSL 1 has no kernel of its own and says 4.4.0-19041-Microsoft; WSL 2 says 5.15.90.1-microsoft-standard-WSL2.
    if release.lowercased().contains("microsoft") {
      let isFirst = KernelVersion(release: release).map { $0 < KernelVersion(4, 5) } ?? false
      add(isFirst ? .wsl1 : .wsl2, by: "the kernel's release")
    }
    if SmallFile.text(MemoryGroup.join(root, "proc/self/maps"), limit: 1 << 20)?.contains("/valgrind/") == true {
      add(.valgrind, by: "/proc/self/maps")
    }
  }

  /// A program for another processor than the machine's is being translated.
  private mutating func findProcessor(_ text: String, builtFor: String) {
    func has(_ key: String) -> Bool { text.split(separator: "\n").contains { $0.hasPrefix(key) } }
    let real: String? =
      has("CPU implementer") ? "aarch64" : has("flags\t") && has("vendor_id") ? "x86_64" : has("isa\t") ? "riscv64" : nil
    if let real, builtFor != "other", real != builtFor {
      add(.emulated, by: "/proc/cpuinfo, of a processor of another kind (\(real))")
    } else if text.contains("VirtualApple") {
      add(.emulated, by: "/proc/cpuinfo, of a translator (Rosetta)")
    }
    isVirtualMachine = text.split(separator: "\n").contains { line in
      line.hasPrefix("flags\t") && line.split(separator: " ").contains("hypervisor")
    }
  }

  private mutating func findContainer(_ root: String) {
    func path(_ name: String) -> String { MemoryGroup.join(root, name) }
    func exists(_ name: String) -> Bool { unsafe access(path(name), F_OK) == 0 }
    // A virtual machine made from a container's image still has the image's marks.
    let isAlone = Self.hasInitialNamespaces(root)
    for process in ["1", "self"] {
      let groups = SmallFile.text(path("proc/\(process)/cgroup")) ?? ""
      for (word, layer) in Self.groupWords where groups.contains(word) { add(layer, by: "/proc/\(process)/cgroup") }
      let variables = (SmallFile.text(path("proc/\(process)/environ")) ?? "").split(separator: "\0")
      for variable in variables {
        if variable.hasPrefix("KUBERNETES_SERVICE_HOST=") { add(.kubernetes, by: "KUBERNETES_SERVICE_HOST") }
        if variable.hasPrefix("container=") {
          add(Layer(rawValue: String(variable.dropFirst(10))) ?? .container, by: "container= in /proc/\(process)/environ")
        }
      }
    }
    if let name = SmallFile.text(path("run/systemd/container"))?.split(whereSeparator: \.isWhitespace).first {
      add(Layer(rawValue: String(name)) ?? .container, by: "/run/systemd/container")
    }
    if exists("var/run/secrets/kubernetes.io/serviceaccount") { add(.kubernetes, by: "/var/run/secrets/kubernetes.io") }
    if !isAlone {
      if exists(".dockerenv") { add(.docker, by: "/.dockerenv") }
      if exists("run/.containerenv") { add(.podman, by: "/run/.containerenv") }
    }
    // A more exact layer was found.
    if layers.contains(where: { [.kubernetes, .podman, .docker, .nspawn, .lxc].contains($0) }) { marks[.container] = nil }
  }

  /// The names that container managers give their groups. Not "/docker": the manager itself runs in docker.service, on the
  /// machine.
  private static let groupWords: [(String, Layer)] = [
    ("kubepods", .kubernetes), ("libpod", .podman), ("/docker/", .docker), ("/docker-", .docker), ("lxc", .lxc),
    ("/machine.slice/systemd-nspawn", .nspawn),
  ]

  /// Whether processes, host name and shared memory are the machine's own: the kernel numbers its first namespaces so.
  private static func hasInitialNamespaces(_ root: String) -> Bool {
    let first = ["pid": "pid:[4026531836]", "uts": "uts:[4026531838]", "ipc": "ipc:[4026531839]"]
    return first.allSatisfy { name, number in
      var bytes = [CChar](repeating: 0, count: 64)
      // One byte less than there is room for: the zero at the end stays.
      let length = unsafe readlink(MemoryGroup.join(root, "proc/self/ns/\(name)"), &bytes, bytes.count - 1)
      return length > 0 && String(decoding: bytes.prefix(length).map { UInt8(bitPattern: $0) }, as: UTF8.self) == number
    }
  }
}
