// swift-tools-version: 6.3
// SPDX-License-Identifier: MIT

import PackageDescription

let swiftSettings: [SwiftSetting] = [
  .swiftLanguageMode(.v6),
  .strictMemorySafety(),
  .treatAllWarnings(as: .error),
]

// What the library imports is not part of what a program imports with it.
let internalImports: SwiftSetting = .enableUpcomingFeature("InternalImportsByDefault")

let cSettings: [CSetting] = [
  .enableWarning("all"),
  .enableWarning("extra"),
  .enableWarning("pedantic"),
  .enableWarning("conversion"),
  .treatAllWarnings(as: .error),
]

// Assertions of the core are for debug builds: what ships has none in its reads and locks.
let noAssertions: CSetting = .define("NDEBUG", .when(configuration: .release))

// Debug builds can switch single rules of the lock and offer protocol off, so that tests can show that each is needed.
let testHooks: CSetting = .define("PURGEABLE_TEST_HOOKS", .when(configuration: .debug))

let package = Package(
  name: "purgeable",
  products: [
    .library(name: "CPurgeable", targets: ["CPurgeable"]),
    .library(name: "Purgeable", targets: ["Purgeable", "CPurgeablePressure"]),
    .library(name: "PurgeableFoundation", targets: ["PurgeableFoundation"]),
    .library(name: "PurgeableSQLite", targets: ["PurgeableSQLite"]),
    .executable(name: "purgeablectl", targets: ["purgeablectl"]),
    .executable(name: "purgeable-bench", targets: ["purgeable-bench"]),
  ],
  traits: [
    .trait(name: "SQLite", description: "PurgeableSQLite: a database behind a cache. Needs SQLite's header (libsqlite3-dev).")
  ],
  targets: [
    .target(
      name: "CPurgeable", path: "CPurgeable", exclude: ["src/README.md"], publicHeadersPath: "include",
      cSettings: cSettings + [testHooks, noAssertions]),
    // A header for C programs: what it declares is written in Swift, in Purgeable.
    .target(name: "CPurgeablePressure", cSettings: cSettings),
    .target(name: "CPurgeableFiles", cSettings: cSettings),
    .target(
      name: "Purgeable", dependencies: ["CPurgeable", "CPurgeablePressure", "CPurgeableFiles"],
      exclude: ["README.md", "Cache/README.md"],
      swiftSettings: swiftSettings + [internalImports]),
    .target(name: "PurgeableFoundation", dependencies: ["Purgeable"], swiftSettings: swiftSettings + [internalImports]),
    // Empty without the trait SQLite.
    .systemLibrary(name: "CSQLite"),
    .target(
      name: "PurgeableSQLite",
      dependencies: [
        "Purgeable", "CPurgeable", "CPurgeableFiles", .target(name: "CSQLite", condition: .when(traits: ["SQLite"])),
      ],
      swiftSettings: swiftSettings + [internalImports]),
    // What the programs and the tests share. No product, and nothing of the library uses it.
    .target(name: "ToolSupport", dependencies: ["Purgeable"], swiftSettings: swiftSettings),
    .executableTarget(
      name: "purgeablectl", dependencies: ["Purgeable", "PurgeableSQLite", "CPurgeable", "ToolSupport"],
      swiftSettings: swiftSettings),
    .executableTarget(
      name: "purgeable-bench",
      dependencies: [
        "Purgeable", "PurgeableFoundation", "PurgeableSQLite", "CPurgeable", "BenchmarkSupport", "ToolSupport",
      ], path: "Benchmarks",
      exclude: ["Support"], swiftSettings: swiftSettings),
    .target(name: "BenchmarkSupport", path: "Benchmarks/Support", cSettings: cSettings),

    // The core's tests are plain C, so that they also run without Swift (Tests/CoreAlone), and here one by one.
    .target(
      name: "CPurgeableCases", dependencies: ["CPurgeable"], path: "Tests/CPurgeableCases",
      cSettings: cSettings + [testHooks]),
    .executableTarget(
      name: "core-cases", dependencies: ["CPurgeableCases"], path: "Tests/CoreAlone", exclude: ["build"], cSettings: cSettings),
    .testTarget(
      name: "CPurgeableTests", dependencies: ["CPurgeableCases", "core-cases", "PurgeableTestSupport", "ToolSupport"],
      swiftSettings: swiftSettings),
    // Every operation while memory is refused, in processes of its own, with an allocator that refuses.
    .target(name: "MemoryFaults", path: "Tests/MemoryCases/Support", cSettings: cSettings),
    .executableTarget(
      name: "memory-cases",
      dependencies: ["Purgeable", "PurgeableFoundation", "CPurgeable", "CPurgeablePressure", "MemoryFaults", "ToolSupport"],
      path: "Tests/MemoryCases", exclude: ["Support"], swiftSettings: swiftSettings),
    .testTarget(
      name: "PurgeableTests",
      dependencies: [
        "Purgeable", "CPurgeable", "CPurgeableCases", "CPressureCases", "PurgeableTestSupport", "ToolSupport", "memory-cases",
      ],
      swiftSettings: swiftSettings),
    .target(
      name: "CPressureCases", dependencies: ["CPurgeablePressure"], path: "Tests/CPressureCases", cSettings: cSettings),
    .testTarget(
      name: "PurgeableFoundationTests",
      dependencies: [
        "PurgeableFoundation", "Purgeable", "FoundationCachePrograms", "PurgeableTestSupport", "ToolSupport",
      ],
      swiftSettings: swiftSettings),
    // Programs of PurgeableFoundationTests once more, by symbolic links, with Foundation's NSCache.
    .target(
      name: "FoundationCachePrograms", dependencies: ["Purgeable"], path: "Tests/NSCacheOnFoundation",
      swiftSettings: swiftSettings),
    .testTarget(
      name: "PurgeableCtlTests",
      dependencies: ["purgeablectl", "Purgeable", "CPurgeable", "CPurgeableCases", "PurgeableTestSupport", "ToolSupport"],
      swiftSettings: swiftSettings),
    .testTarget(
      name: "ToolSupportTests", dependencies: ["ToolSupport", "Purgeable", "PurgeableTestSupport"], swiftSettings: swiftSettings),
    .testTarget(
      name: "PurgeableSQLiteTests",
      dependencies: [
        "PurgeableSQLite", "purgeablectl", "Purgeable", "PurgeableTestSupport", "ToolSupport", "CPurgeableCases",
        .target(name: "CSQLite", condition: .when(traits: ["SQLite"])),
      ],
      swiftSettings: swiftSettings),
    .target(
      name: "PurgeableTestSupport", dependencies: ["Purgeable", "CPurgeableCases"], path: "Tests/Support",
      swiftSettings: swiftSettings),
  ],
  cLanguageStandard: .c17
)
