// SPDX-License-Identifier: MIT
// What the demonstration found, as a table and as JSON.

import Purgeable
import ToolSupport

struct DemoReport: Sendable {
  var directory: String
  var options: DemoOptions
  /// The files that were chosen.
  var fileCount: UInt64
  var fileBytes: UInt64
  var limitBytes: UInt64
  /// What made the pressure, in words.
  var pressure: String
  var worker: WorkerResult
  var check: FinalCheck
  /// Of the same reads in a cache that always fills the room that the neighbour left; nil where nobody asked.
  var hitsInRoom: UInt64?
  /// How the neighbour ended, where that was not in good order.
  var neighbourFailure: String?
  var dictionary: String
  var nanoseconds: UInt64

  /// By digest, and against the files.
  var wrongBytes: UInt64 { worker[.wrongBytes] + check.wrongBytes }

  var exitStatus: Int32 { wrongBytes == 0 && neighbourFailure == nil ? 0 : 1 }

  // MARK: The table

  var table: String {
    let reasons = worker.missesByReason.map { "\($0.reason) \(Figures.count($0.count))" }.joined(separator: ", ")
    var rows: [(String, String, String)] = [
      ("entries", Figures.count(worker[.entries]), "\(ByteSize(worker[.loadedBytes])), one for each file"),
      ("reads", Figures.count(worker[.reads]), "skewed: k-th most popular with chance k^-\(ReadOrder.exponent)"),
      ("hits", Figures.count(worker[.hits]), Figures.share(worker[.hits], of: worker[.reads])),
      ("misses", Figures.count(worker.missCount), reasons),
      ("wrong bytes", Figures.count(wrongBytes), "each hit checked by its digest: \(Digest.name)"),
      ("resident", "\(ByteSize(worker[.residentBytes]))", "of \(ByteSize(worker[.heldBytes])) held"),
      ("offered", "\(ByteSize(worker[.offeredBytes]))", "the kernel may take it at any moment"),
      (
        "discarded", "\(ByteSize(worker[.discardedBytes]))",
        "\(Figures.count(worker[.discardedEntries])) entries lost to the kernel, found missing when asked for or at the end"
      ),
      ("hit", time(.hitNanoseconds), "median of \(worker[.sampleCount]) entries of \(meanSample) each, on average"),
      ("reload, warm", time(.reloadNanoseconds), ratio(.reloadNanoseconds, "from the page cache")),
      ("reload, cold", time(.coldReloadNanoseconds), ratio(.coldReloadNanoseconds, "from the disk")),
      (
        "left", Figures.count(check.entries),
        "entries, \(ByteSize(check.bytes)), compared with their files outside of the group: \(check.wrongBytes) wrong bytes"
      ),
    ]
    if let hitsInRoom {
      let share = Figures.share(worker[.hits], of: hitsInRoom)
      let row = ("in that room", Figures.count(hitsInRoom), "hits, without pressure; the run's are \(share) of them")
      rows.insert(row, at: 3)
    }
    let widths = (rows.map(\.0.count).max() ?? 0, rows.map(\.1.count).max() ?? 0)
    let lines = rows.map { row in
      row.0.padded(to: widths.0 + 2) + row.1.indented(to: widths.1) + "  " + row.2
    }
    let time = Figures.time(nanoseconds)
    return """
      \(Figures.count(fileCount)) files of \(directory), \(ByteSize(fileBytes)), seed \(options.seed), in \(time)
      pressure: \(pressure)

      \(lines.joined(separator: "\n"))

      a plain dictionary: \(dictionary)
      \(remarks.joined(separator: "\n"))
      """
  }

  /// Remarks on everything out of the ordinary, and the verdict.
  private var remarks: [String] {
    var lines: [String] = []
    if worker[.entries] < fileCount {
      lines.append("\(Figures.count(fileCount - worker[.entries])) files were not read: no time was left, or they could not be.")
    }
    if worker[.refusedStores] > 0 { lines.append("\(Figures.count(worker[.refusedStores])) stores were refused by the cache.") }
    let changed = worker[.changedFiles] + check.changedFiles
    if changed > 0 { lines.append("\(Figures.count(changed)) files were changed by somebody meanwhile, and are not judged.") }
    if options.replaysInRoom, hitsInRoom == nil { lines.append("--in-room: there was no neighbour whose room could be filled.") }
    if let neighbourFailure { lines.append("NOT AS PROMISED: \(neighbourFailure).") }
    if worker[.discardedEntries] == 0 { lines.append("The kernel took nothing: this run shows little.") }
    lines.append(wrongBytes == 0 ? "No wrong byte." : "WRONG BYTES: this should be reported as a bug.")
    return lines
  }

  private func time(_ field: WorkerResult.Field) -> String {
    worker[field] == 0 ? "-" : Figures.time(worker[field])
  }

  private func ratio(_ field: WorkerResult.Field, _ place: String) -> String {
    guard worker[field] > 0, worker[.hitNanoseconds] > 0 else { return place }
    return "\(place): \(Figures.oneDecimal(Double(worker[field]) / Double(worker[.hitNanoseconds]))) times a hit"
  }

  private var meanSample: ByteSize { ByteSize(worker[.sampleBytes] / max(1, worker[.sampleCount])) }

  // MARK: JSON

  var json: JSON {
    func number(_ field: WorkerResult.Field) -> JSON { .unsigned(worker[field]) }
    func measured(_ field: WorkerResult.Field) -> JSON { worker[field] == 0 ? .null : .unsigned(worker[field]) }
    let misses = MissReason.allCases.map { (name: "\($0)", value: JSON.unsigned(worker.misses[$0.rawValue])) }
    return [
      "directory": .string(directory), "seed": .unsigned(options.seed), "sizeBytes": .unsigned(options.sizeBytes),
      "files": .unsigned(fileCount), "fileBytes": .unsigned(fileBytes), "limitBytes": .unsigned(limitBytes),
      "pressure": .string(pressure), "neighbourFailure": neighbourFailure.map { .string($0) } ?? .null,
      "entries": number(.entries), "loadedBytes": number(.loadedBytes),
      "reads": number(.reads), "hits": number(.hits),
      "hitsInRoom": hitsInRoom.map { .unsigned($0) } ?? .null, "misses": .object(misses), "wrongBytes": .unsigned(wrongBytes),
      "digest": .string(Digest.name), "residentBytes": number(.residentBytes), "offeredBytes": number(.offeredBytes),
      "heldBytes": number(.heldBytes), "ordinaryBytes": number(.ordinaryBytes), "discardedBytes": number(.discardedBytes),
      "discardedEntries": number(.discardedEntries), "pagedOutBytes": number(.pagedOutBytes),
      "refusedStores": number(.refusedStores), "hitNanoseconds": measured(.hitNanoseconds),
      "reloadNanoseconds": measured(.reloadNanoseconds), "coldReloadNanoseconds": measured(.coldReloadNanoseconds),
      "sampledEntries": number(.sampleCount), "sampledBytes": number(.sampleBytes),
      "comparedEntries": .unsigned(check.entries), "comparedBytes": .unsigned(check.bytes),
      "changedFiles": .unsigned(worker[.changedFiles] + check.changedFiles), "dictionaryOutcome": .string(dictionary),
      "loadNanoseconds": number(.loadNanoseconds), "readNanoseconds": number(.readNanoseconds),
      "totalNanoseconds": .unsigned(nanoseconds),
    ]
  }
}
