// SPDX-License-Identifier: MIT
// Compaction: without a policy, the heap copies its emptiest slabs together, and moves what is hot out of slabs that stay locked.
//
//     allocate ---> compact_step ---> evacuate ---> move ---> allocate_element
//        |                                                        ^
//        '--------------------------------------------------------'
//
// Which slab: a hand goes round the slabs of stream 0, as that of a clock does, and stays where it was for the next search. An
// allocation that needs a fresh slab looks at `LOOKS` slabs, however many there are, and compacts the emptiest of them if less
// than half of it is alive. Where there is no room, and in trims and upkeep, the hand goes all the way round before it gives up.
// A heap of at most `LOOKS` slabs always compacts its emptiest one.
//
//     oldest <-> ... <-> | LOOKS slabs: the emptiest | <-> hand <-> ... <-> youngest, and on at the oldest
//
// Only what is in this file compacts where memory is short. What compaction itself runs through is below it, and takes room or
// is refused, so a compaction cannot begin another one.

#include "heap_compact.h"

#include "heap_allocate.h"
#include "heap_books.h"
#include "heap_fork.h"
#include "heap_move.h"
#include "heap_overdue.h"
#include "heap_slab.h"
#include "heap_stream.h"

// How many slabs are looked at under the mutex: some microseconds.
enum { LOOKS = 64, COMPACTION_WAITS_MS = 100 };

// What the heap moves goes to stream 0, and to the callback that it was made with.
static purgeable__move_t own_move(const purgeable_heap_t *heap) {
  uint64_t limit = purgeable__limit_of_copies(heap);
  return (purgeable__move_t){.stream = 0, .moved = heap->moved, .context = heap->context, .byte_limit = limit};
}

// MARK: Slabs that stay locked

// The slabs of stream 0 whose hot elements are due to move, oldest first.
static size_t find_busy(purgeable_heap_t *heap, purgeable_slab_t *busy, size_t capacity) {
  size_t count = 0;
  pthread_mutex_lock(&heap->control->mutex);
  for (uint32_t unit = purgeable__stream(heap, 0)->oldest; unit != 0 && count < capacity;) {
    purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
    uint8_t rounds = load_relaxed(&slab->busy_round_count);
    uint64_t all = purgeable__pages_mask(slab, purgeable__offerable_pages(heap, slab));
    uint64_t off = all & ~load_relaxed(&slab->offered);
    // If most of the slab is in use, a move would only make another slab that is locked all the time.
    bool worth = __builtin_popcountll(off) * 2 <= __builtin_popcountll(all);
    bool due = rounds != 0 && rounds % BUSY_ROUNDS == 0;
    if (due && worth && atomic_load(&slab->state) == slab_sealed) busy[count++] = purgeable__slab_name(heap, unit - 1);
    unit = slab->next;
  }
  pthread_mutex_unlock(&heap->control->mutex);
  return count;
}

// One thread at a time. False: another one is at it, or this one, further out.
static bool begin_compacting(purgeable_heap_t *heap) {
  uintptr_t none = 0;
  return atomic_compare_exchange_strong_explicit(&heap->compacting, &none, (uintptr_t)pthread_self(), memory_order_acquire,
                                                 memory_order_relaxed);
}

static void end_compacting(purgeable_heap_t *heap, bool made_room) {
  if (made_room) (void)atomic_fetch_add(&heap->compaction_count, 1);
  store_release(&heap->compacting, 0);
}

void purgeable__relieve(purgeable_heap_t *heap) {
  assert(heap->moved != NULL);
  if (!begin_compacting(heap)) return;
  // Listed before anything is moved: what is moved goes to the end of the same list.
  purgeable_slab_t slabs[16];
  size_t count = find_busy(heap, slabs, sizeof slabs / sizeof slabs[0]);
  purgeable__move_t move = own_move(heap);
  for (size_t i = 0; i < count; i++) {
    uint32_t cursor = 0;
    purgeable_reference_t reference;
    while (purgeable_slab_next_element(heap, slabs[i], &cursor, &reference) == 0) {
      if (purgeable_heap_is_on_offer(heap, reference.place)) continue;
      int error = purgeable__move(heap, reference, &move, NULL);
      if (error == ENOMEM || error == EAGAIN) break;
    }
  }
  end_compacting(heap, false);
}

// MARK: Slabs that are mostly dead

// What the living of a slab take up at most, small ones with their headers and padding: by payload alone a slab full of elements
// of a few bytes would pass for an empty one, and be copied for ever.
static uint64_t living_room(purgeable__slab_t *slab) {
  uint64_t count = load_relaxed(&slab->element_count);
  uint64_t bytes = load_relaxed(&slab->payload_bytes);
  return bytes + count * (PURGEABLE_HEADER_BYTES + PURGEABLE_GRANULE_BYTES);
}

// A count in 16 bits, never 0.
static uint16_t in_short(uint32_t count) { return (uint16_t)(count % UINT16_MAX + 1); }

// How much of the used part of the slab is alive, of 256; 256 where the slab cannot be compacted now.
static uint64_t living_share(purgeable__slab_t *slab) {
  uint64_t word = purgeable__slab_word_relaxed(slab);
  if (atomic_load(&slab->state) != slab_sealed || !purgeable__is_unheld(word)) return 256;
  uint32_t count = load_relaxed(&slab->element_count);
  if (count != 0 && in_short(count) == load_relaxed(&slab->stuck)) return 256;
  uint64_t used = purgeable__used_bytes(slab);
  return used == 0 ? 0 : living_room(slab) * 256 / used;
}

// A way round the slabs of stream 0, by the hand.
typedef struct round {
  uint32_t start;  // as a unit number + 1; 0: not under way
  uint64_t left;   // looks
  bool is_over;
} round_t;

// The slab that is least alive of the next `LOOKS`, if it is less than half alive. Heap's mutex held.
static bool find_in_window(purgeable_heap_t *heap, round_t *round, purgeable_slab_t *emptiest) {
  assert(purgeable__is_held(&heap->control->mutex));
  uint32_t oldest = purgeable__stream(heap, 0)->oldest, best = 0;
  uint64_t best_share = 128, looks = 0;
  for (; looks < LOOKS && round->left != 0 && oldest != 0; looks++, round->left--) {
    uint32_t unit = heap->compact_hand == 0 ? oldest : heap->compact_hand;
    if (unit == round->start) break;
    if (round->start == 0) round->start = unit;
    purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
    uint64_t share = living_share(slab);
    if (share < best_share) best_share = share, best = unit;
    heap->compact_hand = slab->next;
  }
  round->is_over = looks < LOOKS;
  if (best != 0) *emptiest = purgeable__slab_name(heap, best - 1);
  PURGEABLE_LOOKS(compaction, looks);
  return best != 0;
}

// Goes round with the hand, from where the hand stood. `goes_round`: until a slab is found or all have been looked at; else one
// window, and the next call goes on from there. Others can take the mutex between two windows.
static bool find_sparse(purgeable_heap_t *heap, bool goes_round, purgeable_slab_t *sparse) {
  // Where the slab at which the round began has left the list meanwhile, the count of slabs ends the round.
  round_t round = {.left = load_relaxed(&heap->slab_count) + LOOKS};
  bool found;
  do {
    pthread_mutex_lock(&heap->control->mutex);
    found = find_in_window(heap, &round, sparse);
    pthread_mutex_unlock(&heap->control->mutex);
  } while (!found && goes_round && !round.is_over);
  return found;
}

static void remember_stuck(purgeable_heap_t *heap, purgeable_slab_t slab) {
  purgeable__spot_t spot = purgeable__find_slab(heap, slab);
  if (spot.slab == NULL) return;
  uint32_t count = load_relaxed(&spot.slab->element_count);
  store_relaxed(&spot.slab->stuck, in_short(count));
}

bool purgeable__compact_step(purgeable_heap_t *heap, bool goes_round) {
  if (heap->moved == NULL) return false;
  uint64_t held = load_relaxed(&heap->held_bytes);
  uint64_t payload = purgeable__payload_bytes(heap);
  // If most of the held memory is alive, copying would cost more than it wins.
  if (payload > held / 4 * 3) return false;
  if (!begin_compacting(heap)) return false;
  purgeable_slab_t slab;
  bool more = false;
  // What was given back since the limit was lowered is not available again.
  uint64_t charged = purgeable_heap_charged_bytes(heap);
  if (charged < load_relaxed(&heap->held_at_limit)) {
    store_relaxed(&heap->held_at_limit, charged);
  }
  if (find_sparse(heap, goes_round, &slab)) {
    assert(load_relaxed(&heap->compacting) == (uintptr_t)pthread_self());
    purgeable__move_t move = own_move(heap);
    int error = purgeable__evacuate(heap, slab, &move, NULL);
    // Elements stay that the owner refuses to move, or that are lost. The next step takes another slab.
    if (error == EBUSY) remember_stuck(heap, slab);
    more = error == 0 || error == EBUSY;
  }
  end_compacting(heap, more);
  return more;
}

// Whether another thread's compaction has made room since there were `count`; waits for one that is under way, for `*rounds`
// milliseconds at most: its callback may itself wait, for a compaction of this thread in another heap. Not in a callback of this
// thread's own.
static bool await_compaction(purgeable_heap_t *heap, uint64_t count, int *rounds) {
  while (--*rounds > 0) {
    uintptr_t other = load_acquire(&heap->compacting);
    if (atomic_load(&heap->compaction_count) != count) return true;
    if (other == 0 || other == (uintptr_t)pthread_self()) return false;
    // Nobody wakes: it is asked again soon.
    purgeable__wait_ms(&heap->compaction_count, (uint32_t)count, 1);
  }
  return false;
}

// MARK: What compacts where memory is short

// Whether what allocates in a stream makes room by compaction, and wins a slab back for each that it begins.
static bool compacts(const purgeable_heap_t *heap, purgeable_stream_t stream) {
  return stream == 0 && heap->moved != NULL && !heap->defers_compaction;
}

int purgeable_heap_allocate_within(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                                   size_t byte_limit, purgeable_reference_t *reference, void **bytes) {
  if (heap == NULL || reference == NULL || bytes == NULL || length_bytes == 0) return EINVAL;
  if (length_bytes > PURGEABLE_ELEMENT_BYTES_MAX) return EFBIG;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  uint64_t limit = purgeable__limit_of_allocations(heap, byte_limit);
  int rounds = COMPACTION_WAITS_MS;
  for (;;) {
    bool is_fresh;
    uint64_t count = atomic_load(&heap->compaction_count);
    int error = purgeable__allocate_element(heap, stream, length_bytes, tag, limit, reference, bytes, &is_fresh);
    if (error == ENOMEM && compacts(heap, stream)) {
      if (purgeable__compact_step(heap, true) || await_compaction(heap, count, &rounds)) continue;
    }
    if (error != 0) return error;
    // When a fresh slab begins, and much of the held memory is dead, compaction wins a slab back.
    if (is_fresh && compacts(heap, stream)) {
      (void)purgeable__compact_step(heap, false);
      // Only a callback that forked ends the life of a slab that the writer holds: in the child the element is gone.
      if (purgeable__resolve(heap, *reference).slab == NULL) continue;
    }
    purgeable__offer_if_overdue(heap);
    return 0;
  }
}

int purgeable_heap_allocate_in(purgeable_heap_t *heap, purgeable_stream_t stream, size_t length_bytes, uint64_t tag,
                               purgeable_reference_t *reference, void **bytes) {
  size_t byte_limit = heap == NULL ? 0 : (size_t)load_relaxed(&heap->byte_limit);
  return purgeable_heap_allocate_within(heap, stream, length_bytes, tag, byte_limit, reference, bytes);
}

int purgeable_heap_allocate(purgeable_heap_t *heap, size_t length_bytes, purgeable_reference_t *reference, void **bytes) {
  return purgeable_heap_allocate_in(heap, 0, length_bytes, 0, reference, bytes);
}

int purgeable_heap_move(purgeable_heap_t *heap, purgeable_reference_t reference, purgeable_stream_t stream,
                        purgeable_moved_t moved, void *context, purgeable_reference_t *to) {
  if (heap == NULL || moved == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  purgeable__move_t move = {.stream = stream, .moved = moved, .context = context};
  int error = purgeable__move(heap, reference, &move, to);
  while (error == ENOMEM && compacts(heap, stream) && purgeable__compact_step(heap, true)) {
    error = purgeable__move(heap, reference, &move, to);
  }
  if (move.is_fresh && compacts(heap, stream)) (void)purgeable__compact_step(heap, false);
  return error;
}

int purgeable_slab_evacuate(purgeable_heap_t *heap, purgeable_slab_t slab, purgeable_stream_t stream, purgeable_moved_t moved,
                            void *context, uint32_t *staying) {
  if (heap == NULL || moved == NULL) return EINVAL;
  purgeable__enter(heap);
  if (!purgeable__is_stream(heap, stream)) return EINVAL;
  if (staying != NULL) *staying = 0;
  purgeable__move_t move = {.stream = stream, .moved = moved, .context = context};
  int error = purgeable__evacuate(heap, slab, &move, staying);
  while (error == ENOMEM && compacts(heap, stream) && purgeable__compact_step(heap, true)) {
    error = purgeable__evacuate(heap, slab, &move, staying);
    // The compaction has emptied it.
    if (error == ESTALE) error = 0;
  }
  if (move.is_fresh && compacts(heap, stream)) (void)purgeable__compact_step(heap, false);
  return error;
}
