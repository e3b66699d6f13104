// SPDX-License-Identifier: MIT
// Every operation while memory is refused: runs memory-cases in processes of its own. Here only a few of its steps;
// `.ci/run memory` runs all of them, and an optimized build in which only the allocations that an operation declares are allowed.

import PurgeableTestSupport
import Testing
import ToolSupport

@Suite("want of memory, every operation in processes of its own")
struct MemoryCasesTests {
  @Test(
    "no operation dies: the n-th call of the core refused, so many bytes left, no more address space",
    .notUnderThreadSanitizer, .countsMemory, .fullRun,
    arguments: [
      "first:", "cache: read into", "cache: value", "cache: stores at a", "cache: removals", "cache: trim at", "cache: made",
      "cache: statistics",
      "region", "heap", "data", "pressure", "the library's thread", "files",
    ])
  func cases(_ names: String) throws {
    let run = try ChildProcess.runBuilt("memory-cases", ["--quick", names])
    #expect(run.status == 0, "\(run.output)\(run.errors)")
    #expect(run.output.contains(" 0 deaths") || run.output.contains("skipped"))
  }
}
