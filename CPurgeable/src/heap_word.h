// SPDX-License-Identifier: MIT
// The slab's word: what it says, and every way in which it is read and changed. Nobody else touches it.
//
//   63           32 31    24 23  20 19             0
//   |  generation  |  flags |      |  lock count   |
//
// One atomic word, so that "count up if this is still the life I mean" and "claim if nobody holds it" are single exchanges. The
// transitions, and why each is sound: heap_word.c.
#ifndef PURGEABLE_HEAP_WORD_H
#define PURGEABLE_HEAP_WORD_H

#include "heap_structure.h"

#pragma GCC visibility push(hidden)

#define COUNT_MASK ((uint64_t)0xFFFFF)
// A thread is inside the madvise that covers this slab. Set only from count 0; lockers count up, then wait until it is clear.
#define OFFERING ((uint64_t)1 << 24)
// Claimed to be given back, or not in use. Set only from count 0 and not OFFERING; nobody counts up from here on.
#define DYING ((uint64_t)1 << 25)
// Somebody sleeps until OFFERING is clear.
#define WAITERS ((uint64_t)1 << 26)
// One element in a mapping of its own, which ends with it: whoever looks at its content counts up first, also a read without
// lock.
#define ALONE ((uint64_t)1 << 27)

// MARK: What a word says

static inline uint32_t purgeable__generation(uint64_t word) { return (uint32_t)(word >> 32); }
static inline uint32_t purgeable__lock_count(uint64_t word) { return (uint32_t)(word & COUNT_MASK); }
static inline bool purgeable__is_offering(uint64_t word) { return (word & OFFERING) != 0; }
static inline bool purgeable__is_dying(uint64_t word) { return (word & DYING) != 0; }
static inline bool purgeable__is_alone(uint64_t word) { return (word & ALONE) != 0; }
static inline bool purgeable__has_waiters(uint64_t word) { return (word & WAITERS) != 0; }
// A life is going on, and nobody holds it.
static inline bool purgeable__is_unheld(uint64_t word) { return (word & (COUNT_MASK | DYING)) == 0; }
// That, and no madvise is running.
static inline bool purgeable__is_idle(uint64_t word) { return (word & (COUNT_MASK | OFFERING | DYING)) == 0; }
// The life of this generation is going on.
static inline bool purgeable__is_of_life(uint64_t word, uint32_t generation) {
  return purgeable__generation(word) == generation && (word & DYING) == 0;
}

// The same, and what lies there shares its mapping with others: it can be looked at without a count.
static inline bool purgeable__is_of_shared_life(uint64_t word, uint32_t generation) {
  return purgeable__generation(word) == generation && (word & (DYING | ALONE)) == 0;
}
// The same, and what lies there has a mapping of its own, which ends with the life.
static inline bool purgeable__is_of_life_alone(uint64_t word, uint64_t generation) {
  return purgeable__generation(word) == generation && (word & (DYING | ALONE)) == ALONE;
}

// What every word obeys at every moment.
static inline bool purgeable__slab_word_is_valid(uint64_t word) {
  if ((word & UINT32_MAX & ~(COUNT_MASK | OFFERING | DYING | WAITERS | ALONE)) != 0) return false;
  if ((word & WAITERS) != 0 && (word & OFFERING) == 0) return false;
  // Claimed is what nobody holds, and no madvise covers.
  return (word & DYING) == 0 || (word & (COUNT_MASK | OFFERING)) == 0 || !PURGEABLE_RULE(claim_before_give_back);
}

static inline uint32_t purgeable__next_generation(uint32_t generation) {
  generation++;
  if (!PURGEABLE_RULE(wide_generations)) generation &= 3;
  return generation == 0 ? 1 : generation;
}

// MARK: Reading

// Of use where an exchange decides, or as a hint.
static inline uint64_t purgeable__slab_word_relaxed(const purgeable__slab_t *slab) { return load_relaxed(&slab->word); }
// The slab's fields are those of this life, or of a later one.
static inline uint64_t purgeable__slab_word_acquire(const purgeable__slab_t *slab) { return load_acquire(&slab->word); }
// In one order with all changes of words, and with the counts of the living.
static inline uint64_t purgeable__slab_word_ordered(const purgeable__slab_t *slab) { return atomic_load(&slab->word); }
// The generation where the life is held, or only a hint is wanted.
static inline uint32_t purgeable__slab_generation(const purgeable__slab_t *slab) {
  return purgeable__generation(purgeable__slab_word_relaxed(slab));
}

// MARK: Changing

// From exactly `*seen` to `wanted`. On failure, which may be for no reason, `*seen` is what stands there now. Sequentially
// consistent: pairs with all other changes of the word.
static inline bool purgeable__slab_word_change(purgeable__slab_t *slab, uint64_t *seen, uint64_t wanted) {
  assert(purgeable__slab_word_is_valid(*seen) && purgeable__slab_word_is_valid(wanted));
  assert(purgeable__generation(*seen) == purgeable__generation(wanted));
  return atomic_compare_exchange_weak(&slab->word, seen, wanted);
}

// Counts up in the life of this generation. 0; ESTALE: it is over; EOVERFLOW: as many locks as the word can count hold it.
int purgeable__pin(purgeable__slab_t *slab, uint32_t generation);
// Notes that somebody is about to sleep until the offer in `word` has ended. False: the word has changed.
bool purgeable__note_waiter(purgeable__slab_t *slab, uint64_t word);
// Sleeps while the word is `word` with that note. Spurious returns are allowed.
void purgeable__sleep_while_offered(purgeable__slab_t *slab, uint64_t word);
// Claims the slab for a madvise, from a word that is idle. False: as with `purgeable__slab_word_change`.
static inline bool purgeable__claim_for_offer(purgeable__slab_t *slab, uint64_t *seen) {
  assert(purgeable__is_idle(*seen));
  return purgeable__slab_word_change(slab, seen, *seen | OFFERING);
}
// Ends that, and wakes who sleeps. Answers the generation of the life that was offered: OFFERING kept it going.
uint32_t purgeable__end_offer(purgeable__slab_t *slab);
// Claims the slab to be given back. False: as with `purgeable__slab_word_change`.
static inline bool purgeable__claim_for_end(purgeable__slab_t *slab, uint64_t *seen) {
  return purgeable__slab_word_change(slab, seen, *seen | DYING);
}
// Ends the claimed life `generation`: the next one's generation stands there from now on.
void purgeable__end_life(purgeable__slab_t *slab, uint32_t generation);
// Begins the life `generation` of a slab that nobody can reach. `begin`: DYING for what is no life of its own, a count of 1 for
// what is born with its writer's lock, and ALONE.
void purgeable__begin_life(purgeable__slab_t *slab, uint32_t generation, uint64_t begin);
// In a forked child: whatever the word said, the slab is free and of this generation.
void purgeable__reset_life(purgeable__slab_t *slab, uint32_t generation);

#pragma GCC visibility pop

#endif
