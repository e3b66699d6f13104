// SPDX-License-Identifier: MIT
// Every operation while memory is refused: which allocate nothing, and which of the others die of it.
//
//   memory-cases                         all, as a table; exits 1 where one died that was not known to
//   memory-cases "trim at"               those whose name has this in it
//   memory-cases --quick                 with fewer steps
//   memory-cases --trace "trim at"       who allocates, in one run each
//   memory-cases --here left 64 "trim at" one run in this process, for a debugger: a fault by its name, n, the operation
//   memory-cases --list                  their names

import Glibc
import MemoryFaults
import ToolSupport

let operations =
  firstOperations + cacheOperations + objectOperations + memoryOperations + spaceOperations + nsCacheOperations + fileOperations

/// Fewer steps, for the tests.
let isQuick = CommandLine.arguments.contains("--quick")
private let step: UInt64 = isQuick ? 1024 : 64

/// The results of all runs of one operation.
struct Row {
  var allocations = ""
  var runs = 0
  var refused = 0
  var deaths: [String] = []
}

/// Runs an operation in a forked child; nothing of the library has been used in this process, so the child is as fresh as a
/// program.
func runChild(_ operation: Operation, _ fault: Fault, _ n: UInt64, output: inout String) -> (ending: Ending?, status: Int32) {
  var ends: (Int32, Int32) = (0, 0)
  unsafe withUnsafeMutablePointer(to: &ends) { pair in
    unsafe pair.withMemoryRebound(to: Int32.self, capacity: 2) { _ = unsafe pipe($0) }
  }
  fflush(nil)
  let child = fork()
  if child == 0 {
    dup2(ends.1, 1)
    let silent = unsafe open("/dev/null", O_WRONLY)
    if unsafe getenv("MEMORY_CASES_LOUD") == nil { dup2(silent, 2) }
    // Ends a run that hangs: no run takes as long, even on a busy machine.
    alarm(600)
    operation.runHere(fault, n, traces: false)
  }
  close(ends.1)
  var text: [UInt8] = []
  var byte: UInt8 = 0
  while unsafe read(ends.0, &byte, 1) == 1 { text.append(byte) }
  close(ends.0)
  output = String(decoding: text, as: UTF8.self)
  guard let end = ChildEnd.of(child) else { return (nil, -1) }
  if case .exited(let status) = end { return (Ending(rawValue: status), status) }
  return (nil, end.status)
}

func row(of operation: Operation) -> Row {
  var row = Row()
  func note(_ fault: Fault, _ n: UInt64) -> Ending? {
    var output = ""
    let (ending, status) = runChild(operation, fault, n, output: &output)
    row.runs += 1
    switch ending {
    case .survived?: row.refused += 1
    case .notMet?: break
    default: row.deaths.append("\(fault.rawValue) \(n): \(ending.map { "\($0)" } ?? "status \(status)")")
    }
    if fault == .count { row.allocations = output.split(separator: "\n").last.map(String.init) ?? "?" }
    return ending
  }
  _ = note(.count, 0)
  /// Runs at the limit of address space. When the allocator refuses too, only operations that allocate nothing can go on: for
  /// others the runtime needs memory for types at their first use, and does not test for it. Unoptimized code allocates thousands
  /// of small pieces even there.
  func noteSpace() {
    // What tells Swift's sequences allocates a little on a thread of the library's own, in generic code.
    let takesNothing = operation.takes == .nothing
    guard isOptimized || !takesNothing && !operation.watchesLibrary else { return }
    _ = note(.space, 0)
    if takesNothing { _ = note(.bare, 0) }
  }
  if operation.isLong {
    noteSpace()
    return row
  }
  switch operation.takes {
  case .nothing:
    for fault in isOptimized ? [Fault.malloc, .mallocOn] : [] {
      var n: UInt64 = 1
      while n <= 40, note(fault, n) == .survived { n += 1 }
    }
  case .result:
    // From nothing left at all, in steps.
    var left: UInt64 = operation.floor.bytes
    while left <= 64 << 20, note(.left, left) != .notMet {
      left = left < 4096 ? left + step : left < 65_536 ? left + 16 * step : left * (isQuick ? 4 : 2)
    }
  }
  for fault in [Fault.call, .callOn] {
    var n: UInt64 = 1
    while n <= 300, note(fault, n) == .survived { n = isQuick ? n + 1 + 2 * n : n < 20 ? n + 1 : n + n / 8 }
  }
  noteSpace()
  return row
}

guard memory_faults_work() else {
  print("skipped: the sanitizer has an allocator of its own")
  exit(0)
}
if CommandLine.arguments.count == 5, CommandLine.arguments[1] == "--here" {
  let words = CommandLine.arguments
  guard let fault = Fault(rawValue: words[2]), let n = UInt64(words[3]),
    let operation = operations.first(where: { $0.name.contains(words[4]) })
  else { exit(2) }
  operation.runHere(fault, n, traces: false)
}
var words = Array(CommandLine.arguments.dropFirst())
let flag = words.first.flatMap { $0.hasPrefix("--") ? $0 : nil }
if flag != nil { words.removeFirst() }
let chosen = operations.filter { operation in words.isEmpty || words.contains { operation.name.contains($0) } }
if flag == "--list" {
  for operation in chosen { print(operation.name) }
  exit(0)
}
if flag == "--trace" {
  for operation in chosen {
    fflush(nil)
    let child = fork()
    if child == 0 { operation.runHere(.count, 0, traces: true) }
    _ = ChildEnd.of(child)
  }
  exit(0)
}
var unexpected = 0
for operation in chosen {
  let row = row(of: operation)
  let deaths = row.deaths.isEmpty ? "no deaths" : "\(row.deaths.count) deaths"
  print("\(operation.name): \(row.allocations) allocations, \(row.runs) runs, \(row.refused) refused, \(deaths)")
  for death in row.deaths.prefix(6) { print("    \(death)") }
  if operation.floor.bytes > 0 { print("    from \(operation.floor.bytes) bytes left on: \(operation.floor.reason)") }
  unexpected += row.deaths.count
  fflush(nil)
}
removeFileFolder()
print("\(chosen.count) operations, \(unexpected) deaths")
exit(unexpected == 0 ? 0 : 1)
