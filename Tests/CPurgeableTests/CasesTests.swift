// SPDX-License-Identifier: MIT
// Every case of the core, one by one, in this build's configuration and under its sanitizers. Each runs in a process of its own:
// cases make system calls fail, switch rules off and set priorities for the whole process, and a crash has to be the failure of
// one case only. Cases that belong to the full run only are skipped otherwise.

import CPurgeableCases
import PurgeableTestSupport
import Testing
import ToolSupport

struct CoreCase: Sendable, CustomTestStringConvertible {
  let index: Int
  let name: String
  let isFull: Bool
  var testDescription: String { name }

  static let all: [CoreCase] = (0..<cases_count()).map { index in
    CoreCase(index: index, name: unsafe String(cString: cases_name(index)), isFull: cases_is_full(index))
  }
}

// As many at a time as tests are: those of the quick run say the same on a busy machine, and in the full run tests are alone.
@Suite("the core, case by case")
struct CoreCases {
  static let skipped: Int32 = 77

  @Test("core", arguments: CoreCase.all)
  func core(_ one: CoreCase) throws {
    if one.isFull && !TestRun.isFull { try Test.cancel("\(one.name): belongs to the full run, PURGEABLE_TESTS=full") }
    let run = try ChildProcess.runBuilt("core-cases", ["--case", String(one.index)])
    if run.status == Self.skipped { try Test.cancel("\(one.name): \(run.output)") }
    #expect(run.status == 0, "\(one.name): status \(run.status)\n\(run.output)\(run.errors)")
  }
}
