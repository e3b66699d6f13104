// SPDX-License-Identifier: MIT
// Statistics for JSON and the like: what is public and stored, under its name.

extension CacheStatistics: Encodable {
  /// Encodes each property under its name: `memory` as an object of its own, times in seconds, `departures` and `missesByReason`
  /// as objects of counts by the reasons' words ("byte limit"), levels and limits by theirs, nil as null.
  public func encode(to encoder: any Encoder) throws { try encodeMembers(of: self, to: encoder) }
}

extension MemoryUse: Encodable {
  /// Encodes each property under its name, nil as null.
  public func encode(to encoder: any Encoder) throws { try encodeMembers(of: self, to: encoder) }
}

extension PressureStatistics: Encodable {
  /// Encodes each property under its name, the level by its word, nil as null.
  public func encode(to encoder: any Encoder) throws { try encodeMembers(of: self, to: encoder) }
}

/// What an encoder knows a number by: the name of its property, or the words of a reason.
private struct MemberName: CodingKey {
  let stringValue: String
  var intValue: Int? { nil }

  init(stringValue: String) { self.stringValue = stringValue }
  init?(intValue: Int) { nil }
}

/// Encodes the stored properties of a structure of numbers.
package func encodeMembers(of numbers: some Encodable, to encoder: any Encoder) throws {
  var members = encoder.container(keyedBy: MemberName.self)
  for member in Mirror(reflecting: numbers).children {
    try members.encodeMember(member.value, forKey: MemberName(stringValue: member.label ?? ""))
  }
}

extension KeyedEncodingContainer<MemberName> {
  fileprivate mutating func encodeMember(_ value: Any, forKey name: MemberName) throws {
    let mirror = Mirror(reflecting: value)
    switch value {
    case _ where mirror.displayStyle == .optional:
      if let some = mirror.children.first { try encodeMember(some.value, forKey: name) } else { try encodeNil(forKey: name) }
    case let time as Duration: try encode(time / .seconds(1), forKey: name)
    case let counts as [MissReason: Int]: try encodeCounts(counts, forKey: name)
    case let counts as [DepartureReason: Int]: try encodeCounts(counts, forKey: name)
    case let reason as CacheLimitReason: try encode(reason.words, forKey: name)
    case let value as any Encodable: try encode(value, forKey: name)
    default: try encode("\(value)", forKey: name)
    }
  }

  private mutating func encodeCounts(_ counts: [some CustomStringConvertible: Int], forKey name: MemberName) throws {
    var members = nestedContainer(keyedBy: MemberName.self, forKey: name)
    for (reason, count) in counts { try members.encode(count, forKey: MemberName(stringValue: reason.description)) }
  }
}
