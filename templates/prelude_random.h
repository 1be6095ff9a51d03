// Random numbers, each made of a seed, an offset and its position alone: one, lane by lane, or a vector at once. What a
// comparison needs to know of them it knows of their words.

// Random numbers of one seed and offset by Philox4x32-10 (Salmon et al. 2011). That of a position is the upper 24 bits
// of word position mod 4 of the block of {floor(position / 4), offset}, as a multiple of 2^-24 in [0, 1).
struct rj_philox {
    unsigned words[4];

    RJ_DEVICE void compute(long long seed, long long offset, unsigned long long block) {
        unsigned key_low = static_cast<unsigned>(seed);
        unsigned key_high = static_cast<unsigned>(static_cast<unsigned long long>(seed) >> 32);
        words[0] = static_cast<unsigned>(block);
        words[1] = static_cast<unsigned>(block >> 32);
        words[2] = static_cast<unsigned>(offset);
        words[3] = static_cast<unsigned>(static_cast<unsigned long long>(offset) >> 32);
#pragma unroll
        for (int round = 0; round < 10; ++round) {
            const unsigned long long first = rj_wide_product(0xd2511f53u, words[0]);
            const unsigned long long second = rj_wide_product(0xcd9e8d57u, words[2]);
            words[0] = static_cast<unsigned>(second >> 32) ^ words[1] ^ key_low;
            words[1] = static_cast<unsigned>(second);
            words[2] = static_cast<unsigned>(first >> 32) ^ words[3] ^ key_high;
            words[3] = static_cast<unsigned>(first);
            key_low += 0x9e3779b9u;
            key_high += 0xbb67ae85u;
        }
    }
    RJ_DEVICE unsigned word(int k) const {
        const bool odd = (k & 1) != 0;
        return (k & 2) != 0 ? (odd ? words[3] : words[2]) : (odd ? words[1] : words[0]);
    }
};
RJ_DEVICE float rj_fraction(unsigned word) {
    return static_cast<float>(static_cast<int>(word >> 8)) * 5.9604644775390625e-8f;
}
// Which words give a fraction that is at least `limit`, or with `beyond` greater than it: those from a word on, if any.
// A comparison of a row's number with a lane's fraction is one instruction so, where shift, conversion, product and
// comparison were four.
struct rj_fractions {
    unsigned first = 0;
    bool some = false;
    bool is_number;  // the limit

    RJ_DEVICE bool contain(unsigned word) const { return some & (word >= first); }
    RJ_DEVICE bool lack(unsigned word) const { return is_number & !contain(word); }
};
RJ_DEVICE rj_fractions rj_fractions_from(float limit, bool beyond) {
    const float scaled = limit * 16777216.0f;  // a whole number is a fraction itself
    const float least = beyond ? rj_floor(scaled) + 1.0f : -rj_floor(-scaled);
    rj_fractions fractions;
    fractions.some = least <= 16777215.0f;
    if (fractions.some && least > 0.0f) fractions.first = static_cast<unsigned>(rj_to_i32(least)) << 8;
    fractions.is_number = limit == limit;
    return fractions;
}
RJ_DEVICE float rj_uniform(long long seed, long long offset, long long position) {
    rj_philox block;
    block.compute(seed, offset, static_cast<unsigned long long>(position) >> 2);
    return rj_fraction(block.word(static_cast<int>(position & 3)));
}

// Of any positions, lane by lane: a block is kept until another is asked for. (Left to the compiler, clang sees that
// neighbours share it and NVRTC 13 does not.)
struct rj_uniforms {
    rj_philox kept;
    unsigned long long block;
    bool is_first = true;

    RJ_DEVICE float at(long long seed, long long offset, long long position) {
        const unsigned long long wanted = static_cast<unsigned long long>(position) >> 2;
        if (is_first || block != wanted) {
            kept.compute(seed, offset, wanted);
            block = wanted;
            is_first = false;
        }
        return rj_fraction(kept.word(static_cast<int>(position & 3)));
    }
};

// Of positions one after the other, a multiple of four of them, all made at lane 0: where they begin at a block, which
// a row of such vectors does, without a branch for each.
template <int lanes>
struct rj_uniform_run {
    unsigned words[lanes];

    RJ_DEVICE float at(long long seed, long long offset, long long position, int lane) {
        ask(seed, offset, position, lane);
        return rj_fraction(words[lane]);
    }
    RJ_DEVICE void ask(long long seed, long long offset, long long position, int lane) {
        if (lane == 0) make(seed, offset, position);
    }
    RJ_DEVICE void make(long long seed, long long offset, long long position) {
        const unsigned long long first = static_cast<unsigned long long>(position) >> 2;
        const int skipped = static_cast<int>(position & 3);
        rj_philox block;
        if (skipped == 0) {
#pragma unroll
            for (int b = 0; b < lanes / 4; ++b) {
                block.compute(seed, offset, first + b);
#pragma unroll
                for (int k = 0; k < 4; ++k) words[4 * b + k] = block.words[k];
            }
            return;
        }
        block.compute(seed, offset, first);
#pragma unroll
        for (int b = 0; b < lanes / 4; ++b) {
            rj_philox next;
            next.compute(seed, offset, first + b + 1);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                const int place = k + skipped;
                words[4 * b + k] = place < 4 ? block.word(place) : next.word(place - 4);
            }
            block = next;
        }
    }
};
