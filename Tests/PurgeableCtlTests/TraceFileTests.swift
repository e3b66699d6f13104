// SPDX-License-Identifier: MIT
// Files of requests: how they are read, and what is wrong in them.

import Foundation
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import purgeablectl

/// Traces as files have them.
enum TestTrace {
  static func csv(_ requests: [TraceRequest], sizes: Bool) -> String {
    requests.reduce(into: sizes ? "key,bytes\n" : "key\n") { $0 += sizes ? "\($1.key),\($1.size)\n" : "\($1.key)\n" }
  }

  static func records(_ requests: [TraceRequest]) -> Data {
    func bytes(_ number: UInt64, _ count: Int) -> [UInt8] {
      (0..<count).map { UInt8(truncatingIfNeeded: number >> UInt64($0 * 8)) }
    }
    return requests.enumerated().reduce(into: Data()) { data, request in
      data += bytes(UInt64(request.offset), 4) + bytes(request.element.key, 8) + bytes(request.element.size, 4) + bytes(.max, 8)
    }
  }

  static func read(
    _ path: String, format: TraceFormat? = nil, cost: TraceCost? = nil, readsTimes: Bool = false
  ) throws -> [TraceRequest] {
    let trace = try TraceFile(path, format: format, cost: cost, readsTimes: readsTimes)
    var (all, batch): ([TraceRequest], [TraceRequest]) = ([], [])
    while try trace.next(&batch) { all += batch }
    return all
  }
}

@Suite("files of requests")
struct TraceFileTests {
  @Test("keys are any text, numbers are themselves, and ends of lines are of any kind")
  func lines() throws {
    let long = (0..<(TestRun.isFull ? 30_000 : 9000)).map { TraceRequest(key: $0 &* 0x9E37_79B9_7F4A_7C15, size: $0) }
    let root = try FakeRoot([
      "keys": "key\r\n7\r\n07\r\n18446744073709551615\r\n18446744073709551616\na,b\nä\n \n07",
      "sizes": "key,bytes\na,b,3\n7,0\na,b,1152921504606846973", "named": "key,time,size\n1,99,3\n",
      "long": TestTrace.csv(long, sizes: true), "marked": "\u{FEFF}key,bytes\n7,3\n", "spaced": "Key, Bytes, ms\n7, 3, 1.5\n",
    ])
    defer { root.remove() }
    let keys = try TestTrace.read(root.path + "/keys")
    #expect(keys.count == 8)
    #expect(keys.map(\.size) == Array(repeating: 64, count: 8))
    #expect(keys[0].key == 7)
    #expect(keys[2].key == .max)
    #expect(keys[1] == keys[7])
    #expect(Set(keys.map(\.key)).count == 7)
    let sizes = try TestTrace.read(root.path + "/sizes")
    #expect(sizes.map(\.size) == [3, 0, 1_152_921_504_606_846_973])
    #expect(sizes[0].key == sizes[2].key)
    #expect(try TestTrace.read(root.path + "/named").map(\.size) == [3])
    for name in ["/marked", "/spaced"] {
      let request = try #require(try TestTrace.read(root.path + name, cost: name == "/spaced" ? .column("ms") : nil).first)
      #expect(request == TraceRequest(key: 7, size: 3, cost: name == "/spaced" ? 1.5 : 0))
    }
    // Much more than is read at a time.
    #expect(try TestTrace.read(root.path + "/long") == long)
    try TestTrace.records(long).write(to: URL(fileURLWithPath: root.path + "/records"))
    let records = try TestTrace.read(root.path + "/records")
    #expect(records.map(\.key) == long.map(\.key))
    #expect(records.map(\.size) == long.map(\.size))
    #expect(records.map(\.time) == long.indices.map { UInt32($0) })
    // More blank lines than are read at a time.
    try root.write("blank", String(repeating: "\n", count: 3 * TraceFile.bufferBytes) + "key,obj_size\n7,3\n")
    #expect(try TestTrace.read(root.path + "/blank") == [TraceRequest(key: 7, size: 3)])
    try root.write("edge", String(repeating: "\n", count: TraceFile.bufferBytes - 5) + "key,bytes\n7,3\n")
    #expect(try TestTrace.read(root.path + "/edge") == [TraceRequest(key: 7, size: 3)])
  }

  @Test("columns may stand on either side of the keys, which may have commas; times are read where they are wanted")
  func columns() throws {
    let root = try FakeRoot([
      "middle": "time,key,size,ms\n99,a,b,3,1.5\n99.9, a,b ,3,1.5\n", "last": "Size,Timestamp,obj_id\n3,5,7\n",
      "hours": "key,time\n7,1e10\n", "before": "time,key\n-1,7\n", "short": "time,key\n5\n", "both": "id,key,bytes\n1,7,3\n",
    ])
    defer { root.remove() }
    let key = try #require(TestTrace.read(root.path + "/middle").first).key
    for readsTimes in [false, true] {
      let requests = try TestTrace.read(root.path + "/middle", cost: .column("ms"), readsTimes: readsTimes)
      let wanted = TraceRequest(key: key, size: 3, time: readsTimes ? 99 : 0, cost: 1.5)
      #expect(requests == [wanted, wanted] && key > 1 << 32)
    }
    #expect(try TestTrace.read(root.path + "/last", readsTimes: true) == [TraceRequest(key: 7, size: 3, time: 5)])
    #expect(try TestTrace.read(root.path + "/both") == [TraceRequest(key: 7, size: 3)])
    #expect(try TestTrace.read(root.path + "/hours").map(\.time) == [0])
    for (name, message) in [
      ("/hours", "line 2: \"1e10\" is no time"), ("/before", "line 2: \"-1\" is no time"),
      ("/short", "line 2: \"5\" has 1 of the 2 columns"),
    ] {
      let error = #expect(throws: UsageError.self) { try TestTrace.read(root.path + name, readsTimes: true) }
      #expect(error?.message.contains(message) == true, "\(error?.message ?? "")")
    }
    let error = #expect(throws: UsageError.self) { try TestTrace.read(root.path + "/last", cost: .column("obj_id")) }
    #expect(error?.message.contains("no column of costs \"obj_id\"") == true)
  }

  @Test("what is wrong in a trace is told with its line, and what to do")
  func wrongTraces() throws {
    let line = String(repeating: "x", count: TraceFile.bufferBytes)
    for (text, message) in [
      ("", "is empty"), ("key", "has a header and nothing else"), ("key,bytes\n", "has a header and nothing else"),
      ("1\n2\n", "line 1: the header has to be \"key\", \"key,bytes\" or the like, not \"1\""),
      ("key,bytes\n1,2\n3\n", "line 3: \"3\" has 1 of the 2 columns that the header promises"),
      ("key,bytes\n1,-2\n", "line 2: \"-2\" is no size"), ("key,bytes\n1,\n", "line 2: \"\" is no size"),
      ("key,bytes\n1,99999999999999999999\n", "line 2: \"99999999999999999999\" is no size"),
      ("key,bytes\n1,2x\n", "line 2: \"2x\" is no size"),
      ("key,bytes\n1,1\n2,1152921504606846976\n", "line 3: the sizes up to here add up to more than 2^60"),
      ("key,bytes\n\n\r\n", "has a header and nothing else"), ("key,bytes\n,2\n", "line 2: no key"),
      ("key,bytes\n\n1,2\n\n3\n", "line 5: \"3\" has 1 of the 2 columns"),
      (String(repeating: "\n", count: 2 * TraceFile.bufferBytes), "has blank lines and nothing else"),
      ("key\n" + line, "line 2: longer than 65536 bytes"), (line, "line 1: longer than 65536 bytes"),
    ] {
      let root = try FakeRoot(["trace": text])
      defer { root.remove() }
      let error = #expect(throws: UsageError.self) { try TestTrace.read(root.path + "/trace") }
      #expect(error?.message.contains(message) == true, "\(error?.message ?? "")")
      #expect(error?.message.contains(root.path + "/trace") == true)
    }
    for (text, message) in [
      ("key,ms\n1,x\n", "line 2: \"x\" is no cost"), ("key,ms\n1,1\n2,-1\n", "line 3: \"-1\" is no cost"),
      ("key,ms\n1,nan\n", "is no cost"), ("key,ms\n1,inf\n", "is no cost"), ("key,ms\n1,1e13\n", "is no cost"),
      ("key,ms\n1,\n", "line 2: \"\" is no cost"),
      ("key,bytes\n1,1\n", "has no column of costs \"ms\"; its header is \"key,bytes\""),
      ("key,ms,ms\n1,1,1\n", "line 1: two columns are called \"ms\""), ("key,ms,bytes\n1,2\n", "has 2 of the 3 columns"),
    ] {
      let root = try FakeRoot(["trace": text])
      defer { root.remove() }
      let error = #expect(throws: UsageError.self) { try TestTrace.read(root.path + "/trace", cost: .column("ms")) }
      #expect(error?.message.contains(message) == true, "\(error?.message ?? "")")
    }
    let root = try FakeRoot()
    defer { root.remove() }
    for (bytes, words) in [
      (Data([0x1F, 0x8B, 8, 0]), "unpack it first"), (Data("BZh91AY&SY".utf8), "unpack it first"),
      (Data("PK\u{3}\u{4}".utf8), "unpack it first"), (Data([0xFF, 0xFE]) + Data("key".utf8), "iconv"),
    ] {
      for name in ["/packed", "/packed.csv", "/packed.oracleGeneral"] {
        try bytes.write(to: URL(fileURLWithPath: root.path + name))
        let packed = #expect(throws: UsageError.self) { try TestTrace.read(root.path + name) }
        #expect(packed?.message.contains(words) == true)
      }
    }
    // Programs, and text of two bytes a letter.
    let program = try #require(FileManager.default.contents(atPath: "/bin/sh"))
    for (name, bytes) in [
      ("/program", program), ("/wide", try #require("key,bytes\n1,22\n3,4\n".data(using: .utf16LittleEndian))),
    ] {
      try bytes.write(to: URL(fileURLWithPath: root.path + name))
      let binary = #expect(throws: UsageError.self) { try TestTrace.read(root.path + name) }
      #expect(binary?.message.contains("neither text nor oracleGeneral") == true, "\(name)")
    }
    let directory = #expect(throws: UsageError.self) { try TestTrace.read(root.path) }
    #expect(directory?.message.contains("is a directory") == true)
  }

  @Test("a batch has no more than some megabytes of objects, so that a replay of large ones is seen to go on")
  func batches() throws {
    let root = try FakeRoot([
      "large.csv": "key,bytes\n" + (0..<1000).map { "\($0),1048576\n" }.joined(),
      "small.csv": "key,bytes\n" + (0..<1000).map { "\($0),10\n" }.joined(),
      "huge.csv": "key,bytes\n0,1073741824\n1,1073741824\n",
    ])
    defer { root.remove() }
    for (name, counts) in [("large", Array(repeating: 16, count: 62) + [8]), ("small", [1000]), ("huge", [1, 1])] {
      let trace = try TraceFile("\(root.path)/\(name).csv")
      var (requests, found, keys) = ([TraceRequest](), [Int](), 0)
      while try trace.next(&requests) {
        found.append(requests.count)
        for request in requests {
          #expect(request.key == keys)
          keys += 1
        }
      }
      #expect(found == counts, "\(name)")
    }
  }
}
