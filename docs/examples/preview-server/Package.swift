// swift-tools-version: 6.3
// SPDX-License-Identifier: MIT

import PackageDescription

let package = Package(
  name: "preview-server",
  // In a package of yours: .package(url: "https://git.example/purgeable.git", .upToNextMinor(from: "0.1.0"))
  dependencies: [.package(name: "purgeable", path: "../../..")],
  targets: [
    .executableTarget(
      name: "preview-server", dependencies: [.product(name: "Purgeable", package: "purgeable")], path: "Sources")
  ])
