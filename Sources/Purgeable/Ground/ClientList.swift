// SPDX-License-Identifier: MIT
// The clients that the library's thread works for: a linked list, so that neither adding one nor visiting all takes memory.
//
//   oldest --> [link] <--> [link] <--> [link] <-- youngest       by number, which rises; each names its client
//
// A client is in the list from the making of its owner to the owner's end. The owner keeps the client alive for that long, so
// the list need not.

/// Where a client stands: made with it. Touched only under the mutex of its list. `Client` is an unowned reference: an owned one
/// would keep the client alive.
@safe final class ClientLink<Client: Sendable>: @unchecked Sendable {
  /// 0: in no list.
  fileprivate var number: UInt64 = 0
  fileprivate var client: Client?
  fileprivate var previous: Unmanaged<ClientLink>?
  fileprivate var next: Unmanaged<ClientLink>?
}

/// `@safe`: a client is removed before it ends, under the mutex under which the list is read. `@unchecked Sendable`: used under
/// that only.
@safe struct ClientList<Client: Sendable>: @unchecked Sendable {
  private var oldest: Unmanaged<ClientLink<Client>>?
  private var youngest: Unmanaged<ClientLink<Client>>?
  private var lastNumber: UInt64 = 0
  private(set) var count = 0

  var isEmpty: Bool { count == 0 }

  mutating func append(_ client: Client, _ link: ClientLink<Client>) {
    let reference = unsafe Unmanaged.passUnretained(link)
    lastNumber += 1
    link.number = lastNumber
    link.client = client
    unsafe link.previous = youngest
    unsafe link.next = nil
    if let youngest = unsafe youngest {
      unsafe youngest.takeUnretainedValue().next = reference
    } else {
      unsafe oldest = reference
    }
    unsafe youngest = reference
    count += 1
  }

  mutating func remove(_ link: ClientLink<Client>) {
    guard link.number != 0 else { return }
    let (previous, next) = unsafe (link.previous, link.next)
    if let previous = unsafe previous {
      unsafe previous.takeUnretainedValue().next = next
    } else {
      unsafe oldest = next
    }
    if let next = unsafe next {
      unsafe next.takeUnretainedValue().previous = previous
    } else {
      unsafe youngest = previous
    }
    link.number = 0
    link.client = nil
    count -= 1
  }

  /// The client after this link and number, and that client's number; a nil link asks for the first. If the link's own client
  /// has left meanwhile, the search starts at the oldest and goes by number.
  func client(after link: ClientLink<Client>?, number: UInt64) -> (client: Client, number: UInt64)? {
    var next = unsafe oldest
    if let link, link.number == number {
      unsafe next = link.next
    } else {
      while let candidate = unsafe next?.takeUnretainedValue(), candidate.number <= number { unsafe next = candidate.next }
    }
    guard let found = unsafe next?.takeUnretainedValue(), let client = found.client else { return nil }
    return (client, found.number)
  }
}
