// SPDX-License-Identifier: MIT
// The figures of this library, measured from another module, as a program of a user would see them.

import ToolSupport

Program.run("purgeable-bench") { Bench.run(Array(CommandLine.arguments.dropFirst())) }
