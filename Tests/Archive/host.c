// SPDX-License-Identifier: MIT
// A program that has the core from a static archive and uses a shared library with another copy of it: each keeps to its own.
// Run by `.ci/run archive`.

#include <purgeable.h>
#include <stdio.h>

int plugin_fill(size_t count, uint64_t *region_count, uint64_t *pending_limit);

static bool expect(const char *what, uint64_t value, uint64_t expected) {
  if (value != expected) fprintf(stderr, "%s: %llu, not %llu\n", what, (unsigned long long)value, (unsigned long long)expected);
  return value == expected;
}

int main(void) {
  purgeable_region_t *region;
  if (purgeable_region_create(1, NULL, &region) != 0) return 1;
  purgeable_set_pending_byte_limit(17);
  uint64_t theirs, their_limit;
  int error = plugin_fill(3, &theirs, &their_limit);
  if (error != 0) {
    fprintf(stderr, "the plugin: step %d\n", error);
    return 1;
  }
  purgeable_region_statistics_t statistics;
  if (purgeable_region_statistics(&statistics) != 0) return 1;
  bool is_right = expect("regions of the program", statistics.region_count, 1);
  is_right = expect("regions of the plugin", theirs, 3) && is_right;
  is_right = expect("the program's bound", purgeable_pending_byte_limit(), 17) && is_right;
  is_right = expect("the plugin's bound", their_limit, 4711) && is_right;
  if (is_right) printf("two copies, each by itself\n");
  return is_right ? 0 : 1;
}
