// SPDX-License-Identifier: MIT
// Names that the C examples of the documentation take as given.
#include <stdbool.h>

struct purgeable_region;

static struct purgeable_region *region;

static bool render(void *bytes) { return bytes != 0; }
static void use(const void *bytes) { (void)bytes; }
