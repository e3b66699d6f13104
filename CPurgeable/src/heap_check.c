// SPDX-License-Identifier: MIT
// Whether a heap is whole: what its slabs, bits and lists say, each against the others, and all of it against the heap's sums.
//
// For tests, while nobody is inside of the heap: sums and what they are sums of change one after the other.

#include "heap_books.h"
#include "heap_kept.h"
#include "heap_list.h"
#include "heap_rooms.h"

// What the slabs add up to.
typedef struct sums {
  uint64_t slabs, open, elements, payload, held, lost_pages, lossy, waiting, unoffered, kept, kept_bytes;
  const char *wrong;
} sums_t;

// Notes what is wrong, unless something is already.
static void expect(sums_t *sums, bool holds, const char *otherwise) {
  if (!holds && sums->wrong == NULL) sums->wrong = otherwise;
}

// MARK: One unit

// A slab between two lives.
static void check_idle_unit(const purgeable_heap_t *heap, purgeable__chunk_t *chunk, uint32_t unit, sums_t *sums) {
  purgeable__slab_t *slab = purgeable__slab_at(chunk, unit);
  uint64_t word = purgeable__slab_word_relaxed(slab);
  uint8_t state = load_relaxed(&slab->state);
  bool is_used = purgeable__is_used(chunk, unit), is_fresh = state == slab_never_used;
  expect(sums, is_used == (state != slab_never_used && state != slab_free), "a unit's bit of use does not fit its state");
  bool is_claimed = purgeable__is_dying(word) && purgeable__generation(word) != 0;
  expect(sums, is_fresh || is_claimed, "a slab without a life is not claimed");
  expect(sums, !purgeable__is_lossy(chunk, unit), "a slab without a life has losses");
  expect(sums, load_relaxed(&slab->waiting) == 0, "a slab without a life waits for an offer");
  expect(sums, load_relaxed(&slab->lost_pages) == 0, "a slab without a life has lost pages on the books");
  expect(sums, !is_used || (slab->next == 0 && slab->previous == 0), "a slab without a life is in a list");
  bool is_tagged = heap->keeps_tags && *purgeable__tags_at(heap, chunk, unit) != NULL;
  expect(sums, !is_tagged, "a slab without a life has tags");
  if (state == slab_kept) {
    bool is_listed = false;
    for (uint32_t i = 0; i < heap->kept_count; i++) {
      is_listed = is_listed || heap->kept[i] == chunk->number * heap->units_per_chunk + unit;
    }
    expect(sums, is_listed, "a slab that is kept is not in the list of those");
    expect(sums, !purgeable__was_offered(slab), "a slab that is kept was on offer");
    sums->kept++;
    sums->kept_bytes += purgeable__slab_held_bytes(heap, slab);
    sums->held += purgeable__slab_held_bytes(heap, slab);
  }
  if (state == slab_unwiped || state == slab_delayed) {
    uint32_t number = chunk->number * heap->units_per_chunk + unit;
    bool is_noted = number >= heap->unwiped_first && number < heap->unwiped_end && load_relaxed(&heap->unwiped);
    expect(sums, is_noted, "a slab that is to be wiped is not noted");
    if (state == slab_unwiped) sums->held += purgeable__slab_held_bytes(heap, slab);
  }
}

// The living elements of a slab, by its bits: each begins in what is used of it, and has a tag where the heap keeps them.
static void check_living(const purgeable_heap_t *heap, purgeable__spot_t spot, sums_t *sums) {
  purgeable__slab_t *slab = spot.slab;
  uint32_t end = purgeable__is_run(slab) ? 1 : load_relaxed(&slab->used_granule_count);
  const purgeable__tag_t *tags = heap->keeps_tags ? *purgeable__tags_at(heap, spot.chunk, spot.unit) : NULL;
  uint64_t count = 0, bytes = 0;
  uint32_t tag = 0;
  for (spot.granule = 0; spot.granule < heap->granules_per_slab; spot.granule++) {
    if (!purgeable__is_living(heap, spot)) continue;
    count++;
    expect(sums, spot.granule < end, "an element begins beyond what is used of its slab");
    while (tags != NULL && tag < slab->tag_count && tags[tag].granule < spot.granule) tag++;
    bool has_tag = tags != NULL && tag < slab->tag_count && tags[tag].granule == spot.granule;
    expect(sums, !heap->keeps_tags || has_tag, "a living element has no tag");
  }
  for (uint32_t page = 0; page < heap->pages_per_slab; page++) {
    bytes += load_relaxed(purgeable__pages_at(heap, spot.chunk, spot.unit) + page);
  }
  expect(sums, count == load_relaxed(&slab->element_count), "a slab's count of the living is not that of its bits");
  expect(sums, bytes == load_relaxed(&slab->payload_bytes), "a slab's payload is not the sum of its pages");
  sums->elements += count;
  sums->payload += bytes;
}

static void check_slab(const purgeable_heap_t *heap, purgeable__spot_t spot, sums_t *sums) {
  purgeable__slab_t *slab = spot.slab;
  uint64_t word = purgeable__slab_word_relaxed(slab), lost = load_relaxed(&slab->lost);
  uint32_t units = load_relaxed(&slab->unit_count), lost_pages = load_relaxed(&slab->lost_pages);
  bool is_open = load_relaxed(&slab->state) == slab_open;
  expect(sums, purgeable__slab_word_is_valid(word), "a slab's word is none");
  expect(sums, !purgeable__is_dying(word) && !purgeable__is_offering(word), "a slab that lives is claimed");
  expect(sums, purgeable__generation(word) != 0 && slab->first_generation != 0, "a slab that lives has no generation");
  expect(sums, purgeable__is_used(spot.chunk, spot.unit), "a slab that lives is not marked as used");
  expect(sums, purgeable__is_alone(word) == (units > heap->units_per_chunk), "a slab's word does not say how it is mapped");
  expect(sums, purgeable__is_lossy(spot.chunk, spot.unit) == (lost != 0), "a slab's bit of losses does not fit its pages");
  expect(sums, purgeable__is_run(slab) || lost_pages == (uint32_t)__builtin_popcountll(lost), "lost pages are not on the books");
  size_t held = is_open ? heap->slab_bytes : purgeable__slab_held_bytes(heap, slab);
  expect(sums, held <= (size_t)units << heap->slab_shift, "a slab holds more than it has");
  expect(sums, lost_pages <= held >> heap->page_shift, "more pages are lost than are held");
  expect(sums, !is_open || units == 1, "a run of units is open");
  check_living(heap, spot, sums);
  sums->slabs++;
  sums->open += is_open;
  sums->held += held;
  sums->lost_pages += lost_pages;
  sums->lossy += lost != 0;
  bool is_unoffered;
  uint64_t waiting = purgeable__bytes_waiting(heap, slab, &is_unoffered);
  sums->waiting += waiting;
  if (is_unoffered) sums->unoffered += waiting;
}

// MARK: One chunk

static void check_units(const purgeable_heap_t *heap, purgeable__chunk_t *chunk, sums_t *sums) {
  uint32_t high = load_relaxed(&chunk->high_water), used = 0, run = 0, longest = 0, more = 0;
  for (uint32_t unit = 0; unit < heap->units_per_chunk; unit++) {
    bool is_used = purgeable__is_used(chunk, unit);
    used += is_used;
    run = is_used ? 0 : run + 1;
    longest = run > longest ? run : longest;
    expect(sums, !is_used || unit < high, "a unit above all that was ever used is in use");
    if (unit >= high) continue;
    purgeable__spot_t spot = purgeable__find_unit(heap, chunk->number * heap->units_per_chunk + unit);
    expect(sums, spot.chunk == chunk && spot.unit == unit, "a unit is not found by its number");
    if (spot.slab == NULL) return;
    uint8_t state = load_relaxed(&spot.slab->state);
    // A run whose first unit's wipe was refused, or waits, still has the others.
    bool is_run = purgeable__state_is_in_use(state) || state == slab_unwiped;
    expect(sums, (more != 0) == (state == slab_continuation), "a run of units has a gap");
    if (more != 0) more--;
    if (is_run) more = load_relaxed(&spot.slab->unit_count) - 1;
    if (purgeable__state_is_in_use(state)) {
      check_slab(heap, spot, sums);
    } else {
      check_idle_unit(heap, chunk, unit, sums);
    }
  }
  expect(sums, used == chunk->used_count, "a chunk's count of used units is not that of its bits");
  expect(sums, longest <= purgeable__room(heap, chunk->number), "a chunk has a run of units that it is said not to have");
}

// A large element that lies alone in its mapping: one slab for all units.
static void check_alone(const purgeable_heap_t *heap, purgeable__chunk_t *chunk, sums_t *sums) {
  purgeable__spot_t spot = purgeable__find_unit(heap, chunk->number * heap->units_per_chunk);
  expect(sums, spot.chunk == chunk, "a mapping of its own is not found by its number");
  if (spot.slab == NULL) return;
  bool lives = purgeable__state_is_in_use(load_relaxed(&spot.slab->state));
  expect(sums, chunk->span_count != 0, "a mapping of its own spans no numbers");
  for (uint32_t i = 1; i < chunk->span_count; i++) {
    expect(sums, purgeable__chunk_kind(heap, chunk->number + i) == chunk_continued, "a mapping of its own has a gap");
  }
  expect(sums, chunk->used_count == purgeable__is_used(chunk, 0), "a mapping of its own has another use");
  if (lives) check_slab(heap, spot, sums);
  if (!lives) check_idle_unit(heap, chunk, 0, sums);
}

// MARK: Streams

// Each list forwards, with its links back. Answers how many slabs it has.
static uint64_t check_stream(purgeable_heap_t *heap, purgeable_stream_t stream, uint64_t slabs, sums_t *sums) {
  const purgeable__stream_t *list = purgeable__stream(heap, stream);
  uint32_t previous = 0, unit = list->oldest;
  uint64_t count = 0;
  for (; unit != 0 && count <= slabs; count++) {
    purgeable__slab_t *slab = purgeable__find_unit(heap, unit - 1).slab;
    bool is_own = slab != NULL && purgeable__is_in_stream(heap, unit, stream);
    expect(sums, is_own, "a stream's list has a slab that is not the stream's");
    if (sums->wrong != NULL) return count;
    expect(sums, slab->previous == previous, "a stream's list does not lead back");
    previous = unit;
    unit = slab->next;
  }
  expect(sums, unit == 0 && list->youngest == previous, "a stream's list does not end at its youngest slab");
  if (list->open == 0) return count;
  sums->open--;
  const purgeable__slab_t *open = purgeable__find_unit(heap, list->open - 1).slab;
  bool is_open = open != NULL && load_relaxed(&open->state) == slab_open && load_relaxed(&open->stream) == stream;
  expect(sums, is_open, "a stream's open slab is not open, or not the stream's");
  return count;
}

// MARK: The heap

static void check_sums(const purgeable_heap_t *heap, sums_t *sums) {
  expect(sums, sums->open == 0, "an open slab is not its stream's");
  expect(sums, sums->slabs == load_relaxed(&heap->slab_count), "the heap's count of slabs is wrong");
  expect(sums, sums->elements == purgeable__element_count(heap), "the heap's count of elements is wrong");
  expect(sums, sums->payload == purgeable__payload_bytes(heap), "the heap's payload is wrong");
  expect(sums, sums->held == load_relaxed(&heap->held_bytes), "what the heap holds is wrong");
  expect(sums, sums->kept == heap->kept_count, "the heap's count of kept slabs is wrong");
  expect(sums, sums->kept <= purgeable__kept_most(heap), "a heap keeps more slabs than it may");
  expect(sums, sums->kept_bytes == load_relaxed(&heap->kept_bytes), "what the kept slabs hold is wrong");
  expect(sums, sums->lossy == load_relaxed(&heap->lossy_count), "the heap's count of slabs with losses is wrong");
  expect(sums, sums->lost_pages << heap->page_shift == load_relaxed(&heap->lost_bytes), "what the heap has lost is wrong");
  expect(sums, sums->waiting == load_relaxed(&heap->waiting_bytes), "what waits for an offer is wrong");
  expect(sums, sums->unoffered == load_relaxed(&heap->unoffered_bytes), "what waits for a first offer is wrong");
}

bool purgeable_testing_heap_is_valid(purgeable_heap_t *heap, const char **wrong) {
  sums_t sums = {0};
  uint64_t listed = 0;
  pthread_mutex_lock(&heap->control->mutex);
  uint32_t chunks = load_relaxed(&heap->chunk_count), streams = load_relaxed(&heap->stream_count);
  for (uint32_t number = 0; number < chunks && sums.wrong == NULL; number++) {
    purgeable__chunk_t *chunk = purgeable__chunk_at(heap, number);
    if (chunk == NULL) continue;
    expect(&sums, chunk->number == number, "a chunk is not where its number says");
    if (purgeable__chunk_kind(heap, number) == chunk_alone) {
      check_alone(heap, chunk, &sums);
    } else {
      check_units(heap, chunk, &sums);
    }
  }
  for (purgeable_stream_t stream = 0; stream < streams && sums.wrong == NULL; stream++) {
    listed += check_stream(heap, stream, sums.slabs, &sums);
  }
  expect(&sums, listed == sums.slabs, "a slab is in no stream's list");
  expect(&sums, purgeable__rooms_are_valid(heap), "the tree of rooms is not what its leaves say");
  bool is_in_list = heap->compact_hand == 0 || purgeable__is_in_stream(heap, heap->compact_hand, 0);
  expect(&sums, is_in_list, "compaction's hand is in no list");
  check_sums(heap, &sums);
  pthread_mutex_unlock(&heap->control->mutex);
  if (wrong != NULL) *wrong = sums.wrong;
  return sums.wrong == NULL;
}
