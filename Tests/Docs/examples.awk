# SPDX-License-Identifier: MIT
# Takes the code examples out of documents and out of documentation comments (`///`), one file each.
#
#   awk -v folder=WHERE -f examples.awk FILE...        prints one line for each: LANGUAGE DOCUMENT LINE FILE
#
# An example is a fenced block that names its language (swift, c), or, in a comment, lines after an empty one that are indented by
# four columns, as Markdown has it. Blocks of other kinds are printed with their kind, so that they are counted: `sh`, `text`
# (also a fence without a name, and lines indented further, which are drawings). An unknown kind is printed as it is.
#
# Each example becomes the body of a function, with `#sourceLocation` or `#line`, so that compilers name document and line. What
# cannot stand in a function stands before it: `import`, `#include` and functions that begin with `static`.

function begin(name, at) {
  kind = name
  first = at
  count = 0
}

function finish(   i, path) {
  if (kind == "") return
  while (count > 0 && lines[count] ~ /^ *$/) count--
  path = "-"
  if (kind == "swift" || kind == "c") {
    path = folder "/" (++examples) "." kind
    if (kind == "swift") write_swift(path); else write_c(path)
    close(path)
  }
  print kind, FILENAME_OF_BLOCK, first, path
  kind = ""
}

function write_swift(path,   i) {
  print "import Purgeable" > path
  for (i = 1; i <= count; i++) {
    if (lines[i] !~ /^import /) continue
    printf "#sourceLocation(file: \"%s\", line: %d)\n%s\n", FILENAME_OF_BLOCK, first + i - 1, lines[i] > path
  }
  printf "func example() async throws {\n#sourceLocation(file: \"%s\", line: %d)\n", FILENAME_OF_BLOCK, first > path
  for (i = 1; i <= count; i++) print (lines[i] ~ /^import / ? "" : lines[i]) > path
  print "}" > path
}

function write_c(path,   i, outside, inside) {
  for (i = 1; i <= count; i++) {
    if (lines[i] ~ /^(#include|static) ?/) {
      outside = 1
      printf "#line %d \"%s\"\n", first + i - 1, FILENAME_OF_BLOCK > path
    }
    above[i] = outside
    if (!outside) continue
    print lines[i] > path
    if (lines[i] ~ /^#include/ || lines[i] ~ /^}/ || lines[i] ~ /^static.*[};]( *\/\*.*)?$/) outside = 0
  }
  printf "static void example(void)\n{\n#line %d \"%s\"\n", first, FILENAME_OF_BLOCK > path
  for (i = 1; i <= count; i++) print (above[i] ? "" : lines[i]) > path
  print "}" > path
}

function end_of_comment() {
  if (fenced) { print "unclosed", FILENAME_OF_BLOCK, first, "-"; kind = ""; fenced = 0 }
  finish()
  after_blank = 1
}

FNR == 1 {
  end_of_comment()
  FILENAME_OF_BLOCK = FILENAME
  is_document = FILENAME ~ /\.md$/
  language = FILENAME ~ /\.swift$/ ? "swift" : "c"
}

{
  text = $0
  if (!is_document) {
    if (!match(text, /^ *\/\/\/ ?/)) { end_of_comment(); next }
    text = substr(text, RLENGTH + 1)
  }
}

fenced {
  if (text ~ /^ *``` *$/) { fenced = 0; finish(); after_blank = 0; next }
  lines[++count] = substr(text, 1, margin) ~ /^ *$/ ? substr(text, margin + 1) : text
  next
}

text ~ /^ *```/ {
  finish()
  match(text, /^ */)
  margin = RLENGTH
  tag = substr(text, margin + 4)
  begin(tag == "" ? "text" : tag, FNR + 1)
  fenced = 1
  next
}

kind != "" && text ~ /^(    .*| *)$/ { lines[++count] = substr(text, 5); after_blank = text ~ /^ *$/; next }
kind != "" { finish() }

!is_document && after_blank && text ~ /^    / {
  begin(text ~ /^    [^ ]/ ? language : "text", FNR)
  lines[++count] = substr(text, 5)
}

{ after_blank = text ~ /^ *$/ }

END { end_of_comment() }
