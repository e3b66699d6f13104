// SPDX-License-Identifier: MIT
// What types are called in files and databases.

/// The name of a type, with the types that it is nested in, but without its module, which may get another name:
/// "Service.Tiles.ID" is "Tiles.ID", and "Swift.Array<Service.(unknown context at $7f02).Story>" is "Array<Story>".
package func nameInFiles<T>(_ type: T.Type) -> String {
  let name = withoutModules(_typeName(type, qualified: true))
  return String(decoding: name.prefix(FileHeader.nameByteCount), as: UTF8.self)
}

private func withoutModules(_ name: String) -> [UInt8] {
  var (result, component) = ([UInt8](), [UInt8]())
  // Whether a component that ends with a point is a module.
  var isFirst = true
  var rest = Array(name.utf8)[...]
  while let byte = rest.popFirst() {
    switch byte {
    case UInt8(ascii: "(") where component.isEmpty && isContext(rest):
      // Up to its end and the point or the colon behind it.
      rest = rest.drop { $0 != UInt8(ascii: ")") }.dropFirst(2)
    case UInt8(ascii: "."):
      if !isFirst { result += component + [byte] }
      (isFirst, component) = (false, [])
    case UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
      UInt8(ascii: "_"), 128...:
      component.append(byte)
    default:
      result += component + [byte]
      // Behind the arguments of a generic type comes what is nested in it.
      (isFirst, component) = (byte != UInt8(ascii: ">"), [])
    }
  }
  return result + component
}

/// Whether this is behind the parenthesis of a private context, which has an address for a name, or of an extension in another
/// module.
private func isContext(_ text: ArraySlice<UInt8>) -> Bool {
  text.starts(with: "unknown context at ".utf8) || text.starts(with: "extension in ".utf8)
}
