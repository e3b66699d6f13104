// SPDX-License-Identifier: MIT
// Where elements lie, and what proves that they are still there.
//
//      page 0                          | page 1             | page 2
//      ... [header|w1|w2|payload ......|....................|........] [header|payload] ...
//             |    |  +------------------------------------------^ a word of the payload in page 2 that is not zero
//             |    +-----------------------------^ the same for page 1
//             +-- the witness of page 0: a header is never zero
//
// Up to 1 KiB with its header an element stays within one page and needs no table. The table begins in the header's page. An
// entry is never 0, so a table page that is gone shows in any of its entries, and a page that holds nothing but entries is its
// own witness: so the tables of elements of many MiB need no ordinary memory either.

#include "heap_layout.h"

// Where payloads are aligned to 16 bytes every header lies 8 bytes into its granule, and content may reach 8 bytes into the
// granule that the next header lies in. So a granule costs no more than without; a page costs 8 bytes, and a table may be padded
// by 8.
purgeable__layout_t purgeable__layout_over_pages(const purgeable_heap_t *heap, uint32_t granule, size_t length_bytes) {
  size_t lead = heap->lead_bytes, start = (size_t)granule * PURGEABLE_GRANULE_BYTES + lead;
  size_t first = start >> heap->page_shift;
  purgeable__layout_t layout = {.first_page = (uint32_t)first};
  // The table's size depends on how many pages are touched, and that number on the table's size: a few rounds find both.
  for (;;) {
    size_t table = purgeable__round_up((size_t)layout.more_pages * sizeof(uint16_t), 8 + lead);
    layout.payload_offset = PURGEABLE_HEADER_BYTES + table;
    size_t end = start + layout.payload_offset + length_bytes;
    uint32_t more = (uint32_t)(((end - 1) >> heap->page_shift) - first);
    if (more > layout.more_pages) {
      layout.more_pages = more;
      continue;
    }
    layout.total_bytes = purgeable__round_up(layout.payload_offset + length_bytes, PURGEABLE_GRANULE_BYTES);
    // A page counts as touched if content reaches into it: the next granule must not begin that page.
    size_t next = start - lead + layout.total_bytes;
    if (end > next && (next & (heap->page_bytes - 1)) == 0) layout.total_bytes += PURGEABLE_GRANULE_BYTES;
    return layout;
  }
}

_Atomic uint64_t *purgeable__witness(const purgeable_heap_t *heap, purgeable__spot_t spot, purgeable__layout_t layout,
                                     uint32_t number, uint16_t *entry) {
  assert(number >= 1 && number <= layout.more_pages);
  *entry = purgeable__load_entry_unsettled(&purgeable__table_at(spot)[number - 1]);
  if (*entry == 0 || *entry == WITNESS_ZEROS || (size_t)(*entry - 1) * 8 >= heap->page_bytes) return NULL;
  char *page = purgeable__pages_of(heap, spot) + ((size_t)(layout.first_page + number) << heap->page_shift);
  return (_Atomic uint64_t *)(void *)(page + (size_t)(*entry - 1) * 8);
}
