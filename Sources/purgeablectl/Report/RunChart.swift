// SPDX-License-Identifier: MIT
// A record as one SVG, complete in itself: memory by state above, the hit ratio below, over time. Colours follow the reader's
// light or dark scheme; title and description are for those who have it read out.

import Foundation
import ToolSupport

struct RunChart {
  private let record: RunRecord
  /// What is drawn: more than there are points across would only make the file large.
  private let samples: [RunSample]
  private let end: Double
  private let mostBytes: Double

  private static let (width, height) = (960.0, 560.0)
  private static let (left, right) = (86.0, 24.0)
  /// Top and height of each panel.
  private static let memory = (top: 72.0, height: 250.0)
  private static let ratio = (top: 384.0, height: 110.0)

  init(_ record: RunRecord) {
    self.record = record
    samples = record.samples(most: 2000)
    end = max(record.samples.last?.seconds ?? 0, 0.001)
    let bytes = record.samples.flatMap { [$0.heldBytes, $0.residentBytes, $0.groupBytes].compactMap { $0 } }
    mostBytes = max(Double(max(bytes.max() ?? 0, record.header.limitBytes ?? 0)) * 1.12, 1)
  }

  // MARK: Places

  private func x(_ seconds: Double) -> Double { Self.left + seconds / end * (Self.width - Self.left - Self.right) }
  private func y(bytes: Double) -> Double { Self.memory.top + Self.memory.height * (1 - bytes / mostBytes) }
  private func y(ratio: Double) -> Double { Self.ratio.top + Self.ratio.height * (1 - ratio) }

  private static func text(_ number: Double) -> String { String(format: "%.1f", number) }
  private static func point(_ x: Double, _ y: Double) -> String { "\(text(x)),\(text(y))" }

  private static func escaped(_ text: String) -> String {
    // XML has no controls but tabs and ends of lines, and no U+FFFE and U+FFFF.
    func isNone(_ value: UInt32) -> Bool { value < 32 || value == 127 || value == 0xFFFE || value == 0xFFFF }
    return String(String.UnicodeScalarView(text.unicodeScalars.map { isNone($0.value) ? " " : $0 }))
      .replacingOccurrences(of: "&", with: "&amp;").replacingOccurrences(of: "<", with: "&lt;")
      .replacingOccurrences(of: ">", with: "&gt;")
  }

  // MARK: Series

  /// The samples that tell a number, with it.
  private func series(_ field: KeyPath<RunSample, UInt64?>) -> [(seconds: Double, value: Double)] {
    samples.compactMap { sample in sample[keyPath: field].map { (sample.seconds, Double($0)) } }
  }

  /// What of the cache is in memory, and would be the kernel's at once.
  private var offered: [(seconds: Double, value: Double)] {
    samples.compactMap { sample in
      sample.offeredBytes.map { (sample.seconds, Double(min($0, sample.residentBytes ?? $0))) }
    }
  }

  /// The share of hits between one sample and the next of a phase, for those in which anything was read.
  var hitRatios: [(from: Double, to: Double, value: Double)] {
    var ratios: [(Double, Double, Double)] = []
    var last: (seconds: Double, hits: UInt64, misses: UInt64, phase: String?)?
    for sample in samples {
      guard let hits = sample.hits, let misses = sample.misses else { continue }
      defer { last = (sample.seconds, hits, misses, sample.phase) }
      guard let last, last.phase == sample.phase, hits >= last.hits, misses >= last.misses else { continue }
      let reads = Double(hits - last.hits) + Double(misses - last.misses)
      if reads > 0 { ratios.append((last.seconds, sample.seconds, Double(hits - last.hits) / reads)) }
    }
    return ratios
  }

  /// Where they are drawn: at the ends of their times, and the first of a row at its beginning too.
  private var hitPoints: [(seconds: Double, value: Double)] {
    var points: [(seconds: Double, value: Double)] = []
    for (from, to, value) in hitRatios {
      if points.last?.seconds != from { points.append((from, value)) }
      points.append((to, value))
    }
    return points
  }

  // MARK: Drawing

  /// Not across times of which nothing is known.
  private func line(_ points: [(seconds: Double, value: Double)], _ style: String, _ y: (Double) -> Double) -> String {
    let longest = max(1.5, end / 20)
    var parts: [[String]] = []
    var last = -Double.infinity
    for point in points {
      if point.seconds - last > longest { parts.append([]) }
      parts[parts.count - 1].append(Self.point(x(point.seconds), y(point.value)))
      last = point.seconds
    }
    return parts.filter { $0.count > 1 }.map { "<polyline class=\"\(style)\" points=\"\($0.joined(separator: " "))\"/>" }
      .joined(separator: "\n")
  }

  private func area(_ points: [(seconds: Double, value: Double)], _ style: String, _ y: (Double) -> Double) -> String {
    guard let first = points.first, let last = points.last, points.count > 1 else { return "" }
    let places =
      [Self.point(x(first.seconds), y(0))] + points.map { Self.point(x($0.seconds), y($0.value)) }
      + [Self.point(x(last.seconds), y(0))]
    return "<polygon class=\"\(style)\" points=\"\(places.joined(separator: " "))\"/>"
  }

  private func label(_ x: Double, _ y: Double, _ text: String, _ style: String = "label", anchor: String = "start") -> String {
    "<text class=\"\(style)\" x=\"\(Self.text(x))\" y=\"\(Self.text(y))\" text-anchor=\"\(anchor)\">\(Self.escaped(text))</text>"
  }

  private func rule(_ y: Double, _ style: String = "grid") -> String {
    "<line class=\"\(style)\" x1=\"\(Self.text(Self.left))\" x2=\"\(Self.text(Self.width - Self.right))\" "
      + "y1=\"\(Self.text(y))\" y2=\"\(Self.text(y))\"/>"
  }

  /// A round number of which about four fit.
  private static func step(_ most: Double, binary: Bool) -> Double {
    let rough = max(most / 4, .leastNormalMagnitude)
    if binary { return pow(2, log2(rough).rounded(.up)) }
    let power = pow(10, log10(rough).rounded(.down))
    return [1, 2, 5, 10].map { $0 * power }.first { $0 >= rough } ?? rough
  }

  private var axes: [String] {
    var parts: [String] = []
    for bytes in stride(from: 0, through: mostBytes, by: Self.step(mostBytes, binary: true)) {
      parts += [rule(y(bytes: bytes)), label(Self.left - 8, y(bytes: bytes) + 4, "\(Self.size(bytes))", anchor: "end")]
    }
    for ratio in [0, 0.5, 1] {
      parts += [rule(y(ratio: ratio)), label(Self.left - 8, y(ratio: ratio) + 4, "\(Int(ratio * 100)) %", anchor: "end")]
    }
    let under = Self.ratio.top + Self.ratio.height + 20
    for seconds in stride(from: 0, through: end, by: Self.step(end, binary: false)) {
      parts.append(label(x(seconds), under, "\(Self.plain(seconds)) s", anchor: "middle"))
    }
    return parts
  }

  private static func size(_ bytes: Double) -> ByteSize { ByteSize(bytes < 0x1p64 ? UInt64(bytes) : .max) }

  private static func plain(_ number: Double) -> String {
    number == number.rounded() && abs(number) < 1e6 ? String(Int(number)) : String(format: "%g", number)
  }

  /// What a letter takes, about.
  private static let letterWidth = 7.2

  /// A vertical line for each event, and a word for each phase where it begins; the words as far as there is room for them.
  private var marks: [String] {
    var parts: [String] = []
    let bottom = Self.ratio.top + Self.ratio.height
    func upright(_ seconds: Double, _ style: String) -> String {
      "<line class=\"\(style)\" x1=\"\(Self.text(x(seconds)))\" x2=\"\(Self.text(x(seconds)))\" "
        + "y1=\"\(Self.text(Self.memory.top))\" y2=\"\(Self.text(bottom))\"/>"
    }
    var phase: String?
    var (wordsEnd, eventsEnd) = (0.0, 0.0)
    for sample in record.samples {
      if let event = sample.event {
        // To the left where there is no room on the right.
        let isLate = sample.seconds > end * 0.8
        let width = Self.letterWidth * Double(event.count) + 12
        let start = x(sample.seconds) - (isLate ? width : 0)
        parts.append(upright(sample.seconds, "event"))
        if start >= eventsEnd {
          eventsEnd = start + width
          parts.append(
            label(x(sample.seconds) + (isLate ? -6 : 6), Self.memory.top + 14, event, "mark", anchor: isLate ? "end" : "start"))
        }
      }
      if let its = sample.phase, its != phase {
        if phase != nil { parts.append(upright(sample.seconds, "phase")) }
        phase = its
        let (start, width) = (x(sample.seconds), Self.letterWidth * Double(its.count) + 12)
        if start >= wordsEnd, start + width <= Self.width {
          wordsEnd = start + width
          parts.append(label(start + 6, Self.ratio.top - 26, its, "label"))
        }
      }
    }
    return parts
  }

  private var legend: [String] {
    var items = [("resident", "in memory")]
    if !offered.isEmpty { items.append(("offered", "of it on offer")) }
    if record.samples.contains(where: { $0.heldBytes ?? 0 > $0.residentBytes ?? 0 }) {
      items.append(("held", "taken by the kernel"))
    }
    if !series(\.groupBytes).isEmpty { items.append(("group", "all of the group")) }
    if record.header.limitBytes != nil { items.append(("limit", "the group's limit")) }
    var parts: [String] = []
    var at = Self.left
    for (style, words) in items {
      let isLine = style == "group" || style == "limit"
      parts.append(
        isLine
          ? "<line class=\"\(style)\" x1=\"\(Self.text(at))\" x2=\"\(Self.text(at + 18))\" y1=\"56\" y2=\"56\"/>"
          : "<rect class=\"\(style)\" x=\"\(Self.text(at))\" y=\"50\" width=\"18\" height=\"12\"/>")
      parts.append(label(at + 24, 60, words))
      at += 44 + Self.letterWidth * Double(words.count)
    }
    return parts
  }

  // MARK: Words

  private var title: String { "\(record.header.run): \(record.header.about)" }

  /// The title above the picture, as far as there is room: the ends of a long path tell most.
  private var drawnTitle: String {
    let most = 92
    return title.count <= most ? title : title.prefix(most / 2 - 2) + " ... " + title.suffix(most / 2 - 3)
  }

  /// What is to be seen, in sentences.
  var description: String {
    let time = end < 1 ? String(format: "%.2g", end) : Self.text(end)
    var sentences = ["Memory of the cache and its share of hits over \(time) seconds."]
    let resident = record.samples.compactMap(\.residentBytes)
    if let last = resident.last, let most = resident.max() {
      sentences.append("The cache has up to \(ByteSize(most)) in memory, and \(ByteSize(last)) at the end.")
    }
    let missing = record.samples.compactMap { sample -> UInt64? in
      guard let held = sample.heldBytes, let resident = sample.residentBytes else { return nil }
      return held - min(held, resident)
    }
    if let most = offered.map(\.value).max(), most > 0 { sentences.append("Up to \(Self.size(most)) of that is on offer.") }
    if let most = missing.max(), most > 0 { sentences.append("Up to \(ByteSize(most)) of what it holds is not in memory.") }
    if let limit = record.header.limitBytes { sentences.append("The group's limit is \(ByteSize(limit)).") }
    for sample in record.samples {
      if let event = sample.event { sentences.append("At \(Self.text(sample.seconds)) s: \(event).") }
    }
    if let last = record.samples.last(where: { $0.hits != nil && $0.misses != nil }) {
      let (hits, reads) = (Double(last.hits ?? 0), Double(last.hits ?? 0) + Double(last.misses ?? 0))
      if reads > 0 {
        sentences.append(
          "\(Self.text(100 * hits / reads)) % of \(Figures.count(reads < 0x1p64 ? UInt64(reads) : .max)) reads were hits.")
      }
    }
    if let wrong = record.wrongBytes { sentences.append("\(wrong) wrong bytes.") }
    if !record.isFinished { sentences.append("The run was interrupted: it has no result.") }
    return sentences.joined(separator: " ")
  }

  private static let style = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1d2733; }
    .title { font-size: 17px; font-weight: 600; } .label { fill: #47576a; } .mark { fill: #a32d00; font-weight: 600; }
    .paper { fill: #ffffff; } .grid { stroke: #dde3ea; }
    .resident { fill: #1f5fa8; } .offered { fill: #5b9be0; } .held { fill: #c9dcf2; }
    .group { fill: none; stroke: #6b4ea8; stroke-width: 1.5; } .limit { stroke: #47576a; stroke-dasharray: 6 4; }
    .ratio { fill: none; stroke: #1b8a5a; stroke-width: 2; }
    .event { stroke: #d0470e; stroke-width: 1.5; } .phase { stroke: #b4c0cd; stroke-dasharray: 2 4; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf5; } .label { fill: #a8b6c6; } .mark { fill: #ff9a66; }
      .paper { fill: #12181f; } .grid { stroke: #2a3542; }
      .resident { fill: #8fc1ff; } .offered { fill: #4d97e6; } .held { fill: #28415e; }
      .group { stroke: #b79cf0; } .limit { stroke: #a8b6c6; }
      .ratio { stroke: #46c58f; } .event { stroke: #ff7a3c; } .phase { stroke: #4b5a6b; }
    }
    """

  var svg: String {
    func bytes(_ value: Double) -> Double { y(bytes: value) }
    func share(_ value: Double) -> Double { y(ratio: value) }
    var parts = [
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 \(Int(Self.width)) \(Int(Self.height))\" "
        + "width=\"\(Int(Self.width))\" height=\"\(Int(Self.height))\" role=\"img\" aria-labelledby=\"title description\">",
      "<title id=\"title\">\(Self.escaped(title))</title>",
      "<desc id=\"description\">\(Self.escaped(description))</desc>", "<style>\n\(Self.style)\n</style>",
      "<rect class=\"paper\" width=\"100%\" height=\"100%\"/>", label(Self.left, 32, drawnTitle, "title"),
    ]
    parts += axes
    parts += [area(series(\.heldBytes), "held", bytes), area(series(\.residentBytes), "resident", bytes)]
    parts.append(area(offered, "offered", bytes))
    if let limit = record.header.limitBytes { parts.append(rule(y(bytes: Double(limit)), "limit")) }
    parts += [line(series(\.groupBytes), "group", bytes), line(hitPoints, "ratio", share)]
    parts += marks
    parts += legend
    parts.append(label(Self.left, Self.ratio.top - 8, "hits among reads"))
    parts.append(label(Self.width - Self.right, Self.height - 14, footnote, anchor: "end"))
    parts.append("</svg>")
    return parts.filter { !$0.isEmpty }.joined(separator: "\n")
  }

  private var footnote: String {
    [record.wrongBytes.map { "\($0) wrong bytes" }, record.isFinished ? nil : "interrupted"].compactMap(\.self)
      .joined(separator: ", ")
  }
}
