// SPDX-License-Identifier: MIT
// Runs on record, and the picture that is drawn of them.

import Foundation
import FoundationXML
import PurgeableTestSupport
import Testing
import ToolSupport

@testable import purgeablectl

/// The elements of an XML text: names and attributes, and the text of those that have any.
private final class Elements: NSObject, XMLParserDelegate {
  private(set) var all: [(name: String, attributes: [String: String], text: String)] = []
  private(set) var isWhole = false
  private var open: [Int] = []

  init(_ text: String) {
    super.init()
    let parser = XMLParser(data: Data(text.utf8))
    parser.delegate = self
    isWhole = parser.parse()
  }

  func parser(
    _ parser: XMLParser, didStartElement name: String, namespaceURI: String?, qualifiedName: String?,
    attributes: [String: String] = [:]
  ) {
    open.append(all.count)
    all.append((name, attributes, ""))
  }

  func parser(_ parser: XMLParser, foundCharacters text: String) { if let last = open.last { all[last].text += text } }
  func parser(_ parser: XMLParser, didEndElement: String, namespaceURI: String?, qualifiedName: String?) { open.removeLast() }

  func first(_ name: String, style: String? = nil) -> (name: String, attributes: [String: String], text: String)? {
    all.first { $0.name == name && (style == nil || $0.attributes["class"] == style) }
  }

  /// The points of the line or area of a style.
  func points(_ name: String, _ style: String) -> [(x: Double, y: Double)] {
    (first(name, style: style)?.attributes["points"] ?? "").split(separator: " ").compactMap { pair in
      let numbers = pair.split(separator: ",").compactMap { Double($0) }
      return numbers.count == 2 ? (numbers[0], numbers[1]) : nil
    }
  }
}

@Suite("report")
struct ReportTests {
  private static let header = #"{"about":"3 files of /a<b>&c, seed 1","format":1,"limitBytes":1000000,"run":"demo"}"#

  private static func record(_ lines: [String]) throws -> RunRecord {
    try RunRecord(([header] + lines).joined(separator: "\n") + "\n", name: "run")
  }

  private static let run = [
    #"{"seconds":0,"phase":"filling","residentBytes":0,"heldBytes":0,"hits":0,"misses":0,"wrongBytes":0}"#,
    #"{"seconds":1,"phase":"filling","residentBytes":800000,"heldBytes":900000,"offeredBytes":850000,"groupBytes":950000}"#,
    #"{"seconds":2,"event":"a neighbour arrives"}"#,
    #"{"seconds":2.5,"phase":"reading","hits":0,"misses":0}"#,
    #"{"seconds":3,"phase":"reading","residentBytes":200000,"heldBytes":900000,"groupBytes":990000,"hits":75,"misses":25}"#,
    #"{"seconds":4,"phase":"reading","residentBytes":400000,"heldBytes":900000,"offeredBytes":0,"hits":100,"misses":100}"#,
    #"{"seconds":4,"wrongBytes":0}"#,
    #"{"result": {"entries": 3}}"#,
  ]

  @Test("the picture is well-formed XML with title and description, and its lines are where the numbers are")
  func picture() throws {
    let chart = RunChart(try Self.record(Self.run))
    let elements = Elements(chart.svg)
    #expect(elements.isWhole)
    let root = try #require(elements.first("svg"))
    #expect(root.attributes["role"] == "img" && root.attributes["aria-labelledby"] == "title description")
    #expect(elements.first("title")?.text == "demo: 3 files of /a<b>&c, seed 1")
    let words = try #require(elements.first("desc")?.text)
    for part in [
      "up to 781.3 KiB in memory, and 390.6 KiB at the end", "Up to 781.3 KiB of that is on offer.",
      "Up to 683.6 KiB of what it holds is not in memory.", "limit is 976.6 KiB",
      "At 2.0 s: a neighbour arrives.", "50.0 % of 200 reads were hits", "0 wrong bytes.",
    ] { #expect(words.contains(part), "\(words)") }
    #expect(elements.first("style")?.text.contains("prefers-color-scheme: dark") == true)

    // From left to right in time; a higher number is higher up, to scale.
    let resident = elements.points("polygon", "resident")
    let held = elements.points("polygon", "held")
    #expect(resident.count == 6 && held.count == 6)
    let zero = resident[0].y
    #expect(resident.last?.y == zero && resident.map(\.x) == resident.map(\.x).sorted())
    let limit = try #require(elements.all.first { $0.attributes["class"] == "limit" && $0.attributes["y1"] != "56" })
    let perByte = (zero - (Double(limit.attributes["y1"]!) ?? 0)) / 1_000_000
    #expect(abs(zero - resident[2].y - 800_000 * perByte) < 0.2 && abs(zero - held[2].y - 900_000 * perByte) < 0.2)
    // No more is on offer than is in memory.
    let offered = elements.points("polygon", "offered")
    #expect(offered.count == 4 && offered[1].y == resident[2].y && offered[2].y == zero && offered[2].x == resident[4].x)
    let mark = try #require(elements.first("line", style: "event"))
    #expect(abs((Double(mark.attributes["x1"]!) ?? 0) - (resident[1].x + resident[4].x) / 2) < 0.2, "in the middle of the time")
    // 75 of 100, then 25 of 100; the line begins where the first of them did.
    #expect(chart.hitRatios.map(\.value) == [0.75, 0.25])
    let ratios = elements.points("polyline", "ratio")
    #expect(ratios.count == 3 && ratios[0].y == ratios[1].y && ratios[0].x < ratios[1].x && ratios[1].y < ratios[2].y)
    for point in resident + held + elements.points("polyline", "group") {
      #expect((0...960).contains(point.x) && (0...560).contains(point.y))
    }
  }

  @Test("a record of which little is known makes a picture all the same")
  func little() throws {
    let chart = RunChart(
      try RunRecord(#"{"run":"other","format":1,"about":""}"# + "\n{\"seconds\":0}\n{\"seconds\":0}\n", name: "run"))
    #expect(Elements(chart.svg).isWhole)
    let huge = #"{"seconds":1e9,"residentBytes":18446744073709551615,"heldBytes":1,"hits":1,"misses":0}"#
    #expect(Elements(RunChart(try Self.record([Self.run[0], huge])).svg).isWhole)
    let controls = Elements(
      RunChart(
        try RunRecord(
          #"{"run":"a\u001Bb\u0000","format":1,"about":"c\u0007\uFFFE\uFFFF\#(String(repeating: "/long", count: 100))"}"#
            + "\r\n{\"seconds\":0}\r\n{\"seconds\":1}\r\n", name: "")
      ).svg)
    #expect(controls.isWhole)
    // A title is drawn as far as there is room.
    #expect(try #require(controls.first("text", style: "title")).text.count < 100)
    #expect(try #require(controls.first("title")).text.count > 500)
  }

  @Test("the picture tells what only the result knows: wrong bytes, and that the run came to its end")
  func results() throws {
    let samples = Array(Self.run.dropLast())
    for (result, words) in [
      (#"{"result": {"wrongBytes": 0, "phases": [{"wrongBytes": 7}, {"wrongBytes": 2}]}}"#, "7 wrong bytes"),
      (#"{"result": {"entries": 3}}"#, "0 wrong bytes"), ("", "0 wrong bytes, interrupted"),
    ] {
      let chart = RunChart(try Self.record(samples + (result.isEmpty ? [] : [result])))
      #expect(chart.svg.contains(">\(words)</text>"), "\(result)")
      #expect(chart.description.contains("interrupted") == result.isEmpty)
    }
    // A result that was cut is none.
    let cut = try RunRecord(([Self.header] + samples + [#"{"result": {"wro"#]).joined(separator: "\n"), name: "run")
    #expect(!cut.isFinished && cut.wrongBytes == 0)
    #expect(throws: ToolFailure.self) { try Self.record([#"{"result": {"wro"#] + samples) }
  }

  @Test("of a long run as much is drawn as can be seen, and every event")
  func long() throws {
    let samples = (0..<50_000).map {
      #"{"seconds":\#(Double($0) / 10),"residentBytes":\#($0),"hits":\#($0),"misses":1"#
        + ($0 % 5001 == 7 ? #","event":"e"}"# : "}")
    }
    let chart = RunChart(try Self.record(samples))
    let svg = chart.svg
    #expect(svg.utf8.count < 200_000 && svg.components(separatedBy: "class=\"event\"").count == 11)
    #expect(Elements(svg).points("polygon", "resident").count > 1000 && chart.hitRatios.last?.to == 4999.9)
  }

  @Test("words that have no room beside those before are left out; their lines stay, and the description has all of them")
  func crowded() throws {
    let samples = (0..<200).map {
      #"{"seconds":\#(Double($0) / 10),"phase":"phase \#($0 / 2)","event":"memory is taken","hits":\#($0),"misses":1}"#
    }
    let chart = RunChart(try Self.record(samples))
    let elements = Elements(chart.svg)
    for (style, least) in [("label", 3), ("mark", 3)] {
      let words = elements.all.filter {
        $0.name == "text" && $0.attributes["class"] == style && $0.text.contains(style == "mark" ? "taken" : "phase")
      }
      let places = words.map { Double($0.attributes["x"]!)! }
      #expect(words.count >= least && words.count < 20)
      for (one, next) in zip(places, places.dropFirst()) {
        #expect(next - one > 40)
      }
    }
    #expect(elements.all.count { $0.attributes["class"] == "event" } == 200)
    #expect(chart.description.components(separatedBy: "memory is taken").count == 201)
  }

  @Test("what is no record is refused by name and line; the line that an interrupted run left unfinished is passed over")
  func refused() throws {
    let samples = try RunRecord(Self.header + "\n" + Self.run.prefix(4).joined(separator: "\n") + "\n{\"seco", name: "run")
      .samples
    #expect(samples.count == 4)
    // A last line that only lacks its end is one.
    #expect(try RunRecord(Self.header + "\n" + Self.run.prefix(4).joined(separator: "\n"), name: "run").samples.count == 4)
    for (lines, words) in [
      ([Self.run[0]], "fewer than two samples"), (["nonsense", Self.run[0]], "line 2 is no sample"),
      ([Self.run[1], Self.run[0]], "line 3 is earlier"), ([#"{"seconds":"x"}"#], "line 2 is no sample"),
    ] {
      let error = #expect(throws: ToolFailure.self) { try Self.record(lines) }
      #expect(error?.description.contains(words) == true, "\(error as Any)")
    }
    for (text, words) in [
      ("", "no record of a run"), ("{}\n", "no record of a run"),
      (#"{"run":"demo","format":2,"about":""}"# + "\n", "newer version"),
    ] {
      let error = #expect(throws: ToolFailure.self) { try RunRecord(text, name: "run") }
      #expect(error?.description.contains(words) == true, "\(error as Any)")
    }
    let missing = #expect(throws: ToolFailure.self) { try RunRecord(path: "/nowhere/run") }
    #expect(missing?.description.contains("/nowhere/run") == true)
  }

  @Test("a recorder writes what is read again; a place where nothing can be written is refused")
  func recorder() throws {
    let root = try FakeRoot()
    defer { root.remove() }
    let path = root.path + "/run.jsonl"
    let recorder = try RunRecorder(path)
    let header = RunHeader(run: "demo", format: 1, about: "\"quoted\" größe /path", limitBytes: 5)
    recorder.begin(header)
    try recorder.note { ($0.phase, $0.residentBytes, $0.hits) = ("filling", .max, 0) }
    try recorder.note { $0.event = "a neighbour arrives" }
    try recorder.end(["entries": 3])
    let record = try RunRecord(path: path)
    #expect(record.header == header && record.samples.count == 2)
    #expect(record.samples[0].residentBytes == .max && record.samples[1].event == "a neighbour arrives")
    // Nothing is appended to an earlier record, also without a sample.
    let next = try RunRecorder(path)
    next.begin(header)
    try next.end(["entries": 4])
    let text = try String(contentsOfFile: path, encoding: .utf8)
    #expect(text.split(separator: "\n").count == 2 && text.hasSuffix("{\"result\": {\"entries\": 4}}\n"))
    #expect(throws: ToolFailure.self) { try RunRecorder(root.path + "/none/run") }
  }

  @Test("the command prints the picture, or writes it; called wrongly it says so")
  func command() throws {
    let root = try FakeRoot()
    defer { root.remove() }
    try root.write("run.jsonl", ([Self.header] + Self.run).joined(separator: "\n") + "\n")
    let program = OwnProgram.beside("purgeablectl")
    let printed = try ChildProcess.run(program, ["report", root.path + "/run.jsonl"])
    #expect(printed.status == 0 && printed.output.hasPrefix("<svg ") && printed.errors.isEmpty)
    let written = try ChildProcess.run(program, ["report", root.path + "/run.jsonl", "--output", root.path + "/run.svg"])
    #expect(written.status == 0 && written.output.isEmpty)
    #expect(try String(contentsOfFile: root.path + "/run.svg", encoding: .utf8) == printed.output)
    // Through a link, into the file that is there, which stays what it is.
    try root.write("old.svg", String(repeating: "x", count: 100_000))
    #expect(unsafe chmod(root.path + "/old.svg", 0o600) == 0 && symlink("old.svg", root.path + "/link.svg") == 0)
    #expect(try ChildProcess.run(program, ["report", root.path + "/run.jsonl", "--output", root.path + "/link.svg"]).status == 0)
    #expect(try String(contentsOfFile: root.path + "/old.svg", encoding: .utf8) == printed.output)
    var status = stat()
    #expect(unsafe lstat(root.path + "/old.svg", &status) == 0 && status.st_mode == S_IFREG | 0o600)
    var places = [(root.path, "Is a directory")]
    let isDevice = unsafe lstat("/dev/full", &status) == 0 && status.st_mode & S_IFMT == S_IFCHR
    if isDevice { places.append(("/dev/full", "No space left")) }
    for (place, word) in places {
      let refused = try ChildProcess.run(program, ["report", root.path + "/run.jsonl", "--output", place])
      #expect(refused.status == 1 && refused.errors.contains("\"\(place)\" cannot be written: \(word)"), "\(refused.errors)")
    }
    for command in [["replay", root.path, "--capacity", "1"], ["demo"], ["stress", "hot"]] {
      let both = try ChildProcess.run(program, command + ["--record", "-", "--json"])
      #expect(both.status == 2 && both.output.isEmpty && both.errors.contains("--record: --json"), "\(both.errors)")
    }
    let itself = try ChildProcess.run(program, ["report", root.path + "/run.jsonl", "--output", root.path + "/run.jsonl"])
    #expect(itself.status == 2 && itself.errors.contains("is the run"))
    #expect(try ChildProcess.run(program, ["report", root.path + "/run.jsonl"]).output == printed.output)
    let dash = try ChildProcess.run(program, ["report", root.path + "/run.jsonl", "--output", "-"])
    #expect(dash.status == 0 && dash.output == printed.output)
    let piped = try ChildProcess.run(
      "/bin/sh", ["-c", "cat \"$1\" | \"$0\" report -", program, root.path + "/run.jsonl"])
    #expect(piped.status == 0 && piped.output == printed.output, "\(piped.errors)")
    #expect(try ChildProcess.run(program, ["report", root.path]).errors.contains("Is a directory"))
    #expect(try ChildProcess.run(program, ["report"]).status == 2)
    let missing = try ChildProcess.run(program, ["report", root.path + "/none"])
    #expect(missing.status == 1 && missing.errors.contains(root.path + "/none"))
  }
}
