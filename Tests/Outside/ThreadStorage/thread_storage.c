// SPDX-License-Identifier: MIT

#include "thread_storage.h"

// 1024 KiB leave no room at all; STORAGE_KIB=470 in the environment of the build leaves a little.
static _Thread_local char storage[STORAGE_KIB << 10];

char *thread_storage(void) { return storage; }
