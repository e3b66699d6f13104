// SPDX-License-Identifier: MIT
// Runs the core's cases without Swift:
//
//   core-tests [PART-OF-A-NAME]          all cases, or those whose name has the part in it, with a random seed
//   core-tests --gate [PART-OF-A-NAME]   those of them that say the same on a busy machine, short, always with the same seed
//   core-tests --case N                  one case by its number: as in the gate, or as in the full run if PURGEABLE_TESTS=full
//
// The last line is the count. One case by its number prints only its report, and ends with 0 for passed, 1 for failed, 77 for
// skipped.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

static int run_one(size_t index) {
  const char *tests = getenv("PURGEABLE_TESTS");
  case_report_t report;
  cases_run(index, tests != NULL && strcmp(tests, "full") == 0, &report);
  fputs(report.text, stdout);
  return report.failure_count != 0 ? 1 : report.skipped ? 77 : 0;
}

static void print_report(const char *word, const char *name, const case_report_t *report) {
  printf("%s %s\n", word, name);
  for (const char *line = report->text; *line != 0;) {
    const char *end = strchr(line, '\n');
    size_t length = end == NULL ? strlen(line) : (size_t)(end - line);
    printf("        %.*s\n", (int)length, line);
    line += length + (end != NULL);
  }
}

int main(int argc, char **argv) {
  int passed = 0, failed = 0, skipped = 0, left_out = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc == 3 && strcmp(argv[1], "--case") == 0) return run_one(strtoul(argv[2], NULL, 10));
  bool is_gate = argc > 1 && strcmp(argv[1], "--gate") == 0;
  const char *part = argc > 1 + is_gate ? argv[1 + is_gate] : "";
  for (size_t index = 0; index < cases_count(); index++) {
    if (strstr(cases_name(index), part) == NULL) continue;
    if (is_gate && cases_is_full(index)) {
      left_out++;
      continue;
    }
    case_report_t report;
    cases_run(index, !is_gate, &report);
    if (report.failure_count != 0) {
      failed++;
    } else if (report.skipped) {
      skipped++;
    } else {
      passed++;
    }
    print_report(report.failure_count != 0 ? "FAILED " : report.skipped ? "skipped" : "passed ", cases_name(index), &report);
  }
  if (is_gate) printf("%d left out: they belong to the full run\n", left_out);
  printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed != 0 || passed == 0;
}
