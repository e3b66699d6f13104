// SPDX-License-Identifier: MIT
// The databases that this process has open, by the numbers of their files.

#if SQLite
  import CPurgeableFiles
  import Glibc
  import Purgeable
  import Synchronization

  /// What a file is, whatever its name; of a link, the link.
  struct FileNumber: Hashable, Sendable {
    let device: UInt64
    let inode: UInt64

    init?(of path: String) {
      var status = stat()
      guard unsafe lstat(path, &status) == 0 else { return nil }
      (device, inode) = (UInt64(status.st_dev), UInt64(status.st_ino))
    }
  }

  /// Descriptors of open databases, for what SQLite does not do: to give their pages in the page cache up, and to take room on
  /// the disk. One for each file and process: when any descriptor of a file is closed, the process loses the locks that SQLite
  /// has on it, of all connections. So it is closed with the last store.
  final class OpenDatabases: @unchecked Sendable {
    static let shared = OpenDatabases()

    private struct Entry {
      let descriptor: Int32
      /// When it was opened.
      let forkCount: Int
      /// Stores that have it open.
      var count: Int
      /// Calls that use the descriptor: they may wait for the disk, under no mutex, for which a fork would wait.
      var useCount = 0
    }

    private let mutex = WaitableMutex()
    private var entries: [FileNumber: Entry] = [:]
    /// Connections that there are, or are being opened, and in which process. In a forked child its parent's stay.
    private var connections = (count: 0, forkCount: 0)
    private let forks = Atomic<Int>(0)

    private init() {
      ForkProtection.protectDatabases(
        lock: { self.mutex.lock() }, unlock: { self.mutex.unlock() }, forgetInChild: { self.forks.add(1, ordering: .relaxed) })
    }

    /// By how many forks this process comes from the first one: another number in a child, without a system call.
    var forkCount: Int { forks.load(ordering: .relaxed) }

    /// Whether this process was forked while its parent had a database open, or opened or closed one: SQLite would take the
    /// parent's locks for its own, and its mutexes may be locked for ever.
    var areInherited: Bool { mutex.withLock { connections.count > 0 && connections.forkCount != forkCount } }

    /// Before SQLite is called for it.
    func addConnection() {
      mutex.withLock {
        if connections.count == 0 { connections.forkCount = forkCount }
        connections.count += 1
      }
    }

    /// After the last call for it.
    func removeConnection() { mutex.withLock { if connections.forkCount == forkCount { connections.count -= 1 } } }

    /// nil, with errno, where it cannot be opened.
    func add(_ path: String) -> FileNumber? {
      mutex.withLock {
        guard let file = FileNumber(of: path) else { return nil }
        if entries[file] != nil {
          entries[file]?.count += 1
          return file
        }
        let descriptor = unsafe open(path, O_RDWR | O_CLOEXEC)
        guard descriptor >= 0 else { return nil }
        entries[file] = Entry(descriptor: descriptor, forkCount: forkCount, count: 1)
        return file
      }
    }

    func has(_ file: FileNumber) -> Bool { mutex.withLock { entries[file] != nil } }

    /// The file's connections of one store are closed.
    func remove(_ file: FileNumber) {
      giveUpPages(file)
      mutex.withLock {
        guard let entry = entries[file], entry.forkCount == forkCount else { return }
        entries[file]?.count -= 1
        closeIfUnused(file)
      }
    }

    private func closeIfUnused(_ file: FileNumber) {
      guard let entry = entries[file], entry.count == 0, entry.useCount == 0 else { return }
      entries[file] = nil
      close(entry.descriptor)
    }

    /// nil where the file is not open.
    private func use<Result>(_ file: FileNumber, _ body: (Int32) -> Result) -> Result? {
      let descriptor = mutex.withLock { () -> Int32? in
        guard let entry = entries[file], entry.forkCount == forkCount else { return nil }
        entries[file]?.useCount += 1
        return entry.descriptor
      }
      guard let descriptor else { return nil }
      defer {
        mutex.withLock {
          entries[file]?.useCount -= 1
          closeIfUnused(file)
        }
      }
      return body(descriptor)
    }

    /// Gives the file's pages in the page cache up, which would push out what caches have on offer.
    func giveUpPages(_ file: FileNumber) {
      _ = use(file) { posix_fadvise($0, 0, 0, POSIX_FADV_DONTNEED) }
    }

    /// Has room on the disk taken for so many bytes of the file. False, with errno, where there is none.
    func takeRoom(_ file: FileNumber, byteCount: Int64) -> Bool {
      use(file) { purgeable__take_room($0, off_t(byteCount)) } ?? true
    }
  }
#endif
