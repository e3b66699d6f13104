// SPDX-License-Identifier: MIT
// Operations, and how they are run: in a process of their own, with memory refused.

import CPurgeable
import CPurgeable.Testing
import Glibc
import MemoryFaults
import Purgeable

/// The memory that an operation may allocate.
enum Takes: Sendable {
  /// Nothing: allocations are counted, and each would be a place where a program can die.
  case nothing
  /// Its result, or what it makes: Swift objects and arrays, for which the library asks first whether there is memory.
  case result
}

/// The memory that Swift's runtime takes before any code of the library runs, or without asking it: with less it ends the
/// program.
struct Floor: Sendable {
  let bytes: UInt64
  let reason: String
}

let objectFloor = Floor(bytes: 1024, reason: "the object itself is the runtime's, before its initialiser runs")
let valueFloor = Floor(bytes: 4096, reason: "a small value is an array, and no array is asked for first below 128 KiB")
let listenFloor = Floor(bytes: 4096, reason: "a source of the program's own is asked with arrays")

/// Whether this build is optimized: otherwise generic code of the standard library allocates wherever it is not specialized.
#if DEBUG
  let isOptimized = false
#else
  let isOptimized = true
#endif

/// One public operation of the library, in some state of it.
struct Operation: Sendable {
  let name: String
  var takes = Takes.nothing
  /// Whether the allocations of other threads, the library's, are refused.
  var watchesLibrary = false
  /// Whether the operation takes seconds: it is run only with nothing left at all.
  var isLong = false
  /// Whether the run without memory is the first one, for which the runtime makes what it has not made yet.
  var isFirst = false
  /// The bytes with which it has to go on, and why it need not with fewer.
  var floor: Floor = Floor(bytes: 0, reason: "")
  /// Prepares a run, and returns the operation itself, which may be run several times; it returns false when something was
  /// refused.
  let prepare: @Sendable () throws -> () -> Bool

  init(
    _ name: String, takes: Takes = .nothing, watchesLibrary: Bool = false, isLong: Bool = false, isFirst: Bool = false,
    floor: Floor = Floor(bytes: 0, reason: ""), prepare: @escaping @Sendable () throws -> () -> Bool
  ) {
    (self.name, self.takes, self.watchesLibrary, self.isLong) = (name, takes, watchesLibrary, isLong)
    (self.isFirst, self.floor, self.prepare) = (isFirst, floor, prepare)
  }
}

/// How memory is refused.
enum Fault: String, CaseIterable {
  /// Memory is not refused: allocations are counted.
  case count
  /// The n-th allocation, once.
  case malloc
  /// The n-th allocation and every one after it.
  case mallocOn = "malloc on"
  /// So many bytes are left.
  case left
  /// The n-th call of the core to the system or the allocator, once.
  case call
  /// The n-th of those and every one after it.
  case callOn = "call on"
  /// No more address space than is in use.
  case space
  /// As `space`, and every allocation of all threads is refused.
  case bare
}

/// How one run ended.
enum Ending: Int32 {
  /// The fault was met, and the operation survived it.
  case survived = 0
  /// Nothing was refused: larger n need not be tried.
  case notMet = 2
  /// The run could not be set up.
  case unusable = 3
  /// Something was wrong afterwards.
  case wrong = 4
  /// The operation allocated although it should take nothing.
  case allocated = 5
}

func say(_ text: String) {
  var line = text + "\n"
  // The string is lent for the length of the call.
  line.withUTF8 { bytes in _ = unsafe write(2, bytes.baseAddress, bytes.count) }
}

func fail(_ text: String) -> Never {
  say(text)
  exit(Ending.wrong.rawValue)
}

extension Operation {
  /// Runs the operation in this process, which ends with the result.
  func runHere(_ fault: Fault, _ n: UInt64, traces: Bool) -> Never {
    let scope = watchesLibrary ? memory_faults_scope_other_threads : memory_faults_scope_this_thread
    let run: () -> Bool
    do {
      run = try prepare()
    } catch {
      say("\(name): \(error)")
      exit(Ending.unusable.rawValue)
    }
    // Once without a fault: the runtime makes a type's metadata at its first use.
    if !isFirst { _ = run() }
    memory_faults_trace(traces)
    if fault == .left || fault == .space || fault == .bare { Self.settle() }
    switch fault {
    case .count: memory_faults_count_from_here(scope)
    case .malloc, .mallocOn: memory_faults_refuse(scope, n, fault == .mallocOn)
    case .left: memory_faults_leave(n)
    case .call, .callOn: purgeable_testing_fail(UInt32(purgeable_testing_call_any.rawValue), n, ENOMEM, fault == .callOn)
    case .space, .bare: if !memory_faults_limit_address_space(0) { exit(Ending.unusable.rawValue) }
    }
    if fault == .bare { memory_faults_leave(0) }
    let tableBefore = purgeable_testing_call_count(UInt32(purgeable_testing_call_allocate.rawValue))
    _ = run()
    // Allocations of the core may be refused: those do not count.
    let table = purgeable_testing_call_count(UInt32(purgeable_testing_call_allocate.rawValue)) - tableBefore
    let allocations = memory_faults_allocation_count() - min(table, memory_faults_allocation_count())
    let wasMet: Bool
    switch fault {
    case .count: wasMet = false
    case .malloc, .mallocOn, .left: wasMet = memory_faults_refused_count() > 0
    case .call, .callOn: wasMet = purgeable_testing_has_failed()
    case .space, .bare: wasMet = true
    }
    memory_faults_end()
    purgeable_testing_fail(0, 0, 0, false)
    memory_faults_unlimit_address_space()
    // Once more, without a fault.
    _ = run()
    if fault == .count {
      print("\(allocations)")
      fflush(nil)
      exit(allocations > 0 && takesNothing && isOptimized ? Ending.allocated.rawValue : Ending.notMet.rawValue)
    }
    exit(wasMet ? Ending.survived.rawValue : Ending.notMet.rawValue)
  }

  /// A fault for all threads must not meet the library's thread between its test for memory and the use of the memory: for a
  /// thread that begins, its maker has tested, and the runtime then makes the metadata of types that are used first.
  private static func settle() {
    for _ in 0..<300 {
      guard memory_faults_thread_count() > 1, PurgeableMemory.pressureStatistics.sourceName.isEmpty else { break }
      usleep(1000)
    }
    usleep(2000)
  }

  private var takesNothing: Bool { if case .nothing = takes { true } else { false } }
}
