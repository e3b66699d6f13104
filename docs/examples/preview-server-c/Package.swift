// swift-tools-version: 6.3
// SPDX-License-Identifier: MIT
// C alone. Without Swift, from the checkout's top:
//
//   cc -std=c17 -O2 -ICPurgeable/include docs/examples/preview-server-c/Sources/server.c CPurgeable/src/*.c -pthread -o server

import PackageDescription

let package = Package(
  name: "preview-server-c",
  dependencies: [.package(name: "purgeable", path: "../../..")],
  targets: [
    .executableTarget(
      name: "preview-server-c", dependencies: [.product(name: "CPurgeable", package: "purgeable")], path: "Sources")
  ],
  cLanguageStandard: .c17)
