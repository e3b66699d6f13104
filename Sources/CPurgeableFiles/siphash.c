// SPDX-License-Identifier: MIT
// SipHash-1-3 (Aumasson and Bernstein, "SipHash: a fast short-input PRF"): a hash that who chooses the bytes cannot steer.

#include "purgeable_files.h"

#include <string.h>

static uint64_t rotated(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static void mix(uint64_t v[static 4]) {
  v[0] += v[1];
  v[2] += v[3];
  v[1] = rotated(v[1], 13) ^ v[0];
  v[3] = rotated(v[3], 16) ^ v[2];
  v[0] = rotated(v[0], 32);
  v[2] += v[1];
  v[0] += v[3];
  v[1] = rotated(v[1], 17) ^ v[2];
  v[3] = rotated(v[3], 21) ^ v[0];
  v[2] = rotated(v[2], 32);
}

static uint64_t little_endian(uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  word = __builtin_bswap64(word);
#endif
  return word;
}

uint64_t purgeable__siphash(uint64_t low, uint64_t high, const void *bytes, size_t byte_count) {
  uint64_t v[4] = {low ^ 0x736F6D6570736575, high ^ 0x646F72616E646F6D, low ^ 0x6C7967656E657261, high ^ 0x7465646279746573};
  const char *next = bytes;
  for (size_t left = byte_count; left >= 8; left -= 8, next += 8) {
    uint64_t word;
    memcpy(&word, next, 8);
    word = little_endian(word);
    v[3] ^= word;
    mix(v);
    v[0] ^= word;
  }
  uint64_t last = 0;
  if (byte_count % 8) memcpy(&last, next, byte_count % 8);
  last = little_endian(last) | (uint64_t)byte_count << 56;
  v[3] ^= last;
  mix(v);
  v[0] ^= last;
  v[2] ^= 0xFF;
  for (int i = 0; i < 3; i++) mix(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}
