# SPDX-License-Identifier: MIT
# What documents and comments name, one line each, with tabs: KIND DOCUMENT LINE TEXT
#
#   link      the target of a link
#   command   a line of a block of commands (```sh)
#   span      a code span
#   file      in a comment: a page of docs/, or the name of a source file
#   symbol    in a comment: a name of the core
#
# Of the change log only the newest version is looked at: older ones name what was there then.

function found(kind, text) { printf "%s\t%s\t%d\t%s\n", kind, FILENAME, FNR, text }

FNR == 1 { fence = ""; is_document = FILENAME ~ /\.md$/; versions = 0 }

!is_document {
  if (!match($0, /^ *(#|\/\/)|[;{}),] *\/\/ /) || $0 ~ /#include|^#(define|if|el|endif)/) next
  rest = comment = substr($0, RSTART + RLENGTH - 1)
  while (match(rest, /[A-Za-z0-9_+\/.-]+\.(swift|c|h|md)($|[^A-Za-z])/)) {
    text = substr(rest, RSTART, RLENGTH)
    sub(/[^A-Za-z]$/, "", text)
    found("file", text)
    rest = substr(rest, RSTART + RLENGTH)
  }
  rest = comment
  while (match(rest, /purgeable_[A-Za-z0-9_]*[a-z0-9]/)) {
    text = substr(rest, RSTART, RLENGTH)
    rest = substr(rest, RSTART + RLENGTH)
    if (rest !~ /^(_|\.h|\.c)/) found("symbol", text)
  }
  next
}

FILENAME ~ /CHANGELOG\.md$/ && /^## / { versions++ }
versions > 1 { next }

/^ *```/ { fence = fence == "" ? substr($0, index($0, "```") + 3) " " : ""; next }
fence == "sh " { if ($0 !~ /^ *$/) found("command", $0); next }
fence != "" { next }

{
  rest = $0
  while (match(rest, /\]\([^)]+\)/)) {
    found("link", substr(rest, RSTART + 2, RLENGTH - 3))
    rest = substr(rest, RSTART + RLENGTH)
  }
  rest = $0
  while (match(rest, /`[^`]+`/)) {
    found("span", substr(rest, RSTART + 1, RLENGTH - 2))
    rest = substr(rest, RSTART + RLENGTH)
  }
}
