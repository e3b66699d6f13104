// swift-tools-version: 6.3
// SPDX-License-Identifier: MIT

import PackageDescription

let package = Package(
  name: "image-cache",
  // In a package of yours: .package(url: "https://git.example/purgeable.git", .upToNextMinor(from: "0.1.0"), traits: ["SQLite"])
  dependencies: [.package(name: "purgeable", path: "../../..", traits: ["SQLite"])],
  targets: [
    .executableTarget(
      name: "image-cache", dependencies: [.product(name: "PurgeableSQLite", package: "purgeable")], path: "Sources")
  ])
