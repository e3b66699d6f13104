// SPDX-License-Identifier: MIT

import Foundation
import Testing
import ToolSupport

@Suite("JSON")
struct JSONTests {
  @Test("what is written reads back, with members in order")
  func readsBack() throws {
    let value: JSON = [
      "text": "a \"quoted\" \\ line\nand\ttab, \u{1}, ü, 🙂", "least": .integer(.min), "most": .unsigned(.max), "tenth": 0.1,
      "small": 1e-7, "large": 1e300, "infinite": .number(.infinity), "none": .null, "yes": true,
      "list": [1, "two", [], [:]],
    ]
    #expect(value.text.hasPrefix(#"{"text": "a \"quoted\" \\ line\nand\ttab, \u0001, ü, 🙂", "least": -9223372036854775808, "#))
    let read = try #require(try JSONSerialization.jsonObject(with: Data(value.text.utf8)) as? [String: Any])
    #expect(read["text"] as? String == "a \"quoted\" \\ line\nand\ttab, \u{1}, ü, 🙂")
    #expect((read["most"] as? NSNumber)?.uint64Value == .max)
    #expect((read["least"] as? NSNumber)?.int64Value == .min)
    #expect(read["tenth"] as? Double == 0.1)
    #expect(read["small"] as? Double == 1e-7)
    #expect(read["large"] as? Double == 1e300)
    #expect(read["infinite"] is NSNull)
    #expect(read["yes"] as? Bool == true)
    #expect((read["list"] as? [Any])?.count == 4)
  }
}
