// SPDX-License-Identifier: MIT
// Before the first test, and before the library's thread can start.

#include "pressure_cases.h"

__attribute__((constructor)) static void begin(void) { pressure_cases_begin(); }
