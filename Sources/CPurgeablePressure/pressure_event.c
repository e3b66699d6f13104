// SPDX-License-Identifier: MIT
// What purgeable_pressure.h declares is implemented in Swift, in Sources/Purgeable/Thread/PressureMonitor+C.swift. Only this
// and its neighbours here are C.

#include "purgeable_pressure_event.h"

#include <sys/eventfd.h>

int32_t purgeable__pressure_event(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }
