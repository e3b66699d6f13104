// SPDX-License-Identifier: MIT
// Files that the core has open for a moment. No forked child gets them: another thread may fork between an open and its close,
// and O_CLOEXEC does not help where no exec follows.
//
//     free --> opening --> open --> left --> closing --> free
//
// A descriptor is noted in ordinary memory, where the child finds it and closes it. What the note does not tell for sure is
// whether a call of `opening` or `closing` has been made. So a fork waits for those that are under way, which is for single
// system calls, never for what is done with the file. While a fork is under way nothing is closed: what would be is `left` to the
// thread that forks. An open waits for the fork.
//
// The handlers are added before the program's own, so that before a fork theirs run first: a thread that opens files under a
// mutex for which one of those waits is through with both when the fork comes here. Where a program's handlers are older all the
// same (from before the library was loaded), each would wait for the other; so an open waits for a tenth of a second at most.
//
// All operations are sequentially consistent: of a fork that says that it is under way and then looks at the files, and a thread
// that notes its call and then looks for forks, one sees the other.

#include "internal.h"

enum { FILE_COUNT = 64, FILE_WAITS_MS = 100 };

// The low half is the descriptor.
#define FILE_STATE ((uint64_t)7 << 32)
#define FILE_FREE ((uint64_t)0)
#define FILE_OPENING ((uint64_t)1 << 32)
#define FILE_OPEN ((uint64_t)2 << 32)
#define FILE_LEFT ((uint64_t)3 << 32)
#define FILE_CLOSING ((uint64_t)4 << 32)

static _Atomic uint64_t files[FILE_COUNT];
// How many forks are under way. The low half is waited on.
static _Atomic uint64_t forks_under_way;

static uint64_t file_note(uint64_t state, int descriptor) { return state | (uint32_t)descriptor; }
static int descriptor_of(uint64_t file) { return (int)(uint32_t)file; }

// Closes what is left, unless a fork is under way: then its thread does so at its end.
static void close_left(_Atomic uint64_t *file) {
  uint64_t seen = atomic_load(file);
  while ((seen & FILE_STATE) == FILE_LEFT && atomic_load(&forks_under_way) == 0) {
    int descriptor = descriptor_of(seen);
    if (!atomic_compare_exchange_strong(file, &seen, file_note(FILE_CLOSING, descriptor))) continue;
    bool is_alone = atomic_load(&forks_under_way) == 0;
    if (is_alone) purgeable__close(descriptor);
    seen = is_alone ? FILE_FREE : file_note(FILE_LEFT, descriptor);
    atomic_store(file, seen);
  }
}

// MARK: Around a fork

// The handlers keep errno, which is the fork's to set.
static void before_fork(void) {
  int kept = errno;
  (void)atomic_fetch_add(&forks_under_way, 1);
  for (size_t i = 0; i < FILE_COUNT; i++) {
    uint64_t seen = atomic_load(&files[i]);
    while (seen == FILE_OPENING || (seen & FILE_STATE) == FILE_CLOSING) {
      // Nobody wakes: it is asked again soon.
      purgeable__wait_ms(&files[i], (uint32_t)seen, 1);
      seen = atomic_load(&files[i]);
    }
  }
  errno = kept;
}

static void after_fork(void) {
  int kept = errno;
  // Never below 0: these handlers may have been added while the fork was under way.
  uint64_t count = atomic_load(&forks_under_way);
  while (count != 0 && !atomic_compare_exchange_weak(&forks_under_way, &count, count - 1)) continue;
  sigset_t before;
  purgeable__block_signals(&before);
  for (size_t i = 0; i < FILE_COUNT; i++) close_left(&files[i]);
  purgeable__restore_signals(&before);
  errno = kept;
}

// What is `opening` or `closing` here saw the fork, and made no call.
static void in_forked_child(void) {
  int kept = errno;
  atomic_store(&forks_under_way, 0);
  for (size_t i = 0; i < FILE_COUNT; i++) {
    uint64_t seen = atomic_load(&files[i]);
    if (seen != FILE_FREE && seen != FILE_OPENING) purgeable__close(descriptor_of(seen));
    atomic_store(&files[i], FILE_FREE);
  }
  errno = kept;
}

static int handlers_error;
static void add_handlers(void) { handlers_error = pthread_atfork(before_fork, after_fork, in_forked_child); }

// Before constructors of the program; a file that is opened even earlier adds them itself.
__attribute__((constructor(101))) static void need_handlers(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  (void)pthread_once(&once, add_handlers);
}

// MARK: Open and close

static _Atomic uint64_t *take_note(void) {
  for (size_t i = 0; i < FILE_COUNT; i++) {
    uint64_t expected = FILE_FREE;
    if (load_relaxed(&files[i]) != FILE_FREE) continue;
    if (atomic_compare_exchange_strong(&files[i], &expected, FILE_OPENING)) return &files[i];
  }
  return NULL;
}

// Opens and notes. EAGAIN: a fork is under way.
static int open_noted(const char *path, int *descriptor) {
  _Atomic uint64_t *file = take_note();
  if (file == NULL) return EMFILE;
  int error = atomic_load(&forks_under_way) != 0 ? EAGAIN : purgeable__open(path, descriptor);
  atomic_store(file, error == 0 ? file_note(FILE_OPEN, *descriptor) : FILE_FREE);
  return error;
}

// Signals are blocked while a call may be noted: a handler that forks would wait for its own thread.
int purgeable__file_open(const char *path, int *descriptor) {
  need_handlers();
  if (handlers_error != 0) return handlers_error;
  int error = EAGAIN;
  for (int waits = 0; error == EAGAIN && waits < FILE_WAITS_MS; waits++) {
    uint64_t under_way = atomic_load(&forks_under_way);
    if (under_way != 0) purgeable__wait_ms(&forks_under_way, (uint32_t)under_way, 1);
    sigset_t before;
    purgeable__block_signals(&before);
    error = open_noted(path, descriptor);
    purgeable__restore_signals(&before);
  }
  return error;
}

void purgeable__file_close(int descriptor) {
  sigset_t before;
  purgeable__block_signals(&before);
  // In a forked child the note is gone, and the number may be another file's.
  for (size_t i = 0; i < FILE_COUNT; i++) {
    uint64_t expected = file_note(FILE_OPEN, descriptor);
    if (load_relaxed(&files[i]) != expected) continue;
    if (!atomic_compare_exchange_strong(&files[i], &expected, file_note(FILE_LEFT, descriptor))) continue;
    close_left(&files[i]);
    break;
  }
  purgeable__restore_signals(&before);
}
