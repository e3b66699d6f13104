// SPDX-License-Identifier: MIT
// Runs the core's cases without Swift: `core-tests [PART-OF-A-NAME]`. Ends with its own count.
// `core-tests --case N` runs one case by its number, prints only the report of that case, and ends with 0 for passed, 1 for
// failed, 77 for skipped.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

int main(int argc, char **argv) {
  int passed = 0, failed = 0, skipped = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc == 3 && strcmp(argv[1], "--case") == 0) {
    case_report_t report;
    cases_run(strtoul(argv[2], NULL, 10), &report);
    fputs(report.text, stdout);
    return report.failure_count != 0 ? 1 : report.skipped ? 77 : 0;
  }
  for (size_t index = 0; index < cases_count(); index++) {
    if (argc > 1 && strstr(cases_name(index), argv[1]) == NULL) continue;
    case_report_t report;
    cases_run(index, &report);
    if (report.failure_count != 0) {
      failed++;
    } else if (report.skipped) {
      skipped++;
    } else {
      passed++;
    }
    const char *word = report.failure_count != 0 ? "FAILED " : report.skipped ? "skipped" : "passed ";
    printf("%s %s\n", word, cases_name(index));
    for (const char *line = report.text; *line != 0;) {
      const char *end = strchr(line, '\n');
      size_t length = end == NULL ? strlen(line) : (size_t)(end - line);
      printf("        %.*s\n", (int)length, line);
      line += length + (end != NULL);
    }
  }
  printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
  return failed != 0 || passed == 0;
}
