// SPDX-License-Identifier: MIT
// The actions in a window: reads that are pushed to the other CPU, refills, appends. stale_window.c opens the windows.
//
//   regions    one page each                     | fill 7 | fill 7 | fill 7 | ...        a target is a region
//
//   slabs      four pages, one stream each       [neighbour|element ...|... element|free      |         |         ]
//                                                 page 0               | page 1               |         |
//
// The target of a slab is page 1: its element's second page, and the page being filled while the slab is open. Migration needs
// the element's header to be there, so page 0 is rescued by its neighbour's lock. Where the page being filled is not on offer, as
// the rule wants it, page 0 stands for the slab.

#include "stale_window.h"

#include <sched.h>
#include <semaphore.h>

typedef enum verdict { verdict_right, verdict_wrong, verdict_other } verdict_t;

enum { NEIGHBOUR_BYTES = 512, FRESH_BYTES = 64, ELEMENT_WORDS_MAX = 3 * 65536 / 2 / 8 };

struct stale_play {
  stale_script_t script;
  stale_kind_t kind;
  const stale_stage_t *stage;
  // Content is this number in every word; each round, and each refill, has its own.
  _Atomic uint64_t fills[STALE_TARGETS];
  uint64_t last_fill;
  purgeable_region_t *regions[STALE_TARGETS];
  purgeable_heap_t *heap;
  size_t element_bytes;
  purgeable_reference_t neighbours[STALE_TARGETS], elements[STALE_TARGETS], fresh[STALE_TARGETS];
  bool is_suspect[STALE_TARGETS];
  uint64_t confirmed;
  // Migration: the mover reads, the pusher sends it to the other CPU.
  pthread_t mover, pusher;
  size_t thread_count;
  sem_t mover_go, pusher_go;
  _Atomic bool stop, wants_push;
  _Atomic uint64_t done;
  uint64_t asked;
  size_t index;
  verdict_t verdict;
  uint64_t mover_words[ELEMENT_WORDS_MAX], viewer_words[ELEMENT_WORDS_MAX];
};

static _Thread_local bool is_to_be_moved;

static void write_words(void *bytes, size_t length, uint64_t fill) {
  uint64_t *words = bytes;
  for (size_t i = 0; i < length / 8; i++) words[i] = fill;
}

static bool has_words(const uint64_t *words, size_t length, uint64_t fill) {
  for (size_t i = 0; i < length / 8; i++) {
    if (words[i] != fill) return false;
  }
  return true;
}

static verdict_t judge_words(purgeable_outcome_t outcome, const uint64_t *words, size_t length, uint64_t fill) {
  if (outcome != purgeable_outcome_intact) return verdict_other;
  return has_words(words, length, fill) ? verdict_right : verdict_wrong;
}

static void count(stale_counts_t *counts, verdict_t verdict) {
  *(verdict == verdict_right ? &counts->right : verdict == verdict_wrong ? &counts->wrong : &counts->other) += 1;
}

static uint64_t fill_of(stale_play_t *play, size_t index) { return atomic_load(&play->fills[index]); }

// MARK: Regions

static bool fill_region(stale_play_t *play, size_t index, uint64_t fill) {
  purgeable_region_t *region = play->regions[index];
  if (purgeable_region_refill(region) != 0) return false;
  write_words(purgeable_region_bytes(region), purgeable_region_length_bytes(region), fill);
  atomic_store(&play->fills[index], fill);
  return purgeable_region_unlock(region) == 0;
}

static bool prepare_regions(void *context) {
  stale_play_t *play = context;
  play->last_fill++;
  for (size_t i = 0; i < play->script.count; i++) {
    if (!fill_region(play, i, play->last_fill)) return false;
  }
  return purgeable_offer_pending(NULL) == 0;
}

static bool see_region(void *context, size_t index) {
  stale_play_t *play = context;
  uint64_t word = 0;
  return purgeable_region_read(play->regions[index], 0, 8, &word) == purgeable_outcome_intact && word == fill_of(play, index);
}

static verdict_t read_region(stale_play_t *play, size_t index, uint64_t *words) {
  purgeable_outcome_t outcome = purgeable_region_read(play->regions[index], 0, PAGE, words);
  return judge_words(outcome, words, PAGE, fill_of(play, index));
}

static void refill(void *context, size_t index) {
  stale_play_t *play = context;
  (void)fill_region(play, index, ++play->last_fill);
}

static void judge_refill(void *context, size_t index, stale_counts_t *counts) {
  stale_play_t *play = context;
  count(counts, read_region(play, index, play->viewer_words));
}

static int by_address(const void *left, const void *right) {
  char *const *a = left, *const *b = right;
  return *a < *b ? -1 : *a > *b;
}

static bool make_regions(stale_play_t *play) {
  play->script.count = STALE_TARGETS;
  // By address: the kernel takes the pages in that order.
  struct {
    char *bytes;
    purgeable_region_t *region;
  } made[STALE_TARGETS] = {0};
  bool is_made = true;
  for (size_t i = 0; i < STALE_TARGETS && is_made; i++) {
    is_made = purgeable_region_create(PAGE, NULL, &made[i].region) == 0;
    if (is_made) made[i].bytes = purgeable_region_bytes(made[i].region), (void)purgeable_region_unlock(made[i].region);
  }
  if (is_made) qsort(made, STALE_TARGETS, sizeof made[0], by_address);
  for (size_t i = 0; i < STALE_TARGETS; i++) {
    play->regions[i] = made[i].region;
    play->script.pages[i] = made[i].bytes;
  }
  return is_made;
}

// MARK: Slabs

static char *page_of(const void *bytes) { return (char *)((uintptr_t)bytes & ~(PAGE - 1)); }

static bool add(stale_play_t *play, purgeable_stream_t stream, size_t length, purgeable_reference_t *reference, void **bytes) {
  if (purgeable_heap_allocate_in(play->heap, stream, length, 0, reference, bytes) != 0) return false;
  write_words(*bytes, length, play->last_fill);
  return purgeable_heap_commit(play->heap, *reference) == 0;
}

// Fresh elements that CPU B called discarded, looked at again from here after the window.
static void look_again(stale_play_t *play) {
  for (size_t i = 0; i < play->script.count; i++) {
    if (!play->is_suspect[i]) continue;
    uint64_t words[FRESH_BYTES / 8];
    purgeable_outcome_t outcome = purgeable_heap_read(play->heap, play->fresh[i], words, FRESH_BYTES, NULL);
    play->confirmed += judge_words(outcome, words, FRESH_BYTES, fill_of(play, i)) == verdict_right;
  }
  memset(play->is_suspect, 0, sizeof play->is_suspect);
}

// A new heap each round: a slab that was once appended to, or lost, is of no use for another round.
static bool prepare_slabs(void *context) {
  stale_play_t *play = context;
  bool appends = play->kind == stale_kind_element_append;
  bool offers_open_page = appends && !purgeable_testing_rule_holds(purgeable_testing_rule_no_append_after_offer);
  look_again(play);
  if (play->heap != NULL) (void)purgeable_heap_destroy(play->heap);
  play->heap = NULL;
  purgeable_heap_options_t options = {.slab_bytes = 4 * PAGE, .chunk_bytes = 4 * PAGE * STALE_TARGETS};
  if (purgeable_heap_create(&options, &play->heap) != 0) return false;
  play->last_fill++;
  for (size_t i = 0; i < play->script.count; i++) {
    purgeable_stream_t stream = 0;
    void *neighbour, *element;
    if (i != 0 && purgeable_stream_create(play->heap, &stream) != 0) return false;
    if (stream != i || !add(play, stream, NEIGHBOUR_BYTES, &play->neighbours[i], &neighbour)) return false;
    if (!add(play, stream, play->element_bytes, &play->elements[i], &element)) return false;
    atomic_store(&play->fills[i], play->last_fill);
    play->script.pages[i] = page_of(neighbour) + (appends && !offers_open_page ? 0 : PAGE);
    if (i != 0 && play->script.pages[i] <= play->script.pages[i - 1]) return false;
    if (!appends && purgeable_stream_seal(play->heap, stream) != 0) return false;
  }
  if (purgeable_heap_offer_idle(play->heap, NULL) != 0) return false;
  for (size_t i = 0; i < play->script.count && !appends; i++) {
    if (purgeable_heap_lock(play->heap, play->neighbours[i], NULL, NULL) != purgeable_outcome_intact) return false;
    if (purgeable_heap_unlock(play->heap, play->neighbours[i]) != 0) return false;
  }
  return true;
}

static bool see_element(void *context, size_t index) {
  stale_play_t *play = context;
  uint64_t first = 0, last = 0;
  bool sees_first = purgeable_heap_read_part(play->heap, play->neighbours[index], 0, 8, &first) == purgeable_outcome_intact;
  // A page 0 that stands for the slab is gone with its neighbour; page 1 is never gone then.
  bool sees_last = purgeable_heap_read_part(play->heap, play->elements[index], play->element_bytes - 8, 8, &last) ==
                   purgeable_outcome_intact;
  return sees_first && sees_last && first == fill_of(play, index) && last == fill_of(play, index);
}

static verdict_t read_element(stale_play_t *play, size_t index, uint64_t *words) {
  size_t length = 0;
  purgeable_outcome_t outcome = purgeable_heap_read(play->heap, play->elements[index], words, play->element_bytes, &length);
  return judge_words(outcome, words, play->element_bytes, fill_of(play, index));
}

static void append(void *context, size_t index) {
  stale_play_t *play = context;
  void *bytes;
  // With the fill of the round: the result distinguishes only whether the element is there.
  if (!add(play, (purgeable_stream_t)index, FRESH_BYTES, &play->fresh[index], &bytes)) memset(&play->fresh[index], 0, 16);
}

static void judge_append(void *context, size_t index, stale_counts_t *counts) {
  stale_play_t *play = context;
  purgeable_outcome_t outcome = purgeable_heap_read(play->heap, play->fresh[index], play->viewer_words, FRESH_BYTES, NULL);
  verdict_t verdict = judge_words(outcome, play->viewer_words, FRESH_BYTES, fill_of(play, index));
  // The element was written a moment ago and has not been on offer since: the kernel cannot have taken it.
  if (outcome == purgeable_outcome_discarded) {
    verdict = verdict_wrong;
    play->is_suspect[index] = true;
  }
  count(counts, verdict);
}

// MARK: Slabs of one page

// Each with one element, all of them on offer. The last slab is not open: an element that comes begins a slab.
static bool prepare_small_slabs(void *context) {
  stale_play_t *play = context;
  if (play->heap != NULL) (void)purgeable_heap_destroy(play->heap);
  play->heap = NULL;
  purgeable_heap_options_t options = {.slab_bytes = PAGE, .chunk_bytes = 4 * PAGE * STALE_TARGETS};
  if (purgeable_heap_create(&options, &play->heap) != 0) return false;
  play->last_fill++;
  for (size_t i = 0; i < play->script.count; i++) {
    void *bytes;
    if (!add(play, 0, NEIGHBOUR_BYTES, &play->elements[i], &bytes) || purgeable_stream_seal(play->heap, 0) != 0) return false;
    atomic_store(&play->fills[i], play->last_fill);
    play->script.pages[i] = page_of(bytes);
    if (i != 0 && play->script.pages[i] <= play->script.pages[i - 1]) return false;
  }
  return purgeable_heap_offer_idle(play->heap, NULL) == 0;
}

static verdict_t read_small(stale_play_t *play, size_t index) {
  purgeable_outcome_t outcome = purgeable_heap_read(play->heap, play->elements[index], play->viewer_words, NEIGHBOUR_BYTES, NULL);
  if (outcome == purgeable_outcome_busy) return verdict_other;
  return judge_words(outcome, play->viewer_words, NEIGHBOUR_BYTES, fill_of(play, index));
}

static bool see_small(void *context, size_t index) { return read_small(context, index) == verdict_right; }

// The slab ends without a look at its element: a read would map the page of zeros, and to replace that page flushes.
static void fill_again(void *context, size_t index) {
  stale_play_t *play = context;
  purgeable_slab_t slab;
  void *bytes;
  uint64_t place = play->elements[index].place;
  if (purgeable_slab_of(play->heap, play->elements[index], &slab) != 0) abort();
  if (purgeable_slab_free_elements(play->heap, slab, NULL) != 0) abort();
  play->last_fill++;
  if (!add(play, 0, NEIGHBOUR_BYTES, &play->elements[index], &bytes) || play->elements[index].place != place) abort();
  atomic_store(&play->fills[index], play->last_fill);
  (void)purgeable_stream_seal(play->heap, 0);
}

// The element was written a moment ago, and has not been on offer since: whatever is not its content is wrong.
static void judge_again(void *context, size_t index, stale_counts_t *counts) {
  verdict_t verdict = read_small(context, index);
  count(counts, verdict == verdict_other ? verdict_wrong : verdict);
}

// MARK: Migration

// Called by every read between copy and check; only the mover's first try is held up until it finds itself on CPU B. It waits
// without a system call, as a reader that is preempted would: from Linux 6.19 on the kernel does not clear the sentinel of a
// thread that was moved in a system call, because restartable sequences contain none.
static void pause_of_read(void *context) {
  stale_play_t *play = context;
  if (!is_to_be_moved) return;
  is_to_be_moved = false;
  atomic_store(&play->wants_push, true);
  uint64_t patience_ns = now_ns() + 20000000;
  while (sched_getcpu() != play->stage->cpu_b && now_ns() < patience_ns) continue;
  atomic_store(&play->wants_push, false);
}

// On CPU B, by the spinning viewer. The call that moves the thread may sleep, so the pusher makes it.
static void poll_for_push(void *context) {
  stale_play_t *play = context;
  if (!atomic_load_explicit(&play->wants_push, memory_order_relaxed)) return;
  if (atomic_exchange(&play->wants_push, false)) (void)sem_post(&play->pusher_go);
}

static void *push(void *argument) {
  stale_play_t *play = argument;
  for (;;) {
    while (sem_wait(&play->pusher_go) != 0) continue;
    if (atomic_load(&play->stop)) return NULL;
    stale_pin(play->mover, play->stage->cpu_b);
  }
}

static void *move(void *argument) {
  stale_play_t *play = argument;
  for (;;) {
    while (sem_wait(&play->mover_go) != 0) continue;
    if (atomic_load(&play->stop)) return NULL;
    is_to_be_moved = true;
    bool is_region = play->kind == stale_kind_region_migration;
    play->verdict = (is_region ? read_region : read_element)(play, play->index, play->mover_words);
    // A read of a page that was gone before the copy began never came to the pause.
    is_to_be_moved = false;
    stale_pin(pthread_self(), play->stage->cpu_a);
    atomic_fetch_add(&play->done, 1);
  }
}

// Holds CPU A while the mover is away, so that the reclaimer makes no step.
static void have_it_read(void *context, size_t index) {
  stale_play_t *play = context;
  play->index = index;
  play->asked++;
  (void)sem_post(&play->mover_go);
  uint64_t patience_ns = now_ns() + 30000000;
  while (atomic_load(&play->done) != play->asked) {
    if (now_ns() > patience_ns) (void)usleep(100);
  }
}

static void judge_move(void *context, size_t index, stale_counts_t *counts) {
  stale_play_t *play = context;
  (void)index;
  count(counts, play->verdict);
}

static bool start_movers(stale_play_t *play) {
  if (!purgeable_testing_set_pause(pause_of_read, play)) return false;
  if (stale_thread(&play->mover, play->stage->cpu_a, STALE_MOVER, move, play) != 0) return false;
  play->thread_count = 1;
  if (stale_thread(&play->pusher, play->stage->cpu_b, STALE_PUSHER, push, play) != 0) return false;
  play->thread_count = 2;
  return true;
}

// MARK: Making and ending

stale_play_t *stale_play_make(stale_kind_t kind, const stale_stage_t *stage) {
  stale_play_t *play = calloc(1, sizeof *play);
  if (play == NULL) return NULL;
  play->kind = kind;
  play->stage = stage;
  play->element_bytes = PAGE + PAGE / 2;
  (void)sem_init(&play->mover_go, 0, 0);
  (void)sem_init(&play->pusher_go, 0, 0);
  bool has_regions = kind == stale_kind_region_migration || kind == stale_kind_region_refill;
  bool moves = kind == stale_kind_region_migration || kind == stale_kind_element_migration;
  play->script = (stale_script_t){
      .prepare = has_regions ? prepare_regions : prepare_slabs,
      .see = has_regions ? see_region : see_element,
      .act = moves ? have_it_read : has_regions ? refill : append,
      .judge = moves ? judge_move : has_regions ? judge_refill : judge_append,
      .poll = moves ? poll_for_push : NULL,
      .context = play,
      .count = STALE_TARGETS,
      // The mover's way back lets a kernel thread run on CPU B, after which that CPU drops its stale translations.
      .reach = moves ? 1 : STALE_REACH,
  };
  if (kind == stale_kind_slab_again) {
    play->script.prepare = prepare_small_slabs;
    play->script.see = see_small;
    play->script.act = fill_again;
    play->script.judge = judge_again;
  }
  if ((!has_regions || make_regions(play)) && (!moves || start_movers(play))) return play;
  stale_play_end(play);
  return NULL;
}

stale_script_t *stale_play_script(stale_play_t *play) { return &play->script; }

uint64_t stale_play_confirmed(stale_play_t *play) {
  look_again(play);
  return play->confirmed;
}

void stale_play_end(stale_play_t *play) {
  atomic_store(&play->stop, true);
  (void)sem_post(&play->mover_go);
  (void)sem_post(&play->pusher_go);
  if (play->thread_count > 0) pthread_join(play->mover, NULL);
  if (play->thread_count > 1) pthread_join(play->pusher, NULL);
  (void)purgeable_testing_set_pause(NULL, NULL);
  (void)sem_destroy(&play->mover_go);
  (void)sem_destroy(&play->pusher_go);
  for (size_t i = 0; i < STALE_TARGETS; i++) {
    if (play->regions[i] != NULL) (void)purgeable_region_destroy(play->regions[i]);
  }
  if (play->heap != NULL) (void)purgeable_heap_destroy(play->heap);
  free(play);
}
