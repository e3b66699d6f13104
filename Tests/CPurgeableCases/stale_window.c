// SPDX-License-Identifier: MIT
// The threads that open a window: the reclaimer and the holder on CPU A, the viewer on CPU B.
//
//   reclaimer (A, low)    prepare | wait for warm | madvise(MADV_PAGEOUT) ..... stopped ............. | ... | next round
//   holder    (A, high)           |               |        wakes: which pages are gone? act on them   | sleeps, wakes again
//   viewer    (B)         sleeps  | see all: warm | spins ............. see .. judge .. see the rest | ... | sleeps
//
// The holder shares its CPU with the reclaimer, so while it runs, the reclaimer is inside its call and makes no step. It learns
// which pages are gone by mincore, which touches none of them; those next to the first one that is still there were taken last.
// During its call the reclaimer has the lowest real-time priority, so that nobody but the holder stops it; else the normal one.

#include "stale_window.h"

#include <sched.h>
#include <semaphore.h>
#include <time.h>

enum { SPAN_PAGES_MAX = 8 * STALE_TARGETS };

typedef enum request { request_warm, request_see, request_judge, request_park } request_t;

typedef struct play {
  stale_script_t *script;
  stale_counts_t *counts;
  uint64_t deadline_ns, enough, seed;
  const char *reason;
  // Written before the semaphore that starts a round; read by the holder after it.
  uint64_t wake_ns;
  size_t span_pages;
  bool acted[STALE_TARGETS];
  unsigned char resident[SPAN_PAGES_MAX];
  sem_t holder_go, holder_parked, viewer_go;
  _Atomic bool calling, stop;
  // How long the holder kept the reclaimer from its call in this round.
  uint64_t held_ns;
  // A request to the viewer: written before `asked` is raised (release); the answer before `answered` is.
  request_t request;
  size_t index;
  bool seen;
  _Atomic uint64_t asked, answered;
} play_t;

static void sleep_until(uint64_t at_ns) {
  struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u), .tv_nsec = (long)(at_ns % 1000000000u)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR) continue;
}

static void wait_for(sem_t *semaphore) {
  while (sem_wait(semaphore) != 0) continue;
}

// MARK: Stage and threads

static void *nothing(void *argument) { return argument; }

static cpu_set_t only(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpu, &set);
  return set;
}

void stale_pin(pthread_t thread, int cpu) {
  cpu_set_t set = only(cpu);
  (void)pthread_setaffinity_np(thread, sizeof set, &set);
}

// The start of a thread, which moves itself to its processor: not every C library has an attribute for that.
typedef struct beginning {
  int cpu;
  void *(*body)(void *);
  void *argument;
} beginning_t;

static void *begin_there(void *context) {
  beginning_t beginning = *(beginning_t *)context;
  free(context);
  cpu_set_t set = only(beginning.cpu);
  (void)sched_setaffinity(0, sizeof set, &set);
  return beginning.body(beginning.argument);
}

int stale_thread(pthread_t *thread, int cpu, int priority, void *(*body)(void *), void *argument) {
  pthread_attr_t attributes;
  struct sched_param parameter = {.sched_priority = priority};
  int error = pthread_attr_init(&attributes);
  if (error != 0) return error;
  beginning_t *beginning = malloc(sizeof *beginning);
  if (beginning == NULL) error = ENOMEM;
  if (error == 0) *beginning = (beginning_t){.cpu = cpu, .body = body, .argument = argument};
  if (error == 0) error = pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
  if (error == 0) error = pthread_attr_setschedpolicy(&attributes, priority == 0 ? SCHED_OTHER : SCHED_FIFO);
  if (error == 0) error = pthread_attr_setschedparam(&attributes, &parameter);
  if (error == 0) error = pthread_create(thread, &attributes, begin_there, beginning);
  if (error != 0) free(beginning);
  (void)pthread_attr_destroy(&attributes);
  return error;
}

bool stale_cpus(stale_stage_t *stage) {
  cpu_set_t set;
  int found = 0;
  int *places[] = {&stage->cpu_a, &stage->cpu_b};
  if (sched_getaffinity(0, sizeof set, &set) != 0) return false;
  for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++) {
    if (CPU_ISSET((size_t)cpu, &set)) *places[found++] = cpu;
  }
  return found == 2;
}

bool stale_stage(stale_stage_t *stage, const char **reason) {
  if (!stale_cpus(stage)) {
    *reason = "needs two CPUs";
    return false;
  }
  pthread_t thread;
  if (stale_thread(&thread, stage->cpu_a, STALE_HOLDER, nothing, NULL) != 0) {
    *reason = "real-time priority is refused (SCHED_FIFO, RLIMIT_RTPRIO)";
    return false;
  }
  pthread_join(thread, NULL);
  return true;
}

// MARK: The viewer

// Posts a request and waits for its answer. Spins at first, which keeps the window open; sleeps when that takes too long, because
// the viewer may be waiting for something that only the reclaimer can let go of.
static bool ask(play_t *play, request_t request, size_t index) {
  play->request = request;
  play->index = index;
  uint64_t number = atomic_load_explicit(&play->asked, memory_order_relaxed) + 1;
  atomic_store_explicit(&play->asked, number, memory_order_release);
  uint64_t patience_ns = now_ns() + 20000000;
  while (atomic_load_explicit(&play->answered, memory_order_acquire) != number) {
    if (now_ns() > patience_ns) sleep_until(now_ns() + 100000);
  }
  return play->seen;
}

static void answer(play_t *play) {
  stale_script_t *script = play->script;
  switch (play->request) {
    case request_warm:
      for (size_t i = play->index; i < script->count; i++) (void)script->see(script->context, i);
      break;
    case request_see:
      play->seen = script->see(script->context, play->index);
      break;
    case request_judge:
      script->judge(script->context, play->index, play->counts);
      break;
    case request_park:
      break;
  }
}

static void *view(void *argument) {
  play_t *play = argument;
  uint64_t number = 0;
  for (;;) {
    wait_for(&play->viewer_go);
    if (atomic_load(&play->stop)) return NULL;
    for (bool parked = false; !parked;) {
      if (atomic_load_explicit(&play->asked, memory_order_acquire) == number) {
        if (play->script->poll != NULL) play->script->poll(play->script->context);
        continue;
      }
      answer(play);
      parked = play->request == request_park;
      atomic_store_explicit(&play->answered, ++number, memory_order_release);
    }
  }
}

// MARK: The holder

// Finds out which targets are gone, and acts on those that were taken last, as long as CPU B still shows them.
static void look_for_window(play_t *play) {
  stale_script_t *script = play->script;
  size_t page = PAGE, index = script->count;
  if (mincore(script->pages[0], play->span_pages * page, play->resident) != 0) return;
  while (index > 0) {
    size_t place = (size_t)(script->pages[index - 1] - script->pages[0]) / page;
    if ((play->resident[place] & 1) == 0 && !play->acted[index - 1]) break;
    index--;
  }
  if (index == 0) return;
  play->counts->caught++;
  size_t next = index;
  for (size_t reach = 0; reach < script->reach && index > 0; reach++) {
    index--;
    size_t place = (size_t)(script->pages[index] - script->pages[0]) / page;
    if ((play->resident[place] & 1) != 0 || play->acted[index]) break;
    play->acted[index] = true;
    if (!ask(play, request_see, index)) break;
    play->counts->windows++;
    script->act(script->context, index);
    (void)ask(play, request_judge, index);
  }
  // CPU B may have lost its translations by that. It reads the targets that are left before the reclaimer goes on.
  (void)ask(play, request_warm, next);
}

static void *hold(void *argument) {
  play_t *play = argument;
  for (;;) {
    wait_for(&play->holder_go);
    if (atomic_load(&play->stop)) return NULL;
    sleep_until(play->wake_ns);
    while (atomic_load(&play->calling)) {
      uint64_t begin = now_ns();
      look_for_window(play);
      uint64_t end = now_ns();
      play->held_ns += end - begin;
      // Lets the reclaimer make its next steps, over a few pages.
      sleep_until(end + 2000 + next_random(&play->seed) % 8000);
    }
    (void)sem_post(&play->holder_parked);
  }
}

// MARK: The reclaimer

// How long the reclaimer's call takes without interruption; the holder's first look is at a random moment of it.
static uint64_t one_call(play_t *play, uint64_t duration_ns) {
  stale_script_t *script = play->script;
  play->held_ns = 0;
  uint64_t begin = now_ns();
  play->wake_ns = begin + 10000 + next_random(&play->seed) % duration_ns;
  atomic_store(&play->calling, true);
  (void)sem_post(&play->holder_go);
  begin = now_ns();
  (void)madvise(script->pages[0], play->span_pages * PAGE, MADV_PAGEOUT);
  uint64_t took = now_ns() - begin;
  atomic_store(&play->calling, false);
  wait_for(&play->holder_parked);
  took = took > play->held_ns ? took - play->held_ns : 0;
  uint64_t next = (duration_ns * 7 + took) / 8;
  return next < 20000 ? 20000 : next > 5000000 ? 5000000 : next;
}

static void set_priority(int priority) {
  struct sched_param parameter = {.sched_priority = priority};
  (void)pthread_setschedparam(pthread_self(), priority == 0 ? SCHED_OTHER : SCHED_FIFO, &parameter);
}

static void *reclaim(void *argument) {
  play_t *play = argument;
  stale_script_t *script = play->script;
  uint64_t duration_ns = 200000;
  while (now_ns() < play->deadline_ns && play->counts->wrong < play->enough) {
    if (!script->prepare(script->context)) {
      play->reason = "the content could not be prepared";
      break;
    }
    play->span_pages = (size_t)(script->pages[script->count - 1] - script->pages[0]) / PAGE + 1;
    if (play->span_pages > SPAN_PAGES_MAX) {
      play->reason = "the pages lie too far apart";
      break;
    }
    memset(play->acted, 0, sizeof play->acted);
    set_priority(STALE_RECLAIMER);
    (void)sem_post(&play->viewer_go);
    (void)ask(play, request_warm, 0);
    duration_ns = one_call(play, duration_ns);
    (void)ask(play, request_park, 0);
    set_priority(0);
    play->counts->calls++;
  }
  atomic_store(&play->stop, true);
  (void)sem_post(&play->holder_go);
  (void)sem_post(&play->viewer_go);
  return NULL;
}

bool stale_run(const stale_stage_t *stage, stale_script_t *script, uint64_t milliseconds, uint64_t enough, uint64_t seed,
               stale_counts_t *counts, const char **reason) {
  memset(counts, 0, sizeof *counts);
  play_t *play = calloc(1, sizeof *play);
  if (play == NULL) {
    *reason = "no memory";
    return false;
  }
  play->script = script, play->counts = counts, play->seed = seed, play->enough = enough;
  uint64_t begin_ns = now_ns();
  play->deadline_ns = begin_ns + milliseconds * 1000000;
  sem_t *semaphores[] = {&play->holder_go, &play->holder_parked, &play->viewer_go};
  for (size_t i = 0; i < 3; i++) (void)sem_init(semaphores[i], 0, 0);
  pthread_t threads[3];
  size_t started = 0;
  int error = stale_thread(&threads[0], stage->cpu_a, STALE_HOLDER, hold, play);
  if (error == 0) started++, error = stale_thread(&threads[1], stage->cpu_b, STALE_VIEWER, view, play);
  if (error == 0) started++, error = stale_thread(&threads[2], stage->cpu_a, 0, reclaim, play);
  if (error == 0) {
    started++;
  } else {
    play->reason = "a thread could not be started";
    atomic_store(&play->stop, true);
    (void)sem_post(&play->holder_go);
    (void)sem_post(&play->viewer_go);
  }
  for (size_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
  counts->took_ns = now_ns() - begin_ns;
  for (size_t i = 0; i < 3; i++) (void)sem_destroy(semaphores[i]);
  *reason = play->reason;
  free(play);
  return *reason == NULL;
}
