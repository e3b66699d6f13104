// SPDX-License-Identifier: MIT
// The server of previews in C, on the slab heap: previews are elements on purgeable pages, what names them is ordinary memory.
//
//   preview-server-c FOLDER SOCKET SAVED        as ../../preview-server; one thread, which also does the upkeep
#define _GNU_SOURCE  // ppoll
#include <err.h>
#include <fcntl.h>
#include <poll.h>
#include <purgeable.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { SIDE = 256, HEAD_BYTES = 15, PREVIEW_BYTES = HEAD_BYTES + SIDE * SIDE };
enum { BUCKETS = 1 << 16, NAME_BYTES = 256, DAY_S = 86400 };

// A changed file has another state.
typedef struct { char name[NAME_BYTES]; uint64_t state[4], sum; int64_t used; } facts_t;
typedef struct preview { struct preview *next; purgeable_reference_t reference; facts_t facts; } preview_t;

static purgeable_heap_t *heap;
static preview_t *buckets[BUCKETS];
static size_t count, hits, misses;
static volatile sig_atomic_t ends;

static void end(int signal) { ends = signal; }

static uint64_t hash(const char *bytes, size_t length) {  // FNV-1a
  uint64_t hash = 0xcbf29ce484222325;
  for (size_t i = 0; i < length; i++) hash = (hash ^ (unsigned char)bytes[i]) * 0x100000001b3;
  return hash;
}

static preview_t **find(const char *name) {
  preview_t **slot = &buckets[hash(name, strlen(name)) % BUCKETS];
  while (*slot && strcmp((*slot)->facts.name, name)) slot = &(*slot)->next;
  return slot;
}

static void drop(preview_t **slot) {
  preview_t *preview = *slot;
  purgeable_heap_free(heap, preview->reference);
  *slot = preview->next;
  free(preview), count--;
}

// Where there is memory for it.
static void keep(const facts_t *facts, const char *bytes) {
  preview_t **slot = find(facts->name), *preview = calloc(1, sizeof *preview);
  void *place;
  if (!preview || purgeable_heap_allocate(heap, PREVIEW_BYTES, &preview->reference, &place)) return free(preview);
  memcpy(place, bytes, PREVIEW_BYTES);
  if (purgeable_heap_commit(heap, preview->reference)) abort();
  preview->facts = *facts;
  preview->facts.sum = hash(bytes, PREVIEW_BYTES);
  *slot = preview, count++;
}

// False where the kernel has taken it.
static bool copy(const preview_t *preview, char *bytes) {
  size_t length;
  return purgeable_heap_read(heap, preview->reference, bytes, PREVIEW_BYTES, &length) == purgeable_outcome_intact;
}

// Once a second: what is idle goes on offer, and previews go that nobody has wanted for a day, or that are found to be taken.
static void tend(void) {
  purgeable_upkeep_result_t found;
  bool lost = !purgeable_upkeep(&found) && found.discarded_bytes;
  for (int i = 0; i < BUCKETS; i++)
    for (preview_t **slot = &buckets[i], *p; (p = *slot);)
      if (p->facts.used < time(NULL) - DAY_S || (lost && purgeable_heap_check(heap, p->reference) == purgeable_outcome_discarded))
        drop(slot);
      else slot = &p->next;
}

// Each point is the mean of its share of the bytes.
static bool render(const char *path, size_t size, char *bytes) {
  int file = open(path, O_RDONLY | O_CLOEXEC);
  unsigned char *all = malloc(size + 1);
  bool is_read = all && file >= 0 && read(file, all, size) == (ssize_t)size;
  memcpy(bytes, "P5 256 256 255\n", HEAD_BYTES);
  for (size_t point = 0; is_read && point < SIDE * SIDE; point++) {
    size_t start = size * point / (SIDE * SIDE), end = size * (point + 1) / (SIDE * SIDE), sum = 0;
    for (size_t i = start; i < end; i++) sum += all[i];
    bytes[HEAD_BYTES + point] = (char)(end > start ? sum / (end - start) : 0);
  }
  posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);  // read once: its pages are worth less than previews
  free(all), close(file);
  return is_read;
}

static bool preview(const char *folder, const char *name, char *bytes) {
  char path[8192];
  struct stat s;
  if (name[0] != '/' || strstr(name, "..") || snprintf(path, sizeof path, "%s%s", folder, name) < 0) return false;
  if (stat(path, &s) || !S_ISREG(s.st_mode) || s.st_size > 64 << 20 || strlen(name) >= NAME_BYTES) return false;
  facts_t facts = {.state = {s.st_ino, (uint64_t)s.st_size, (uint64_t)s.st_mtim.tv_sec, (uint64_t)s.st_mtim.tv_nsec}};
  preview_t **slot = find(strcpy(facts.name, name));
  facts.used = time(NULL);
  if (*slot && !memcmp((*slot)->facts.state, facts.state, sizeof facts.state) && copy(*slot, bytes))
    return (*slot)->facts.used = facts.used, ++hits;
  if (*slot) drop(slot);
  if (!render(path, (size_t)s.st_size, bytes)) return false;
  return keep(&facts, bytes), ++misses;
}

static void serve(const char *folder, int client) {
  static char name[8192], body[PREVIEW_BYTES];
  char request[sizeof name] = "";
  setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){1, 0}, sizeof(struct timeval));
  setsockopt(client, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){1, 0}, sizeof(struct timeval));
  if (read(client, request, sizeof request - 1) <= 0) return;
  int length = 0, has_name = sscanf(request, "GET %s", name) == 1;
  purgeable_heap_statistics_t now;
  if (has_name && !strcmp(name, "/stats") && !purgeable_heap_statistics(heap, &now))
    length = snprintf(body, sizeof body, "previews %zu bytes %zu resident %zu\nhits %zu misses %zu\n", count,
                      (size_t)now.memory.held_bytes, (size_t)now.memory.resident_bytes, hits, misses);
  else if (has_name && preview(folder, name, body)) length = PREVIEW_BYTES;
  const char *status = length ? "200 OK" : has_name ? "404 Not Found" : "400 Bad Request";
  dprintf(client, "HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", status, length);
  if (write(client, body, (size_t)length) < length) shutdown(client, SHUT_RDWR);
}

// A new file takes the old one's place when it is whole.
static void save(const char *path) {
  static char bytes[PREVIEW_BYTES], temporary[4096];
  FILE *file = snprintf(temporary, sizeof temporary, "%s.new", path) > 0 ? fopen(temporary, "w") : NULL;
  if (!file) err(1, "%s", temporary);
  for (int i = 0; i < BUCKETS; i++)
    for (preview_t *p = buckets[i]; p; p = p->next)
      if (copy(p, bytes)) fwrite(&p->facts, sizeof p->facts, 1, file), fwrite(bytes, PREVIEW_BYTES, 1, file);
  if (ferror(file) || fflush(file) || fsync(fileno(file)) || fclose(file) || rename(temporary, path))
    warn("%s", path), unlink(temporary), exit(1);
}

static void restore(const char *path) {
  static char bytes[PREVIEW_BYTES];
  facts_t facts;
  FILE *file = fopen(path, "r");
  while (file && fread(&facts, sizeof facts, 1, file) && fread(bytes, PREVIEW_BYTES, 1, file))
    if (!facts.name[NAME_BYTES - 1] && hash(bytes, PREVIEW_BYTES) == facts.sum && !*find(facts.name)) keep(&facts, bytes);
  if (file) posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED), fclose(file);
}

int main(int words, char **word) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  if (words != 4 || strlen(word[2]) >= sizeof address.sun_path) return puts("usage: preview-server-c FOLDER SOCKET SAVED"), 2;
  sigset_t before, blocked;
  sigfillset(&blocked), sigprocmask(SIG_BLOCK, &blocked, &before);
  signal(SIGTERM, end), signal(SIGINT, end), signal(SIGPIPE, SIG_IGN), umask(077);
  if (purgeable_heap_create(NULL, &heap)) err(1, "heap");
  restore(word[3]);
  struct pollfd listener = {socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), POLLIN, 0};
  struct stat s;
  bool is_socket = !lstat(strcpy(address.sun_path, word[2]), &s) && S_ISSOCK(s.st_mode);
  if (is_socket && connect(listener.fd, (struct sockaddr *)&address, sizeof address)) unlink(word[2]);  // nobody answers there
  if (bind(listener.fd, (struct sockaddr *)&address, sizeof address) || listen(listener.fd, 128)) err(1, "%s", word[2]);
  for (time_t tended = 0; !ends;) {
    int client = ppoll(&listener, 1, &(struct timespec){1, 0}, &before) == 1 ? accept(listener.fd, NULL, NULL) : -1;
    if (client >= 0) serve(word[1], client), close(client);
    if (!sigpending(&blocked)) ends = sigismember(&blocked, SIGTERM) || sigismember(&blocked, SIGINT) || ends;
    if (time(NULL) != tended) tend(), tended = time(NULL);
  }
  save(word[3]);
}
