// swift-tools-version: 6.3
// SPDX-License-Identifier: MIT
// A package of somebody else's: it sees what is public, and nothing more.

import PackageDescription

let package = Package(
  name: "outside",
  dependencies: [.package(name: "purgeable", path: "../..")],
  targets: [
    .target(
      name: "ThreadStorage", path: "ThreadStorage",
      cSettings: [.define("STORAGE_KIB", to: Context.environment["STORAGE_KIB"] ?? "1024")]),
    .executableTarget(
      name: "outside",
      dependencies: [
        "ThreadStorage",
        .product(name: "Purgeable", package: "purgeable"),
        .product(name: "CPurgeable", package: "purgeable"),
      ],
      path: "Sources",
      swiftSettings: [.swiftLanguageMode(.v6), .strictMemorySafety(), .treatAllWarnings(as: .error)]),
  ]
)
