// SPDX-License-Identifier: MIT
// The two runs of the tests. Plain `swift test` is quick and says the same every time; `PURGEABLE_TESTS=full swift test` is all.

import CPurgeableCases
import Glibc
import Testing

public enum TestRun {
  /// Whether everything is to run: PURGEABLE_TESTS is "full".
  public static let isFull: Bool = unsafe getenv("PURGEABLE_TESTS").map { unsafe String(cString: $0) } == "full"

  /// The seed of random tests: PURGEABLE_SEED, or a random one in a full run, which is printed, or else always the same.
  public static let seed: UInt64 = {
    if let given = unsafe getenv("PURGEABLE_SEED"), let seed = unsafe UInt64(String(cString: given)) { return seed }
    guard isFull else { return 1 }
    let seed = UInt64.random(in: 1...(.max))
    print("The random choices of this run follow from PURGEABLE_SEED=\(seed)")
    return seed
  }()
}

/// Ends the process where something does not hold: for child processes and exit tests, from which no `#expect` is heard. Other
/// than `precondition`, it says why in optimised builds, too.
public func demand(
  _ holds: Bool, _ why: @autoclosure () -> String = "what has to hold does not", file: StaticString = #fileID, line: UInt = #line
) {
  if !holds { fatalError(why(), file: file, line: line) }
}

/// Runs `body` in a process that can open nothing meanwhile, nor poll. For exit tests.
public func withoutDescriptors<R>(_ body: () throws -> R) rethrows -> R {
  let resource = __rlimit_resource_t(RLIMIT_NOFILE.rawValue)
  var before = rlimit()
  demand(unsafe getrlimit(resource, &before) == 0, "getrlimit")
  var none = rlimit(rlim_cur: 0, rlim_max: before.rlim_max)
  demand(unsafe setrlimit(resource, &none) == 0, "setrlimit")
  defer { demand(unsafe setrlimit(resource, &before) == 0, "setrlimit") }
  return try body()
}

extension Trait where Self == ConditionTrait {
  /// For tests whose outcome or duration hangs on the machine: on what the scheduler, the clock or the kernel's reclaim do, or on
  /// a race that has to happen. They run in the full run, one after the other.
  public static var fullRun: Self {
    .enabled(if: TestRun.isFull, "wants the machine for itself: PURGEABLE_TESTS=full swift test --no-parallel")
  }

  /// For tests in which the kernel refuses calls.
  public static var filters: Self { .enabled(if: cases_can_refuse(), "no filters of system calls (seccomp) here") }
}
