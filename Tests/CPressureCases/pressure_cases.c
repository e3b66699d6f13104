// SPDX-License-Identifier: MIT
// A C program's use of purgeable_pressure.h.

// For usleep.
#define _GNU_SOURCE

#include "pressure_cases.h"

#include <errno.h>
#include <pthread.h>
#include <purgeable_pressure.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
  _Atomic int32_t level;
  _Atomic int32_t call_count;
  /// When it is not NULL: the callback ends this watch, at its next call.
  _Atomic(purgeable_pressure_watch_t *) ending;
  /// While it is set, the callback does not return; `held_level` is what it was called with first.
  _Atomic int32_t is_held, held_level;
  _Atomic int32_t is_inside;
  pthread_t caller;
} heard_t;

static void note(int32_t level, void *context) {
  heard_t *heard = context;
  atomic_store(&heard->is_inside, 1);
  if (atomic_load(&heard->is_held)) atomic_store(&heard->held_level, level);
  while (atomic_load(&heard->is_held)) usleep(1000);
  heard->caller = pthread_self();
  atomic_store(&heard->level, level);
  purgeable_pressure_watch_t *ending = atomic_exchange(&heard->ending, NULL);
  if (ending != NULL) purgeable_pressure_unwatch(ending);
  atomic_fetch_add(&heard->call_count, 1);
  atomic_store(&heard->is_inside, 0);
}

static int comes_to(const _Atomic int32_t *value, int32_t wanted) {
  for (int i = 0; i < 12000 && atomic_load(value) != wanted; i++) usleep(10 * 1000);
  return atomic_load(value) == wanted;
}

/// A thread that ends a watch.
typedef struct {
  purgeable_pressure_watch_t *watch;
  const heard_t *heard;
  int32_t was_inside;
  _Atomic int32_t has_ended;
} ending_t;

static void *end_watch(void *context) {
  ending_t *ending = context;
  purgeable_pressure_unwatch(ending->watch);
  ending->was_inside = atomic_load(&ending->heard->is_inside);
  atomic_store(&ending->has_ended, 1);
  return NULL;
}

/// Whether a forked child, which does not have the thread of a call that is under way, can end its watch.
static int ends_in_child(purgeable_pressure_watch_t *watch) {
  pid_t child = fork();
  if (child == 0) {
    purgeable_pressure_unwatch(watch);
    _exit(0);
  }
  int status = -1;
  for (int i = 0; i < 6000 && child > 0 && waitpid(child, &status, WNOHANG) == 0; i++) usleep(10 * 1000);
  if (child > 0 && status == -1) {
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
  }
  return status == 0;
}

/// With patience, since a level falls two seconds after it was set lower, and the machine may be busy.
static int waits_for(const heard_t *heard, int32_t level) {
  for (int i = 0; i < 12000; i++) {
    if (atomic_load(&heard->call_count) > 0 && atomic_load(&heard->level) == level) return 1;
    usleep(10 * 1000);
  }
  return 0;
}

const char *pressure_case_watch(void (*set_level)(int32_t level)) {
  static heard_t heard, other, last;
  purgeable_pressure_watch_t *watch = NULL, *second = NULL, *third = NULL;
  if (purgeable_pressure_watch(NULL, &heard, &watch) != EINVAL || watch != NULL) return "a missing callback is refused";
  if (purgeable_pressure_watch(note, &heard, NULL) != EINVAL) return "a missing place for the watch is refused";
  purgeable_pressure_unwatch(NULL);

  heard.level = -1;
  if (purgeable_pressure_watch(note, &heard, &watch) != 0 || watch == NULL) return "watches";
  if (!waits_for(&heard, PURGEABLE_PRESSURE_NORMAL)) return "the current level first";
  if (pthread_equal(heard.caller, pthread_self())) return "on the library's thread";
  set_level(PURGEABLE_PRESSURE_WARNING);
  if (!waits_for(&heard, PURGEABLE_PRESSURE_WARNING)) return "hears of the warning";
  if (purgeable_pressure_level() != PURGEABLE_PRESSURE_WARNING) return "the level can be asked for";

  // A watch that begins later is told the present level, and may end itself.
  other.level = -1;
  if (purgeable_pressure_watch(note, &other, &second) != 0) return "a second watch";
  if (!waits_for(&other, PURGEABLE_PRESSURE_WARNING)) return "the second hears of the level that there is";
  atomic_store(&other.ending, second);
  set_level(PURGEABLE_PRESSURE_CRITICAL);
  if (!waits_for(&other, PURGEABLE_PRESSURE_CRITICAL) || !waits_for(&heard, PURGEABLE_PRESSURE_CRITICAL))
    return "both hear of critical";
  if (!comes_to(&other.is_inside, 0) || !comes_to(&heard.is_inside, 0)) return "both calls return";

  // Ending waits for the call that is under way.
  atomic_store(&heard.is_held, 1);
  set_level(PURGEABLE_PRESSURE_NORMAL);
  if (!comes_to(&heard.is_inside, 1)) return "a call is under way";
  if (!ends_in_child(watch)) return "a forked child ends a watch whose call was under way";
  static ending_t ending;
  pthread_t thread;
  ending.watch = watch;
  ending.heard = &heard;
  if (pthread_create(&thread, NULL, end_watch, &ending) != 0) return "no thread";
  // Time for it to end too early.
  usleep(300 * 1000);
  if (atomic_load(&ending.has_ended)) return "the watch has not ended while a call is under way";
  atomic_store(&heard.is_held, 0);
  if (pthread_join(thread, NULL) != 0 || ending.was_inside) return "no call is under way when the watch has ended";
  if (atomic_load(&heard.held_level) != PURGEABLE_PRESSURE_WARNING) return "hears of the first step down";

  // The next change is told to a watch that is there, and to none that has ended.
  int32_t calls = atomic_load(&heard.call_count), other_calls = atomic_load(&other.call_count);
  last.level = -1;
  if (purgeable_pressure_watch(note, &last, &third) != 0) return "a third watch";
  set_level(PURGEABLE_PRESSURE_CRITICAL);
  if (!waits_for(&last, PURGEABLE_PRESSURE_CRITICAL)) return "the third hears of critical";
  purgeable_pressure_unwatch(third);
  if (atomic_load(&heard.call_count) != calls || atomic_load(&other.call_count) != other_calls) return "nobody else is called";
  return NULL;
}
