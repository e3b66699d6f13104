// SPDX-License-Identifier: MIT
// Names that the Swift examples of the documentation take as given.

let bytes: [UInt8] = [1, 2, 3]

func render(_ name: String) -> [UInt8] { Array(name.utf8) }
func fetch(_ name: String) async throws -> [UInt8] { Array(name.utf8) }
func draw(into bytes: inout MutableRawSpan) {}
func send(_ bytes: RawSpan) {}
func shedLoad() {}

actor Server {
  func stopAccepting() {}
}
let server = Server()

struct Fleet {
  let isOverBudget = false
}
let fleet = Fleet()
