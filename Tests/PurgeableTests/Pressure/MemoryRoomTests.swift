// SPDX-License-Identifier: MIT
// When memory counts as short: the shares, and what counts as room.

import PurgeableTestSupport
import Testing

@testable import Purgeable

@Suite("pressure: room")
struct MemoryRoomTests {
  @Test(
    "less than an eighth left is some, less than a sixteenth critical",
    arguments: [
      (1600, .normal), (200, .normal), (199, PressureLevel.warning), (100, .warning), (99, .critical), (0, .critical),
    ] as [(UInt64, PressureLevel)])
  func levels(room: UInt64, level: PressureLevel) {
    #expect(MemoryRoom(room, of: 1600).level == level)
    let machine = MachineMemory(meminfo: "MemTotal: 1600 kB\nMemFree: 0 kB\nMemAvailable: \(room) kB\n")
    #expect(MemoryRoom.level(of: machine) == level)
    let group = MemoryGroup.Level(
      directory: "", hardLimitBytes: 1600, usageBytes: 1600 - room, inactiveFileBytes: 0)
    #expect(MemoryRoom.level(of: group) == level)
  }

  @Test("a group full of what can be taken is some; without limit or group there is nothing to say")
  func fullGroup() {
    var group = MemoryGroup.Level(directory: "", hardLimitBytes: 1600, usageBytes: 1550, inactiveFileBytes: 1000)
    #expect(MemoryRoom.level(of: group) == .warning)
    group.hardLimitBytes = nil
    #expect(MemoryRoom.level(of: group) == .normal)
    #expect(MemoryRoom.level(of: nil as MemoryGroup?) == .normal)
    #expect(MemoryRoom.level(of: nil as MachineMemory?) == .normal)
  }

  @Test("a reaction begins below a sixteenth, and goes on until an eighth is left")
  func missing() {
    #expect(MemoryRoom(100, of: 1600).missingBytes(isShort: false) == 0)
    #expect(MemoryRoom(99, of: 1600).missingBytes(isShort: false) == 101)
    #expect(MemoryRoom(199, of: 1600).missingBytes(isShort: true) == 1)
    #expect(MemoryRoom(200, of: 1600).missingBytes(isShort: true) == 0)
    #expect(MemoryRoom(0, of: 0).missingBytes(isShort: true) == 0)
  }

  @Test("memory on offer is room for a source, and none for a reaction")
  func offered() throws {
    let machine = try #require(MachineMemory(meminfo: "MemTotal: 1600 kB\nMemFree: 0 kB\nMemAvailable: 800 kB\n"))
    #expect(MemoryRoom(of: machine, counting: .takeable) == MemoryRoom(800 << 10, of: 1600 << 10))
    #expect(MemoryRoom(of: machine, counting: .pageCache(offeredBytes: 700 << 10)) == MemoryRoom(100 << 10, of: 1600 << 10))
    #expect(MemoryRoom(of: machine, counting: .pageCache(offeredBytes: .max)).byteCount == 0)
    // Of 1550 bytes in use, 1000 are inactive: 900 of them on offer, 100 of files.
    let group = MemoryGroup.Level(
      directory: "", hardLimitBytes: 1600, usageBytes: 1550, inactiveFileBytes: 1000, pageCacheBytes: 100)
    #expect(MemoryRoom(of: group, counting: .takeable) == MemoryRoom(1050, of: 1600))
    #expect(MemoryRoom(of: group, counting: .pageCache(offeredBytes: 900)) == MemoryRoom(150, of: 1600))
    var unlimited = group
    unlimited.hardLimitBytes = nil
    #expect(MemoryRoom(of: unlimited, counting: .takeable) == nil)
    #expect(MemoryRoom(of: unlimited, counting: .pageCache(offeredBytes: 0)) == nil)
  }

  @Test("what is spare is room beyond a quarter, of the machine or of the group that has least; beyond three eighths after that")
  func spare() throws {
    func spare(available: Int, usage: Int, cache: Int, wasTight: Bool = false) throws -> UInt64? {
      let root = try FakeRoot([
        "proc/meminfo": "MemTotal: 1600 kB\nMemFree: 0 kB\nMemAvailable: \(available) kB\n",
        "own/memory.max": "1600\n", "own/memory.current": "\(usage)\n", "own/memory.stat": "file \(cache)\n",
      ])
      defer { root.remove() }
      let group = MemoryGroup(version: .v2, path: "/own", directories: [root.path + "/own"], isOwnDirectory: true)
      return MemoryRoom.spareBytes(in: group, wasTight: wasTight, offeredBytes: 0, root: root.path)
    }
    #expect(try spare(available: 800, usage: 1000, cache: 0) == 200)
    #expect(try spare(available: 800, usage: 1000, cache: 0, wasTight: true) == 0)
    #expect(try spare(available: 800, usage: 1550, cache: 500, wasTight: false) == 150)
    #expect(try spare(available: 800, usage: 1200, cache: 0) == 0)
    #expect(try spare(available: 800, usage: 1600, cache: 0) == 0)
    #expect(try spare(available: 400, usage: 0, cache: 0) == 0, "the machine")
    #expect(MemoryRoom.spareBytes(in: nil, wasTight: false, offeredBytes: 0, root: "/nowhere") == nil)
  }

  @Test("of several groups the shortest decides, not the one with the fewest bytes left")
  func shortest() throws {
    func level(own: (limit: Int, use: Int, files: Int), around: (limit: Int, use: Int)) throws -> PressureLevel {
      let root = try FakeRoot([
        "outer/memory.max": "\(around.limit)\n", "outer/memory.current": "\(around.use)\n",
        "outer/own/memory.max": "\(own.limit)\n", "outer/own/memory.current": "\(own.use)\n",
        "outer/own/memory.stat": "inactive_file \(own.files)\n",
      ])
      defer { root.remove() }
      return MemoryRoom.level(
        of: MemoryGroup(
          version: .v2, path: "/own", directories: [root.path + "/outer/own", root.path + "/outer"], isOwnDirectory: true))
    }
    #expect(try level(own: (1000, 500, 0), around: (10_000, 5000)) == .normal)
    #expect(try level(own: (1000, 500, 0), around: (10_000, 9490)) == .critical, "around us 510 are left, and 500 here")
    #expect(try level(own: (1000, 1000, 1000), around: (10_000, 9990)) == .critical, "ours is full of files alone")
    #expect(try level(own: (1000, 1000, 1000), around: (10_000, 1000)) == .warning)
  }

  @Test("what is missing now is the most that the machine or any group around us misses")
  func worst() throws {
    func missing(available: Int, usage: Int, cache: Int, isShort: Bool = false, offered: UInt64 = 0) throws -> UInt64 {
      let root = try FakeRoot([
        "proc/meminfo": "MemTotal: 1600 kB\nMemFree: 0 kB\nMemAvailable: \(available) kB\n",
        "outer/memory.max": "1600\n", "outer/memory.current": "\(usage)\n", "outer/memory.stat": "file \(cache)\n",
        "outer/own/memory.max": "max\n", "outer/own/memory.current": "10\n",
      ])
      defer { root.remove() }
      let group = MemoryGroup(
        version: .v2, path: "/own", directories: [root.path + "/outer/own", root.path + "/outer"], isOwnDirectory: true)
      return MemoryRoom.missingBytes(in: group, isShort: isShort, offeredBytes: offered, root: root.path)
    }
    #expect(try missing(available: 800, usage: 1000, cache: 0) == 0)
    #expect(try missing(available: 800, usage: 1550, cache: 0) == 150, "the group around us")
    #expect(try missing(available: 800, usage: 1550, cache: 100) == 0, "its page cache is room")
    #expect(try missing(available: 800, usage: 1550, cache: 100, isShort: true) == 50, "though not enough to end")
    #expect(try missing(available: 80, usage: 1550, cache: 0) == 120 << 10, "the machine")
    #expect(try missing(available: 800, usage: 0, cache: 0, offered: 720 << 10) == 120 << 10, "of which ours is on offer")
  }
}
