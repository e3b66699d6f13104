// SPDX-License-Identifier: MIT
/// Pressure as a C program hears of it.
#ifndef PRESSURE_CASES_H
#define PRESSURE_CASES_H

#include <stdint.h>

/// Watches, has the caller set levels, and stops watching. NULL when all went as the header promises, else what did not.
const char *pressure_case_watch(void (*set_level)(int32_t level));

/// Written in Swift (QuietMachine.swift), and called once, before `main`: the tests' process hears nothing of the machine.
void pressure_cases_begin(void);

#endif
