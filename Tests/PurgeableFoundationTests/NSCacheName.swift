// SPDX-License-Identifier: MIT
// All that a program written for NSCache changes. The programs are those of NSCachePrograms.

import PurgeableFoundation

typealias NSCache = PurgeableNSCache
typealias NSCacheDelegate = PurgeableNSCacheDelegate
