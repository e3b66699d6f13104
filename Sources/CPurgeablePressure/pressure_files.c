// SPDX-License-Identifier: MIT
// Reads the kernel's small text files into a buffer on the stack, and the numbers in them.

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "purgeable_pressure_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

// All files of this kind are far shorter, and so are paths in hierarchies of groups.
enum { FILE_BYTES = 16384, PATH_BYTES = 4352 };

// MARK: Numbers

static bool is_space(char letter) { return letter == ' ' || (letter >= '\t' && letter <= '\r'); }

// The end of the word at `at`.
static size_t word_end(const char *text, size_t at, size_t end) {
  while (at < end && !is_space(text[at])) at++;
  return at;
}

static size_t word_begin(const char *text, size_t at, size_t end) {
  while (at < end && is_space(text[at])) at++;
  return at;
}

static bool decimal(const char *word, size_t length, uint64_t *number) {
  uint64_t sum = 0;
  for (size_t i = 0; i < length; i++) {
    if (word[i] < '0' || word[i] > '9') return false;
    if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, (uint64_t)(word[i] - '0'), &sum)) return false;
  }
  *number = sum;
  return length > 0;
}

uint64_t purgeable__first_number(const char *text, size_t length_bytes) {
  size_t begin = word_begin(text, 0, length_bytes);
  uint64_t number;
  return decimal(text + begin, word_end(text, begin, length_bytes) - begin, &number) ? number : PURGEABLE__NO_NUMBER;
}

// The number on the rest of a key's line.
static bool number_in(const char *line, size_t length, uint64_t *number) {
  size_t begin = word_begin(line, 0, length);
  size_t end = word_end(line, begin, length);
  if (!decimal(line + begin, end - begin, number)) return false;
  begin = word_begin(line, end, length);
  end = word_end(line, begin, length);
  if (end - begin != 2 || memcmp(line + begin, "kB", 2) != 0) return true;
  *number = *number > UINT64_MAX / 1024 ? UINT64_MAX : *number * 1024;
  return true;
}

bool purgeable__find_number(const char *key, const char *text, size_t length_bytes, uint64_t *number) {
  size_t key_length = strlen(key);
  for (size_t start = 0; start < length_bytes;) {
    const char *newline = memchr(text + start, '\n', length_bytes - start);
    size_t end = newline == NULL ? length_bytes : (size_t)(newline - text);
    size_t rest = start + key_length;
    if (rest < end && memcmp(text + start, key, key_length) == 0 && strchr(" \t:", text[rest]) != NULL) {
      return number_in(text + rest + 1, end - rest - 1, number);
    }
    start = end + 1;
  }
  return false;
}

static uint64_t number_after(const char *key, const char *text, size_t length) {
  uint64_t number;
  return purgeable__find_number(key, text, length, &number) ? number : PURGEABLE__NO_NUMBER;
}

// MARK: Files

static int open_file(const char *directory, const char *name) {
  char path[PATH_BYTES];
  size_t length = strlen(directory);
  while (length > 0 && directory[length - 1] == '/') length--;
  int printed = snprintf(path, sizeof path, "%.*s/%s", (int)length, directory, name);
  if (printed < 0 || (size_t)printed >= sizeof path) return -1;
  return open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
}

// Up to `capacity` bytes of what is open, from the beginning. -1: it cannot be read.
static ssize_t read_all(int file, char *buffer, size_t capacity) {
  size_t length = 0;
  while (length < capacity) {
    ssize_t got = read(file, buffer + length, capacity - length);
    if (got == 0) break;
    if (got < 0 && errno != EINTR) return -1;
    if (got > 0) length += (size_t)got;
  }
  return (ssize_t)length;
}

// -1: it cannot be read.
static ssize_t read_file(const char *directory, const char *name, char *buffer, size_t capacity) {
  int file = open_file(directory, name);
  if (file < 0) return -1;
  ssize_t length = read_all(file, buffer, capacity);
  (void)close(file);
  return length;
}

uint64_t purgeable__file_number(const char *directory, const char *name) {
  char text[256];
  ssize_t length = read_file(directory, name, text, sizeof text);
  return length < 0 ? PURGEABLE__NO_NUMBER : purgeable__first_number(text, (size_t)length);
}

int32_t purgeable__file_says(const char *directory, const char *name, const char *text, size_t length_bytes) {
  int file = open_file(directory, name);
  if (file < 0) return -1;
  char buffer[4096];
  size_t at = 0;
  int32_t answer = 1;
  while (answer == 1) {
    ssize_t got = read(file, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) answer = -1;
    if (got <= 0) break;
    if ((size_t)got > length_bytes - at || memcmp(buffer, text + at, (size_t)got) != 0) answer = 0;
    at += (size_t)got;
  }
  (void)close(file);
  return answer == 1 && at != length_bytes ? 0 : answer;
}

// MARK: The machine

void purgeable__parse_machine_memory(const char *text, size_t length_bytes, purgeable__machine_memory_t *memory) {
  memory->total = number_after("MemTotal", text, length_bytes);
  memory->available = number_after("MemAvailable", text, length_bytes);
  memory->free = number_after("MemFree", text, length_bytes);
  memory->swap_total = number_after("SwapTotal", text, length_bytes);
  memory->swap_free = number_after("SwapFree", text, length_bytes);
  memory->commit_limit = number_after("CommitLimit", text, length_bytes);
  memory->committed = number_after("Committed_AS", text, length_bytes);
}

bool purgeable__read_machine_memory(const char *root, purgeable__machine_memory_t *memory) {
  char text[FILE_BYTES];
  ssize_t length = read_file(root, "proc/meminfo", text, sizeof text);
  if (length < 0) return false;
  purgeable__parse_machine_memory(text, (size_t)length, memory);
  return true;
}

// MARK: Groups

static uint64_t count_after(const char *key, const char *text, size_t length) {
  uint64_t number = number_after(key, text, length);
  return number == PURGEABLE__NO_NUMBER ? 0 : number;
}

void purgeable__parse_group_events(const char *text, size_t length_bytes, purgeable__group_events_t *events) {
  events->high = count_after("high", text, length_bytes);
  events->max = count_after("max", text, length_bytes);
  events->oom = count_after("oom", text, length_bytes);
  events->oom_kill = count_after("oom_kill", text, length_bytes);
}

bool purgeable__read_group_events(int32_t descriptor, purgeable__group_events_t *events) {
  char text[1024];
  ssize_t length = pread(descriptor, text, sizeof text, 0);
  if (length < 0) return false;
  purgeable__parse_group_events(text, (size_t)length, events);
  return true;
}

// MARK: Descriptors

uint64_t purgeable__eventfd_number(int32_t descriptor) {
  char name[32], text[512];
  (void)snprintf(name, sizeof name, "%d", (int)descriptor);
  ssize_t length = read_file("/proc/self/fdinfo", name, text, sizeof text);
  return length < 0 ? PURGEABLE__NO_NUMBER : number_after("eventfd-id", text, (size_t)length);
}

void purgeable__return_free_memory(void) {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}
