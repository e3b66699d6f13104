// swift-tools-version: 6.3
// SPDX-License-Identifier: MIT

import PackageDescription

let swiftSettings: [SwiftSetting] = [
  .swiftLanguageMode(.v6),
  .strictMemorySafety(),
  .treatAllWarnings(as: .error),
]

let cSettings: [CSetting] = [
  .enableWarning("all"),
  .enableWarning("extra"),
  .enableWarning("pedantic"),
  .enableWarning("conversion"),
  .treatAllWarnings(as: .error),
]

// Debug builds can switch single rules of the lock and offer protocol off, so that tests can show that each is needed.
let testHooks: CSetting = .define("PURGEABLE_TEST_HOOKS", .when(configuration: .debug))

let package = Package(
  name: "purgeable",
  products: [
    .library(name: "CPurgeable", targets: ["CPurgeable"]),
    .library(name: "Purgeable", targets: ["Purgeable", "CPurgeablePressure"]),
    .library(name: "PurgeableFoundation", targets: ["PurgeableFoundation"]),
    .executable(name: "purgeablectl", targets: ["purgeablectl"]),
    .executable(name: "purgeable-bench", targets: ["purgeable-bench"]),
  ],
  targets: [
    .target(name: "CPurgeable", path: "CPurgeable", publicHeadersPath: "include", cSettings: cSettings + [testHooks]),
    // A header for C programs: what it declares is written in Swift, in Purgeable.
    .target(name: "CPurgeablePressure", cSettings: cSettings),
    .target(name: "Purgeable", dependencies: ["CPurgeable", "CPurgeablePressure"], swiftSettings: swiftSettings),
    .target(name: "PurgeableFoundation", dependencies: ["Purgeable"], swiftSettings: swiftSettings),
    .executableTarget(
      name: "purgeablectl", dependencies: ["Purgeable", "CPurgeable"], swiftSettings: swiftSettings),
    .executableTarget(
      name: "purgeable-bench", dependencies: ["Purgeable", "CPurgeable", "BenchmarkSupport"], path: "Benchmarks",
      exclude: ["Support"], swiftSettings: swiftSettings),
    .target(name: "BenchmarkSupport", path: "Benchmarks/Support", cSettings: cSettings),

    // The core's tests are plain C, so that they also run without Swift (Tests/CoreAlone), and here one by one.
    .target(
      name: "CPurgeableCases", dependencies: ["CPurgeable"], path: "Tests/CPurgeableCases",
      cSettings: cSettings + [testHooks]),
    .executableTarget(
      name: "core-cases", dependencies: ["CPurgeableCases"], path: "Tests/CoreAlone", exclude: ["build"], cSettings: cSettings),
    .testTarget(
      name: "CPurgeableTests", dependencies: ["CPurgeableCases", "core-cases", "PurgeableTestSupport"],
      swiftSettings: swiftSettings),
    .testTarget(
      name: "PurgeableTests", dependencies: ["Purgeable", "CPurgeable", "CPressureCases", "PurgeableTestSupport"],
      swiftSettings: swiftSettings),
    .target(
      name: "CPressureCases", dependencies: ["CPurgeablePressure"], path: "Tests/CPressureCases", cSettings: cSettings),
    .testTarget(
      name: "PurgeableFoundationTests", dependencies: ["PurgeableFoundation", "Purgeable"], swiftSettings: swiftSettings),
    .testTarget(
      name: "PurgeableCtlTests",
      dependencies: ["purgeablectl", "Purgeable", "CPurgeable", "CPurgeableCases", "PurgeableTestSupport"],
      swiftSettings: swiftSettings),
    .target(
      name: "PurgeableTestSupport", dependencies: ["Purgeable"], path: "Tests/Support", swiftSettings: swiftSettings),
  ],
  cLanguageStandard: .c17
)
