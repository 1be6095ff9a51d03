// The SIMT machine's half of templates/prelude_product.h: half tiles for the threads that have rows, each of
// which computes the sums of a row for itself, in f64, rounded to f32 and then to the product's type.
#define RJ_TENSOR_MAP const rj_tensor_map

struct rj_tensor_map {
    const unsigned char* address;
    long long rows;
    long long columns;
    long long row_stride;
    unsigned char rest[96];
};
static_assert(sizeof(rj_tensor_map) == 128);

constexpr int rj_tile_rows = 128;
constexpr int rj_tile_columns = 256;
constexpr int rj_half_rows = rj_tile_rows / 2;
constexpr int rj_product_row_threads = 96;

RJ_DEVICE int rj_product_thread() { return rj_thread() - RJ_WARP_SIZE; }

struct rj_half_tile {
    int pair;
    int half;
    long long row;
    long long tile_column;
};

template <class T>
struct rj_product {
    static constexpr int kBytes = 0;
    const rj_tensor_map& left;
    const rj_tensor_map& right;
    const int row_pairs;
    const int column_tiles;

    rj_product(const rj_tensor_map& left, const rj_tensor_map& right, long long rows, long long columns,
               long long depth)
        : left(left),
          right(right),
          row_pairs(int((rows + 2 * rj_tile_rows - 1) / (2 * rj_tile_rows))),
          column_tiles(int((columns + rj_tile_columns - 1) / rj_tile_columns)) {
        if (rows != left.rows || columns != right.rows || depth != left.columns || depth != right.columns)
            rj_simt_fault("a product's extents are not its operands'");
    }

    int pairs() const { return row_pairs * column_tiles; }
    rj_half_tile first() const {
        const bool has_rows = rj_product_thread() >= 0 && rj_product_thread() < rj_product_row_threads;
        return {has_rows ? rj_block() / 2 : pairs(), 0, 0, 0};
    }
    bool take(rj_half_tile& tile) const {
        if (tile.pair >= pairs()) return false;
        const int row_tile = tile.pair % row_pairs * 2 + rj_block() % 2;
        tile.row = row_tile * rj_tile_rows + tile.half * rj_half_rows;
        tile.tile_column = tile.pair / row_pairs;
        return true;
    }
    void give_back(rj_half_tile& tile) const {
        if (tile.half == 1) tile.pair += rj_grid(384) / 2;
        tile.half ^= 1;
    }
    void close() const {}

    // What lies outside the operands is zero.
    static float element(const rj_tensor_map& matrix, long long row, long long column) {
        if (row >= matrix.rows) return 0;
        T stored;
        std::memcpy(&stored, matrix.address + (row * matrix.row_stride + column) * sizeof(T), sizeof(T));
        return rj_get(rj_vec_of(stored), 0);
    }
    static rj_vec<T, 1> rj_vec_of(const T& stored) {
        rj_vec<T, 1> vec;
        vec.words[0] = 0;
        std::memcpy(vec.words, &stored, sizeof(T));
        return vec;
    }
    const T* row(const rj_half_tile& tile, int row_of_half) const {
        alignas(16) static thread_local T rows[2][rj_product_row_threads][rj_tile_columns];
        T* const result = rows[rj_block() % 2][rj_product_thread()];
        for (int column = 0; column < rj_tile_columns; ++column) {
            double sum = 0;
            for (long long k = 0; k < left.columns; ++k)
                sum += double(element(left, tile.row + row_of_half, k)) *
                       element(right, tile.tile_column * rj_tile_columns + column, k);
            const float values[1] = {float(sum)};
            const rj_vec<T, 1> packed = rj_pack<T>(values);
            std::memcpy(result + column, packed.words, sizeof(T));
        }
        return result;
    }
};
