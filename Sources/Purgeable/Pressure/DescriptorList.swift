// SPDX-License-Identifier: MIT
// Descriptors to wait for, and those that are ready, where an array would take memory: the library's thread reacts when there is
// none.

/// Up to 128 descriptors, in place. Who has more is asked once a second instead (`isFull`).
struct DescriptorList: Sequence, Equatable {
  static let capacity = 128

  private var items = InlineArray<128, PressureDescriptor>(repeating: PressureDescriptor(descriptor: -1, events: 0))
  private(set) var count = 0
  /// Something found no room.
  private(set) var isFull = false

  init() {}

  init(_ descriptors: some Sequence<PressureDescriptor>) {
    for descriptor in descriptors { append(descriptor) }
  }

  var isEmpty: Bool { count == 0 }

  subscript(index: Int) -> PressureDescriptor { items[index] }

  mutating func append(_ descriptor: PressureDescriptor) {
    guard count < Self.capacity else {
      isFull = true
      return
    }
    items[count] = descriptor
    count += 1
  }

  /// What occurred on a descriptor; nil where it is not in the list.
  func events(of descriptor: Int32) -> Int16? {
    for index in 0..<count where items[index].descriptor == descriptor { return items[index].events }
    return nil
  }

  static func == (left: Self, right: Self) -> Bool {
    guard left.count == right.count else { return false }
    for index in 0..<left.count where left.items[index] != right.items[index] { return false }
    return true
  }

  struct Iterator: IteratorProtocol {
    fileprivate let list: DescriptorList
    fileprivate var index = 0

    mutating func next() -> PressureDescriptor? {
      guard index < list.count else { return nil }
      defer { index += 1 }
      return list.items[index]
    }
  }

  func makeIterator() -> Iterator { Iterator(list: self) }
}

/// A source of the library's own: it is asked without arrays.
protocol ListedSource: PressureSource {
  func addDescriptors(to list: inout DescriptorList)
  func level(of ready: DescriptorList) -> PressureLevel
}

extension ListedSource {
  var descriptors: [PressureDescriptor] {
    var list = DescriptorList()
    addDescriptors(to: &list)
    return Array(list)
  }

  func level(ready: [PressureDescriptor]) -> PressureLevel { level(of: DescriptorList(ready)) }
}
