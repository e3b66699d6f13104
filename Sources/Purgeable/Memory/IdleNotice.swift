// SPDX-License-Identifier: MIT
// Where memory that has become idle is reported to whoever offers it to the kernel.

/// Called after an unlock that left memory in the core's queue of idle regions, outside of every mutex of this library.
///
/// The one place that connects the memory types with the library's thread, so that nothing else here knows of a thread. Has to be
/// cheap: it runs on every last unlock. A program may also call `PurgeableRegion.offerPending()` itself.
@inline(__always)
func noteIdleMemory() { Maintainer.shared.noteWork() }
