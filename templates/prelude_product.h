// Matrix products whose results are computed on where they are made (sm_90a): result[m, n] = Σ_k left[m, k]·right[n, k]
// of bf16 or f16, summed in f32 by the instructions of a warpgroup, rounded, and left as rows of a tile in shared
// memory. Follows prelude_cuda.h.
//
// A block's 384 threads have three parts. One thread copies tiles of both operands into shared memory, ahead of the
// others; eight warps multiply, half of a tile's rows each four; the three warps beside the copying one have the rows
// (rj_product_thread), half a tile at a time, while the next tile is multiplied. Two blocks are a cluster, which has
// two tiles side by side along the rows, so that each block copies half of what both need of `right` to both.
//
// H100, of 2048 x 151936 x 2048 bf16 with an exponential of each element stored: 1.74 to 1.91 ms, where cuBLASLt takes
// 1.90 to 1.96 for the product alone; of 16384 x 1792 x 2048 0.183 to 0.189 and 0.167 to 0.177.

// A CUtensorMap, made by the driver.
struct alignas(64) rj_tensor_map {
    unsigned long long words[16];
};
#define RJ_TENSOR_MAP const __grid_constant__ rj_tensor_map

constexpr int rj_tile_rows = 128;
constexpr int rj_tile_columns = 256;
constexpr int rj_tile_depth = 64;  // of what is copied at once: rows of 128 bytes, as the swizzle has them
constexpr int rj_half_rows = rj_tile_rows / 2;
constexpr int rj_tile_pitch = rj_tile_columns + 8;  // elements: eight rows at a column are in different banks
constexpr int rj_product_stages = 3;
constexpr int rj_product_row_threads = 96;

// The thread among those that have the rows; below 0 for the copying warp.
RJ_DEVICE int rj_product_thread() { return rj_thread() - RJ_WARP_SIZE; }

RJ_DEVICE void rj_counter_open(unsigned counter, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(counter), "r"(arrivals) : "memory");
}
RJ_DEVICE void rj_counter_expect(unsigned counter, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(counter), "r"(bytes) : "memory");
}
// Neither this nor the next orders more than its own block: at a cluster's scope each made the first-level cache forget
// all, or waited for all that was stored, a third of a product's time.
RJ_DEVICE void rj_counter_wait(unsigned counter, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred ended;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n"
        "}" ::"r"(counter),
        "r"(parity)
        : "memory");
}
RJ_DEVICE void rj_counter_arrive(unsigned counter) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(counter) : "memory");
}
RJ_DEVICE void rj_counter_arrive_in(unsigned counter, int block) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(counter),
        "r"(block)
        : "memory");
}

// A box of a matrix's elements, columns innermost, to this block or to both; what lies outside the matrix is zero.
RJ_DEVICE void rj_copy_box(unsigned to, const rj_tensor_map& from, int column, int row, unsigned counter) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(&from), "r"(counter), "r"(column), "r"(row)
        : "memory");
}
RJ_DEVICE void rj_copy_box_to_both(unsigned to, const rj_tensor_map& from, int column, int row, unsigned counter) {
    constexpr unsigned short kBoth = 3;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
        "[%1, "
        "{%3, %4}], [%2], %5;" ::"r"(to),
        "l"(&from), "r"(counter), "r"(column), "r"(row), "h"(kBoth)
        : "memory");
}

// Rows of 128 bytes whose 16-byte parts are swizzled, 1024 bytes from eight rows to the next.
RJ_DEVICE unsigned long long rj_operand(unsigned address) {
    constexpr unsigned long long kSwizzled128 = 1ull << 62;
    constexpr unsigned long long kEightRows = 1024 >> 4;
    return (address & 0x3ffffu) >> 4 | 1ull << 16 | kEightRows << 32 | kSwizzled128;
}

#define RJ_8(n)                                                                                                   \
    "+f"(sums[n]), "+f"(sums[n + 1]), "+f"(sums[n + 2]), "+f"(sums[n + 3]), "+f"(sums[n + 4]), "+f"(sums[n + 5]), \
        "+f"(sums[n + 6]), "+f"(sums[n + 7])
#define RJ_64(n) \
    RJ_8(n), RJ_8(n + 8), RJ_8(n + 16), RJ_8(n + 24), RJ_8(n + 32), RJ_8(n + 40), RJ_8(n + 48), RJ_8(n + 56)
#define RJ_MULTIPLY(type)                                                                                       \
    asm volatile(                                                                                               \
        "{\n"                                                                                                   \
        ".reg .pred adds;\n"                                                                                    \
        "setp.ne.b32 adds, %130, 0;\n"                                                                          \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type                                            \
        " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21," \
        " %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41,"  \
        " %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61,"  \
        " %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81,"  \
        " %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100,"      \
        " %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116,"      \
        " %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, adds, 1, 1, 0, 0;\n"   \
        "}"                                                                                                     \
        : RJ_64(0), RJ_64(64)                                                                                   \
        : "l"(left), "l"(right), "r"(adds))

// 64 rows by 256 columns of sums over 16 positions; a thread has of row (thread / 32 · 16 + thread % 32 / 4), and of
// the eighth behind it, two columns in each eight.
template <class T>
RJ_DEVICE void rj_multiply(float (&sums)[128], unsigned long long left, unsigned long long right, int adds);
template <>
RJ_DEVICE void rj_multiply<rj_bf16>(float (&sums)[128], unsigned long long left, unsigned long long right, int adds) {
    RJ_MULTIPLY("bf16");
}
template <>
RJ_DEVICE void rj_multiply<rj_f16>(float (&sums)[128], unsigned long long left, unsigned long long right, int adds) {
    RJ_MULTIPLY("f16");
}
#undef RJ_MULTIPLY
#undef RJ_64
#undef RJ_8

template <int kLater>
RJ_DEVICE void rj_wait_for_sums() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLater) : "memory");
}

RJ_DEVICE unsigned rj_pack_pair(rj_bf16, float low, float high) { return rj_pack_bf16(low, high); }
RJ_DEVICE unsigned rj_pack_pair(rj_f16, float low, float high) { return rj_pack_f16(low, high); }

// Half a tile: `row` is its first of the result, `tile_column` the tile's place along the columns.
struct rj_half_tile {
    int pair;
    int half;
    int parity;
    long long row;
    long long tile_column;
};

template <class T>
struct rj_product {
    static constexpr int kLeftBytes = rj_tile_rows * rj_tile_depth * 2;
    static constexpr int kRightBytes = rj_tile_columns * rj_tile_depth * 2;
    static constexpr int kLeft = 0;
    static constexpr int kRight = kLeft + rj_product_stages * kLeftBytes;
    static constexpr int kTile = kRight + rj_product_stages * kRightBytes;
    static constexpr int kCounters = kTile + rj_tile_rows * rj_tile_pitch * 2;
    static constexpr int kBytes = kCounters + (2 * rj_product_stages + 4) * 8 + 1024;  // and the first multiple of 1024
    // Tiles follow each other along the columns of so many pairs of them along the rows, whose operands the
    // second-level cache then has: of 4, 8 and 16 the fastest (H100, 2048 x 151936 x 2048: 1.87, 1.74 and 1.77 ms).
    static constexpr int kPairsTogether = 8;

    const rj_tensor_map& left;
    const rj_tensor_map& right;
    const int steps;  // of the depth
    const int row_pairs;
    const int column_tiles;
    const int rank;  // of the block in its cluster
    const unsigned shared;
    const unsigned filled;  // counters, an entry a stage: both operands are there
    const unsigned emptied;
    const unsigned made;  // of each half tile: it is there
    const unsigned taken;

    RJ_DEVICE rj_product(const rj_tensor_map& left, const rj_tensor_map& right, long long rows, long long columns,
                         long long depth)
        : left(left),
          right(right),
          steps(static_cast<int>((depth + rj_tile_depth - 1) / rj_tile_depth)),
          row_pairs(static_cast<int>((rows + 2 * rj_tile_rows - 1) / (2 * rj_tile_rows))),
          column_tiles(static_cast<int>((columns + rj_tile_columns - 1) / rj_tile_columns)),
          rank(rj_block() % 2),
          // What is swizzled begins at a multiple of 1024 bytes.
          shared((rj_shared_address(0) + 1023u) & ~1023u),
          filled(shared + kCounters),
          emptied(filled + 8 * rj_product_stages),
          made(emptied + 8 * rj_product_stages),
          taken(made + 16) {
        if (rj_thread() == 0) {
            for (int stage = 0; stage < rj_product_stages; ++stage) {
                rj_counter_open(filled + 8 * stage, 1);
                rj_counter_open(emptied + 8 * stage, 4);  // two groups of warps in either block
            }
            for (int half = 0; half < 2; ++half) {
                rj_counter_open(made + 8 * half, 128);
                rj_counter_open(taken + 8 * half, rj_product_row_threads);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
        if (rj_thread() < RJ_WARP_SIZE) {
            if (rj_thread() == 0) copy();
        } else if (!has_rows()) {
            multiply();
        }
    }

    RJ_DEVICE bool has_rows() const {
        return rj_thread() >= RJ_WARP_SIZE && rj_thread() < RJ_WARP_SIZE + rj_product_row_threads;
    }

    // ---- which tiles ----

    RJ_DEVICE int first_pair() const { return rj_block() / 2; }
    RJ_DEVICE int next_pair(int pair) const { return pair + rj_grid(384) / 2; }
    RJ_DEVICE int pairs() const { return row_pairs * column_tiles; }

    RJ_DEVICE void place(int pair, int* row_tile, int* column_tile) const {
        const int together = kPairsTogether * column_tiles;
        const int group = pair / together;
        const int first = group * kPairsTogether;
        const int rows = row_pairs - first < kPairsTogether ? row_pairs - first : kPairsTogether;
        const int within = pair - group * together;
        *column_tile = within / rows;
        *row_tile = 2 * (first + within - *column_tile * rows) + rank;
    }

    // ---- the copying thread ----

    RJ_DEVICE void copy() const {
        int stage = 0;
        int parity = 1;
        for (int pair = first_pair(); pair < pairs(); pair = next_pair(pair)) {
            int row_tile, column_tile;
            place(pair, &row_tile, &column_tile);
            const int row = row_tile * rj_tile_rows;
            const int column = column_tile * rj_tile_columns + rank * (rj_tile_columns / 2);
            for (int step = 0; step < steps; ++step) {
                rj_counter_wait(emptied + 8 * stage, parity);
                const unsigned counter = filled + 8 * stage;
                rj_counter_expect(counter, kLeftBytes + kRightBytes);
                rj_copy_box(shared + kLeft + stage * kLeftBytes, left, step * rj_tile_depth, row, counter);
                rj_copy_box_to_both(shared + kRight + stage * kRightBytes + rank * (kRightBytes / 2), right,
                                    step * rj_tile_depth, column, counter);
                if (++stage == rj_product_stages) stage = 0, parity ^= 1;
            }
        }
    }

    // ---- warps that multiply ----

    RJ_DEVICE void give_back(int stage) const {
        const int thread = rj_thread() % 128;
        if (thread < 2) rj_counter_arrive_in(emptied + 8 * stage, thread);
    }

    RJ_DEVICE void multiply() const {
        const int half = rj_thread() / 128 - 1;
        int stage = 0;
        int parity = 0;
        int tile_parity = 1;
        float sums[128];
        for (int pair = first_pair(); pair < pairs(); pair = next_pair(pair)) {
            int before = -1;
            for (int step = 0; step < steps; ++step) {
                rj_counter_wait(filled + 8 * stage, parity);
                const unsigned long long rows =
                    rj_operand(shared + kLeft + stage * kLeftBytes + half * (kLeftBytes / 2));
                const unsigned long long columns = rj_operand(shared + kRight + stage * kRightBytes);
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                rj_multiply<T>(sums, rows, columns, step > 0);
#pragma unroll
                for (int part = 1; part < rj_tile_depth / 16; ++part)  // 32 bytes further on, in units of 16
                    rj_multiply<T>(sums, rows + 2 * part, columns + 2 * part, 1);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                if (before >= 0) {
                    rj_wait_for_sums<1>();
                    give_back(before);
                }
                before = stage;
                if (++stage == rj_product_stages) stage = 0, parity ^= 1;
            }
            rj_wait_for_sums<0>();
            give_back(before);
            rj_counter_wait(taken + 8 * half, tile_parity);
            tile_parity ^= 1;
            leave(half, sums);
            rj_counter_arrive(made + 8 * half);
        }
    }

    // Patches of 16 rows by 16 columns, a row of eight columns from each lane's address.
    RJ_DEVICE void leave(int half, const float (&sums)[128]) const {
        const int lane = rj_thread() % 32;
        const int row = half * rj_half_rows + rj_thread() / 32 % 4 * 16 + lane % 16;
        const unsigned to = shared + kTile + (row * rj_tile_pitch + lane / 16 * 8) * 2;
#pragma unroll
        for (int patch = 0; patch < rj_tile_columns / 16; ++patch) {
            unsigned words[4];
#pragma unroll
            for (int k = 0; k < 4; ++k)
                words[k] = rj_pack_pair(T{}, sums[8 * patch + 2 * k], sums[8 * patch + 2 * k + 1]);
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to + 32 * patch),
                         "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                         : "memory");
        }
    }

    // ---- threads that have the rows ----

    RJ_DEVICE rj_half_tile first() const {
        rj_half_tile tile = {first_pair(), 0, 0, 0, 0};
        if (!has_rows()) tile.pair = pairs();
        return tile;
    }
    // Waits for the half tile, where there is one.
    RJ_DEVICE bool take(rj_half_tile& tile) const {
        if (tile.pair >= pairs()) return false;
        int row_tile, column_tile;
        place(tile.pair, &row_tile, &column_tile);
        tile.row = static_cast<long long>(row_tile) * rj_tile_rows + tile.half * rj_half_rows;
        tile.tile_column = column_tile;
        rj_counter_wait(made + 8 * tile.half, tile.parity);
        return true;
    }
    RJ_DEVICE const T* row(const rj_half_tile& tile, int row) const {
        const unsigned begin = shared - rj_shared_address(0) + kTile;
        return reinterpret_cast<const T*>(rj_shared_memory + begin) + (tile.half * rj_half_rows + row) * rj_tile_pitch;
    }
    RJ_DEVICE void give_back(rj_half_tile& tile) const {
        rj_counter_arrive(taken + 8 * tile.half);
        if (tile.half == 1) {
            tile.pair = next_pair(tile.pair);
            tile.parity ^= 1;
        }
        tile.half ^= 1;
    }

    // No block ends while the other copies to it or counts there.
    RJ_DEVICE void close() const {
        asm volatile("barrier.cluster.arrive.release;" ::: "memory");
        asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
};
