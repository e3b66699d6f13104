// SPDX-License-Identifier: MIT

#include "thread_storage.h"

static _Thread_local char storage[1 << 20];

char *thread_storage(void) { return storage; }
