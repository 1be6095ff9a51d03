// What the emitted source of a GPU kernel is made of, and what a vendor's half of the prelude supplies: RJ_WARP_SIZE,
// these files in this order, each of which needs only those before it, and the kernel.
//
//   prelude_cuda.h, prelude_hip.h   a vendor's half
//   prelude_exp.h                   an exponential that is stored as it is, and log(1 + a) of a fraction
//   prelude_math.h                  functions for vendors without a device library
//   prelude_trig.h                  sine, cosine and tanh
//   prelude_narrow.h                functions that are less exact where a rounding hides it
//   prelude_weights.h               exponentials that weigh terms of sums, and their logarithms
//   prelude_divide.h                division by what is known, and reciprocal roots
//   prelude.h                       this file, which is a comment
//   prelude_elements.h              storage types, vectors of them, two in a word
//   prelude_memory.h                global memory, and rows that begin anywhere
//   prelude_integers.h              what integers lack, and quotients of row indices
//   prelude_random.h                random numbers by their position
//   prelude_coordinates.h           coordinates of data, searches, and sums over positions
//   prelude_folds.h                 reductions: one value folded by one operation
//   prelude_sums.h                  running sums
//   prelude_online.h                several numbers that one pass carries together
//   prelude_greatest.h              the greatest elements and their places
//   prelude_all_reduce.h            where the threads of a row meet
//   prelude_cluster.h               where the blocks of a cluster do, on targets that have clusters
//   prelude_product.h               matrix products, for a kernel that makes one
//   prelude_order.h                 the order of ids by a digit, for a kernel that makes a pass of it
//
// Only a vendor's half and prelude_product.h name intrinsics. A vendor's half, or the tests' SIMT shim, supplies
//
//   RJ_DEVICE, RJ_KERNEL(threads[, blocks_per_sm]), RJ_RESTRICT
//   RJ_ROLLED                                     before a loop that must not be unrolled whole
//   RJ_GROUP(vectors)                             vectors that a serial loop loads at once, or a divisor of them
//   rj_thread, rj_block, rj_grid(block_threads)   indices along x, and the number of blocks
//   rj_barrier                                    of the block, ordering shared memory
//   rj_shuffle_xor_word<mask>(word)               lane's word from lane ^ mask; every lane of the warp takes part
//   rj_shuffle_from_word<lanes>(word, lane)       likewise from that lane of each group of so many neighbours
//   rj_lanes, rj_ballot(condition)                a warp's lanes as bits: where it holds; every lane takes part
//   rj_first_of(lanes), rj_count_of(lanes)        the first of some lanes, and how many they are
//   rj_is_less(a, b)                              of 64 bits, one comparison for whatever is chosen by it
//   rj_meet_warp()                                every lane of the warp takes part, ordering shared memory
//   rj_here()                                     lanes that are here with this one: all of the warp, some, or itself
//   rj_ballot_of(lanes, condition)                of lanes that are here together, those where it holds
//   rj_meet_lanes(lanes)                          likewise, ordering their shared memory
//   rj_equals_before(lanes, word)                 how many of them before this one have the same word
//   rj_shared_load<T>, rj_shared_store<T>         dynamic shared memory by byte offset, aligned to T
//   rj_copy_ahead<bytes>(offset, from)            from memory into this thread's own part of shared memory, in its time
//   rj_copy_behind(offset, from, vec)             likewise to where the thread has read the vector
//   rj_copies_issued, rj_wait_for_copies<n>       what was issued up to here is a turn; until all but the last n turns
//                                                 of this thread have come. Only where a schedule has stages or takes
//                                                 rows as they follow each other (CUDA)
//   rj_memory<bytes>::load, load_readonly, store  one global access
//   rj_bits, rj_float                             an f32's bits and back
//   rj_wide_product(a, b)                         the 64 bits of two words' product
//   rj_opaque(word)                               the word, of which the compiler may know nothing more
//   rj_address(pointer)                           the pointer of a row that is only read, not to be put together again
//   rj_address_here(pointer)                      likewise, nor to be read from in front of this place
//   rj_zero()                                     0, of which the compiler does not know that it is
//   rj_known_here(word)                           likewise, nor compute with it anywhere but behind this place
//   rj_join_halves(lower, upper)                  the lower half of one word and the upper half of another
//   rj_pack_f16, rj_f16_value                     to and from f16, to nearest even
//   rj_pack_e4m3, rj_pack_e5m2                    two f32 within the format's range to packed e4m3 or e5m2, likewise;
//                                                 only with RJ_PACKS_F8
//   rj_to_i32, rj_to_i64                          f32 toward zero, saturating, NaN to 0
//   rj_nearest                                    f32 to the nearest i32, half to even, likewise
//   rj_pack_i8(a, b, c, d)                        four i32 to packed i8, saturating; only with RJ_PACKS_I8
//   rj_chosen(condition, a, b)                    one of two addresses, without a branch
//   rj_either(condition, a, b)                    one of two f32, likewise
//   rj_max, rj_min                                NaN if either is
//   rj_max_bf16x2, rj_min_f16x2, …                likewise of two packed elements; only with RJ_FOLDS_PAIRS
//   rj_add_bf16x2, rj_sub_bf16x2, rj_mul_bf16x2   of two packed elements, each rounded once; where targets.def says so
//   rj_add_f16x2, rj_sub_f16x2, rj_mul_f16x2      likewise, everywhere
//   rj_abs, rj_floor, rj_round, rj_fma, rj_div    correctly rounded; rj_round: to a whole number, half to even
//   rj_exp2_fast                                  2^a, within 2^-22 of it; may flush below 2^-126
//   rj_exp2_bias                                  what it is off by in the mean, of 1
//   rj_reciprocal_fast                            1 / a, within a unit in the last place; may flush denormals to 0
//   rj_rsqrt_fast                                 a^-1/2, within two units in the last place; may take denormals for 0
//   rj_sqrt_fast                                  a^1/2, within a unit in the last place; likewise
//   rj_log2_fast                                  within 2^-22 from 1/2 to 2, elsewhere within 2^-22 of it; likewise
//
// and, unless prelude_math.h follows it,
//
//   rj_pack_bf16                                  two f32 to packed bf16, to nearest even
//   rj_sqrt, rj_rsqrt                             correctly rounded
//   rj_exp, rj_log, rj_log1p, rj_erf              within 2 units in the last place
//   rj_exp_narrow                                 e^a, within 2^-17 of it or 2^-149: for what is rounded to bf16 or f16
