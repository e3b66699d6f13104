// SPDX-License-Identifier: MIT
// The error type, and the probe's results on this machine.

import CPurgeable
import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("PurgeableError")
struct PurgeableErrorTests {
  @Test("says operation, kind, number and what to do in one line")
  func description() {
    let error = PurgeableError(.outOfMemory, in: "PurgeableRegion.init", errorNumber: 12, explanation: "free something first")
    #expect(error.description == "PurgeableRegion.init: out of memory (errno 12): free something first")
    let plain = PurgeableError(.invalidArgument("byteCount"), in: "store", explanation: "it is -1")
    #expect(plain.description == "store: invalid argument 'byteCount': it is -1")
  }

  @Test(
    "every number of the core becomes a kind",
    arguments: [
      (12, .outOfMemory), (16, .busy), (11, .busy), (75, .countOverflow), (116, .staleReference), (27, .tooLarge),
      (95, .notSupported), (38, .notSupported), (22, .systemCallFailed(call: "mincore")), (5, .systemCallFailed(call: "mincore")),
    ] as [(Int32, PurgeableError.Kind)])
  func kinds(status: Int32, kind: PurgeableError.Kind) {
    let error = PurgeableError(status: status, in: "test", call: "mincore")
    #expect(error.kind == kind)
    #expect(error.errorNumber == status)
    #expect(!error.explanation.isEmpty)
    #expect(!kind.description.isEmpty)
  }

  @Test("where an argument is at fault it is named", arguments: [22, 34, 105] as [Int32])
  func arguments(status: Int32) {
    #expect(PurgeableError(status: status, in: "test", argument: "offset").kind == .invalidArgument("offset"))
  }

  @Test("equal errors are equal, and 0 is none")
  func equality() throws {
    let error = PurgeableError(.busy, in: "a", explanation: "b")
    #expect(error == PurgeableError(.busy, in: "a", explanation: "b"))
    #expect(error != PurgeableError(.busy, in: "c", explanation: "b"))
    try PurgeableError.check(0, in: "test")
    #expect(throws: PurgeableError.self) { try PurgeableError.check(12, in: "test") }
  }
}

@Suite("KernelSupport")
struct KernelSupportTests {
  @Test("the probe answers the same every time, with this machine's page size")
  func probe() throws {
    let support = try KernelSupport.probe()
    #expect(try KernelSupport.probe() == support)
    #expect(support.pageByteCount == pageSize)
    if support.isConfirmed { #expect(support.behavior == .works || support.behavior == .immediate) }
  }

  @Test("a second probe of this machine answers as the first, and says what the core's says")
  func again() async {
    await #expect(processExitsWith: .success) {
      let first = try? KernelSupport.probe()
      purgeable_testing_forget_probe()
      var probe = purgeable_probe_t()
      let error = unsafe purgeable_probe(&probe)
      demand(error == 0 && first != nil && (try? KernelSupport.probe()) == first, "\(first as Any)")
      demand(first?.provesLockFreeReads == probe.rseq && first?.usesHugePages == probe.huge_pages, "\(first as Any)")
    }
  }

  @Test("behaviours have the names that the core uses")
  func names() {
    #expect(
      KernelSupport.Behavior.allCases.map(\.description) == ["works", "immediate", "no-op", "unsupported", "mlocked", "partial"])
  }
}
