// SPDX-License-Identifier: MIT
// A memory group to make pressure in: made inside of this process's own, or beside it, and removed again.
//
//   version 1            version 2, a delegated group that only we are in     version 2, root in a group with others
//   own group            own group (processes may not stay in it)             outer group
//     purgeable-demo-7     purgeable-demo-7                                     own group
//                          purgeable-demo-7-outside  <- we move here            purgeable-demo-7

import Glibc
import Purgeable

/// A group that its user has to remove. `remove` may be called more than once; it is called at the end of the work that the
/// group was made for, however that work ends.
package final class PressureGroup {
  /// Why no group could be made.
  package struct Refusal: Error, Equatable {
    package var reason: String
  }

  private static let namePrefix = "purgeable-"

  package let files: GroupFiles
  /// Undoes what was done to the groups around ours, newest first.
  private var undoing: [() -> Void] = []
  private var isRemoved = false

  /// Makes an empty group without a limit. `purpose` becomes part of its name.
  package init(inside own: MemoryGroup?, for purpose: String) throws(Refusal) {
    guard let own else { throw Refusal(reason: "no memory group is visible") }
    guard own.isOwnDirectory else { throw Refusal(reason: "only groups around this process's own are visible") }
    let name = Self.namePrefix + "\(purpose)-\(getpid())"
    var undoing: [() -> Void] = []
    let parent: String
    switch own.version {
    case .v1:
      parent = own.directories[0]
    case .v2:
      if Self.hands(down: "memory", own.directories[0]) {
        parent = own.directories[0]
      } else if let undo = Self.moveAside(own.directories[0], to: name + "-outside") {
        parent = own.directories[0]
        undoing.append(undo)
      } else if own.directories.count > 1, Self.hands(down: "memory", own.directories[1]) {
        parent = own.directories[1]
      } else {
        throw Refusal(reason: "\(own.directories[0]) is shared with other processes and has no group around it to use")
      }
    }
    Self.removeForgotten(in: parent)
    files = GroupFiles(version: own.version, directory: MemoryGroup.join(parent, name))
    self.undoing = undoing
    let error = files.make()
    guard error == 0 else {
      isRemoved = true
      undo()
      throw Refusal(reason: "mkdir \(files.directory): \(SystemError.text(error))")
    }
    // A directory alone is no group: the kernel has to have filled it.
    guard files.usageBytes != nil, unsafe access(files.processes, W_OK) == 0 else {
      remove()
      throw Refusal(reason: "\(files.directory) does not account for memory")
    }
  }

  /// Removes the group; its processes have to be gone. False when it is still there.
  @discardableResult
  package func remove() -> Bool {
    guard !isRemoved else { return true }
    if files.usageBytes != nil { files.dropLeftovers() }
    isRemoved = files.remove()
    undo()
    return isRemoved
  }

  /// Removes what a process left that was killed (SIGKILL) with no chance to remove it: empty groups, ten minutes old, of
  /// processes that are gone. The kernel removes none that is in use.
  private static func removeForgotten(in parent: String) {
    for (name, _) in DiskFile.names(in: parent) ?? [] where name.hasPrefix(namePrefix) {
      let directory = MemoryGroup.join(parent, name)
      // purgeable-PURPOSE-PROCESS
      let words = name.split(separator: "-")
      guard words.count > 2, let process = Int32(words[2]),
        kill(process, 0) != 0, errno == ESRCH,
        let status = DiskFile.status(directory), status.changedSeconds < time(nil) - 600
      else { continue }
      _ = unsafe rmdir(directory)
    }
  }

  private func undo() {
    for step in undoing.reversed() { step() }
    undoing = []
  }

  // MARK: Version 2

  /// Whether a group's children get a controller.
  private static func hands(down controller: String, _ directory: String) -> Bool {
    let text = SmallFile.text(MemoryGroup.join(directory, "cgroup.subtree_control")) ?? ""
    return text.split(whereSeparator: \.isWhitespace).contains(Substring(controller))
  }

  /// Moves this process from a group that only it is in to a new group inside, so that the group may hand the controller down.
  /// Answers what undoes it; nil, and nothing is changed, where that is not possible.
  private static func moveAside(_ directory: String, to name: String) -> (() -> Void)? {
    let processes = MemoryGroup.join(directory, "cgroup.procs")
    let control = MemoryGroup.join(directory, "cgroup.subtree_control")
    guard SmallFile.text(processes)?.split(separator: "\n") == [Substring(String(getpid()))] else { return nil }
    let outside = MemoryGroup.join(directory, name)
    guard unsafe mkdir(outside, 0o755) == 0 else { return nil }
    let undo = {
      // In this order: a group with processes of its own may not hand controllers down.
      _ = GroupFiles.write("-memory", to: control)
      _ = GroupFiles.write("0", to: processes)
      _ = unsafe rmdir(outside)
    }
    guard
      GroupFiles.write("0", to: MemoryGroup.join(outside, "cgroup.procs")) == 0,
      GroupFiles.write("+memory", to: control) == 0
    else {
      undo()
      return nil
    }
    return undo
  }
}
