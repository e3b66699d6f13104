// SPDX-License-Identifier: MIT
// CRC-32C: polynomial 0x1EDC6F41, bits reflected, inverted before and after. RFC 3720, appendix B.4, has test vectors.

#include "purgeable_files.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

// MARK: By tables

// tables[k][b]: what byte b adds, k bytes before the end of the eight that are taken in one step.
static uint32_t tables[8][256];
static pthread_once_t tables_are_made = PTHREAD_ONCE_INIT;

static void make_tables(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t sum = byte;
    for (int bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ (0x82F63B78u & (0u - (sum & 1u)));
    tables[0][byte] = sum;
  }
  for (uint32_t byte = 0; byte < 256; byte++) {
    for (int k = 1; k < 8; k++) tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xFF];
  }
}

uint32_t purgeable__crc32c_by_tables(uint32_t sum, const void *bytes, size_t byte_count) {
  (void)pthread_once(&tables_are_made, make_tables);
  const uint8_t *at = bytes;
  sum = ~sum;
  for (; byte_count >= 8; byte_count -= 8, at += 8) {
    uint32_t low = sum ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
    sum = tables[7][low & 0xFF] ^ tables[6][(low >> 8) & 0xFF] ^ tables[5][(low >> 16) & 0xFF] ^ tables[4][low >> 24] ^
          tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^ tables[0][at[7]];
  }
  for (; byte_count > 0; byte_count--, at++) sum = (sum >> 8) ^ tables[0][(sum ^ *at) & 0xFF];
  return ~sum;
}

// MARK: By the processor's instruction

#if defined(__x86_64__)

static bool has_instruction(void) { return __builtin_cpu_supports("sse4.2"); }

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t sum, const void *bytes, size_t byte_count) {
  const uint8_t *at = bytes;
  uint64_t wide = (uint32_t)~sum;
  for (; byte_count >= 8; byte_count -= 8, at += 8) {
    uint64_t eight;
    memcpy(&eight, at, 8);
    wide = __builtin_ia32_crc32di(wide, eight);
  }
  uint32_t narrow = (uint32_t)wide;
  for (; byte_count > 0; byte_count--, at++) narrow = __builtin_ia32_crc32qi(narrow, *at);
  return ~narrow;
}

#elif defined(__aarch64__) && defined(__AARCH64EL__) && (defined(__clang__) || __GNUC__ >= 9)

static bool has_instruction(void) { return (getauxval(AT_HWCAP) & (1UL << 7)) != 0; }

#if defined(__clang__)
#define WITH_CRC __attribute__((target("crc")))
#else
#define WITH_CRC __attribute__((target("+crc")))
#endif

WITH_CRC static uint32_t by_instruction(uint32_t sum, const void *bytes, size_t byte_count) {
  const uint8_t *at = bytes;
  sum = ~sum;
  for (; byte_count >= 8; byte_count -= 8, at += 8) {
    uint64_t eight;
    memcpy(&eight, at, 8);
    __asm__("crc32cx %w0, %w0, %x1" : "+r"(sum) : "r"(eight));
  }
  for (; byte_count > 0; byte_count--, at++) {
    uint32_t one = *at;
    __asm__("crc32cb %w0, %w0, %w1" : "+r"(sum) : "r"(one));
  }
  return ~sum;
}

#else

static bool has_instruction(void) { return false; }
static uint32_t by_instruction(uint32_t sum, const void *bytes, size_t byte_count) {
  return purgeable__crc32c_by_tables(sum, bytes, byte_count);
}

#endif

uint32_t purgeable__crc32c(uint32_t sum, const void *bytes, size_t byte_count) {
  return has_instruction() ? by_instruction(sum, bytes, byte_count) : purgeable__crc32c_by_tables(sum, bytes, byte_count);
}
