// SPDX-License-Identifier: MIT
/// For this library's own use: a call of Linux that Swift does not import.
#ifndef PURGEABLE_PRESSURE_EVENT_H
#define PURGEABLE_PRESSURE_EVENT_H

#include <stdint.h>

/// eventfd(2): does not block, is closed on exec. A descriptor, or -1 and errno.
int32_t purgeable__pressure_event(void);

#endif
