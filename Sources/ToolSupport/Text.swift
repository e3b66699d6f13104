// SPDX-License-Identifier: MIT
// Text for people: columns, and lines on standard error.

import Glibc

extension String {
  /// The text with spaces after it, up to a width.
  package func padded(to width: Int) -> String {
    self + String(repeating: " ", count: Swift.max(0, width - count))
  }

  /// The text with spaces before it, up to a width.
  package func indented(to width: Int) -> String {
    String(repeating: " ", count: Swift.max(0, width - count)) + self
  }
}

/// How wide each column of a table is. Rows may differ in length.
package func columnWidths(_ rows: [[String]]) -> [Int] {
  var widths: [Int] = []
  for row in rows {
    for (column, cell) in row.enumerated() {
      if column == widths.count { widths.append(0) }
      widths[column] = max(widths[column], cell.count)
    }
  }
  return widths
}

/// The lines of a table: the first columns to the left, as names are, the others to the right, as numbers are.
package func tableLines(_ rows: [[String]], leftColumns: Int = 1) -> [String] {
  let widths = columnWidths(rows)
  return rows.map { row in
    row.enumerated().map { column, cell in
      column < leftColumns ? cell.padded(to: widths[column]) : cell.indented(to: widths[column])
    }.joined(separator: "  ")
  }
}

/// Writes a line to standard error.
package func complain(_ line: String) {
  var bytes = Array((line + "\n").utf8)[...]
  while !bytes.isEmpty {
    // `write` reads at most the bytes that the buffer has.
    let written = unsafe bytes.withUnsafeBytes { unsafe write(STDERR_FILENO, $0.baseAddress, $0.count) }
    if written < 0 && errno != EINTR { return }
    bytes = bytes.dropFirst(max(written, 0))
  }
}
