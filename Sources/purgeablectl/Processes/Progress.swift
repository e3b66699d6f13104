// SPDX-License-Identifier: MIT
// Progress on standard error during long work: one line, rewritten, on a terminal; elsewhere a line now and then.

import Glibc
import ToolSupport

struct Progress {
  private let isTerminal = isatty(STDERR_FILENO) == 1
  private var title: String?
  private var lastTime: UInt64 = 0
  private var isLineOpen = false

  /// Shows where a part has got to, unless that was shown a moment ago.
  mutating func show(_ title: String, share: Double?, _ details: String) {
    let isNew = title != self.title
    let pause: UInt64 = isTerminal ? 100_000_000 : 10_000_000_000
    let now = Clock.now
    guard isNew || now - lastTime >= pause else { return }
    self.title = title
    lastTime = now
    let percent = share.map { " \(Int(min(1, max(0, $0)) * 100)) %" } ?? ""
    say(title + percent + (details.isEmpty ? "" : ": " + details))
  }

  /// A line that stays.
  mutating func note(_ line: String) {
    end()
    complain(line)
  }

  /// Clears the line that is being rewritten.
  mutating func end() {
    if isLineOpen { write("\r\u{1B}[K") }
    isLineOpen = false
  }

  private mutating func say(_ line: String) {
    if isTerminal {
      // Cut to what fits: a line that wraps cannot be rewritten.
      write("\r\u{1B}[K" + String(line.prefix(width - 1)))
      isLineOpen = true
    } else {
      complain(line)
    }
  }

  private var width: Int {
    var size = winsize()
    let known = unsafe ioctl(STDERR_FILENO, UInt(TIOCGWINSZ), &size) == 0 && size.ws_col > 1
    return known ? Int(size.ws_col) : 80
  }

  private func write(_ text: String) {
    let bytes = Array(text.utf8)
    // Progress that cannot be shown is not worth an error.
    _ = unsafe bytes.withUnsafeBytes { unsafe Glibc.write(STDERR_FILENO, $0.baseAddress, $0.count) }
  }
}
