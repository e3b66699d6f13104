# SPDX-License-Identifier: MIT
# The table of models for `run`: clean|found|lively|stuck MODEL NAME "FLAGS" [FILE 'change of one line'].
# shellcheck shell=bash

# MARK: The word of a region (region_model.c)

clean region "reader, writer, kernel" "-DR -DW -DK -DSTART_OFFERED"
clean region "reader, offerer, kernel" "-DR -DO -DK"
clean region "locker, writer" "-DL -DW"
clean region "locker, offerer, kernel" "-DL -DO -DK"
clean region "on offer: locker, writer, kernel" "-DL -DW -DK -DSTART_OFFERED"
clean region "refiller, reader" "-DF -DR"
clean region "on offer: refiller, reader, kernel" "-DF -DR -DK -DSTART_OFFERED"
clean region "discarded: refiller, locker" "-DF -DL -DSTART_DISCARDED"
clean region "on offer: refiller, locker" "-DF -DL -DSTART_OFFERED"
clean region "discarded: refiller, waiting locker" "-DF -DT -DSTART_DISCARDED"
clean region "discarded: refiller who publishes, waiting locker" "-DP -DT -DSTART_DISCARDED"
clean region "discarded: filler who gives up, waiting locker" "-DX -DT -DSTART_DISCARDED"
clean region "discarded: filler who gives up, reader" "-DX -DR -DSTART_DISCARDED"
clean region "discarded: two elect one filler" "-DE -DE2 -DSTART_DISCARDED"
clean region "refiller, offerer" "-DF -DO"
clean region "discarder, locker" "-DD -DL"
clean region "discarder, reader" "-DD -DR"
clean region "mlocked: refiller, reader" "-DF -DR -DMLOCKED"
clean region "mlocked: discarder, reader" "-DD -DR -DMLOCKED"
lively region "who waits for a fill is woken" "-DF -DT -DSTART_DISCARDED -DSLEEPS"
lively region "who waits for a fill that is published is woken" "-DP -DT -DSTART_DISCARDED -DSLEEPS"
lively region "who waits for a fill that is given up is woken" "-DX -DT -DSTART_DISCARDED -DSLEEPS"
lively region "who waits for a madvise is woken" "-DL -DO -DSLEEPS"
found region "mlocked: bytes cleared by hand, the witness last" "-DD -DR -DMLOCKED -DWITNESS_LAST"
found region "mlocked: bytes cleared by hand without a fence after the witness" "-DD -DR -DMLOCKED -DNO_FENCE_AFTER_WITNESS"
found region "a writing lock without its release fence" "-DR -DW" region.c 's/^  if \(for_writing\) atomic_thread_fence.*$//'
found region "a reader without the fence after its copy" "-DR -DK -DSTART_OFFERED" region_read.c '/Partner: the release fence after a writing lock/{n;d}'
found region "a reader without the fence after its witnesses" "-DR -DF -DK -DSTART_OFFERED" region_read.c '/And the witnesses before the word/{n;d}'
found region "lockers that do not wait for a running madvise" "-DL -DO -DK" region.c 's/^  while \(\(word & WORD_OFFERING\) != 0 .*$//'
found region "lockers that do not rescue" "-DL -DK -DSTART_OFFERED" region.c 's/^  if \(\(word & WORD_ON_OFFER\) != 0\) word = rescue.*$//'
found region "lockers that count beside a fill" "-DF -DL -DSTART_DISCARDED" region.c 's/WORD_WRITER \| WORD_FILLING;/WORD_WRITER;/'
found region "a fill given up in two steps" "-DX -DT -DSTART_DISCARDED" region_fill.c 's/!PURGEABLE_RULE\(abandon_at_once\)/true/'
found region "a claim that does not look whether it is still discarded" "-DE -DE2 -DSTART_DISCARDED" region.c 's/ && PURGEABLE_RULE\(fill_only_discarded\)/ \&\& false/'
found region "a fill that does not raise the version" "-DF -DR" region.c 's/\(purgeable__word_next_fill\(wanted\) . WORD_VERSION_ONE . 1\) . WORD_WRITER/(purgeable__word_next_fill(wanted) + 1) | WORD_WRITER/'
found region "changes of the word that do not release" "-DR -DW" region_word.c '/region->word, seen, wanted/s/acq_rel/acquire/'
found region "looks at the word that do not acquire" "-DR -DW" region_word.c '/word = load_acquire\(region->word/s/acquire/relaxed/'
stuck region "the last unlock of a filler wakes nobody" "-DF -DT -DSTART_DISCARDED -DSLEEPS" region.c '/WORD_WAITERS & ~wanted/d'
stuck region "publish wakes nobody" "-DP -DT -DSTART_DISCARDED -DSLEEPS" region_fill.c '/if \(\(word & WORD_WAITERS\) != 0\) purgeable__wake_all/d'
stuck region "the end of a madvise wakes nobody" "-DL -DO -DSLEEPS" region_word.c '/^  purgeable__wake_all/d'

# MARK: A slab's word (slab_model.c)

clean slab "free, lock, store" "-DF -DL -DA"
clean slab "free, offer, store" "-DF -DO -DA"
clean slab "lock, offer, kernel" "-DL -DO -DK"
clean slab "on offer: lock, kernel" "-DL -DK -DSTART_OFFERED"
found slab "claims that do not look at the count" "-DF -DL -DA -DRULE_claim_from_zero=0"
found slab "pins that look at neither generation nor DYING" "-DF -DL -DA -DRULE_pin_looks=0"
found slab "the living counted down after the last look" "-DF -DL -DA -DRULE_living_first=0"
found slab "an offer that leaves an empty slab" "-DF -DO -DRULE_offer_gives_back=0"
found slab "an offer that gives back whatever lives then" "-DF -DO -DA -DRULE_own_life=0"
found slab "lockers that do not wait for a running madvise" "-DL -DO -DK -DRULE_wait_for_offer=0"
found slab "offers that do not look at the count" "-DL -DO -DK -DRULE_offer_from_zero=0"
found slab "counts down relaxed" "-DF -DL -DA -DCOUNT_DOWN=memory_order_relaxed"
found slab "the living counted down relaxed" "-DF -DL -DA -DLIVING_DOWN=memory_order_relaxed"
found slab "a life begun without release" "-DF -DO -DA -DREBIRTH=memory_order_relaxed"
found slab "the end of an offer relaxed" "-DL -DO -DK -DEND_OFFER=memory_order_relaxed"
found slab "the wait for an offer without acquire" "-DL -DO -DK -DWAIT=memory_order_relaxed"

# MARK: A key's slot (index_model.c)

clean index "replaced; the old place's next lives" "-DREPLACES -DREUSES -DCOMES_BACK"
clean index "replaced: two reads do not go back" "-DREPLACES -DREUSES -DREADS=2"
clean index "grows, then replaced" "-DGROWS -DREPLACES_AFTER"
found index "a slot not looked at again after its generation" "-DREPLACES -DREUSES -DCOMES_BACK -DRULE_slot_again=0"
found index "the old place freed before the slot changes" "-DREPLACES -DREUSES -DCOMES_BACK -DRULE_free_last=0"
found index "a place wiped before its generation rises" "-DREPLACES -DREUSES -DCOMES_BACK -DRULE_generation_first=0"
found index "not found in a table that is left" "-DGROWS -DREPLACES_AFTER -DRULE_is_current=0"
found index "the old table emptied before the new one is published" "-DGROWS -DREPLACES_AFTER -DRULE_publish_first=0"
found index "slots stored without release" "-DREPLACES -DREUSES -DCOMES_BACK -DSLOT_STORE=memory_order_relaxed"
found index "the second look at a slot without acquire" "-DREPLACES -DREUSES -DCOMES_BACK -DSLOT_LOAD_AGAIN=memory_order_relaxed"
found index "the generation loaded without acquire" "-DREPLACES -DREUSES -DCOMES_BACK -DGENERATION_LOAD=memory_order_relaxed"
found index "no acquire fence between copy and checks" "-DREPLACES -DREUSES -DCOMES_BACK -DFENCE_COPY=memory_order_relaxed"
found index "a table published without release" "-DGROWS -DREPLACES_AFTER -DCURRENT_STORE=memory_order_relaxed"
found index "the present table looked up without acquire" "-DGROWS -DREPLACES_AFTER -DCURRENT_LOAD=memory_order_relaxed"
found index "the old table emptied without release" "-DGROWS -DREPLACES_AFTER -DCLEAR_STORE=memory_order_relaxed"

# MARK: Entries that move to other shards (shards_model.c)

clean shards "mover, writer, reader" "-DREADS"
clean shards "there and back, writer, reader" "-DREADS -DCLOSES"
clean shards "mover, writer that stores and removes" "-DREMOVES"
clean shards "there and back, writer that stores and removes" "-DREMOVES -DCLOSES"
found shards "readers that miss do not look at the mask again" "-DREADS -DRULE_look_again=0"
found shards "readers look in one shard while entries move" "-DREADS -DRULE_looks_twice=0"
found shards "readers look first where entries go to" "-DREADS -DRULE_source_first=0"
found shards "entries move before the mask says so" "-DREADS -DRULE_mask_first=0"
found shards "writers leave the old value in the founder" "-DREMOVES -DRULE_bring_home=0"
found shards "the old slot emptied before the new one is inserted" "-DREADS -DRULE_new_first=0"
found shards "writers do not look at the mask again" "-DREADS -DRULE_writer_again=0"
found shards "entries that move under no mutex" "-DREADS -DRULE_under_mutexes=0"
found shards "the mask published without release" "-DREADS -DMASK_STORE=memory_order_relaxed"
found shards "the mask loaded without acquire" "-DREADS -DMASK_LOAD=memory_order_relaxed"
found shards "the old slot emptied without release" "-DREADS -DEMPTY_STORE=memory_order_relaxed"
found shards "slots loaded without acquire" "-DREADS -DSLOT_LOAD=memory_order_relaxed"

# MARK: Pairs of pages (pages_model.c)

clean pages "two take and return" ""
clean pages "a free block, one that becomes empty, two takers" "-DSPARE"
clean pages "the same with one taker, where the kernel refuses to unmap" "-DSPARE -DREFUSES -DONE"
found pages "a pair taken without acquire" "" pages.c 's/free_one, memory_order_acquire,/free_one, memory_order_relaxed,/'
found pages "a pair returned before it is wiped" "" pages.c '/if \(purgeable__wipe\(pair, bytes\)/d'
found pages "a pair returned without release" "" pages.c '/fetch_and_explicit\(&block->used/s/release/relaxed/'
found pages "the list of blocks walked without acquire" "" pages.c '/^void .purgeable__pair_take/,/^}/s/load_acquire\(&newest/load_relaxed(\&newest/'
